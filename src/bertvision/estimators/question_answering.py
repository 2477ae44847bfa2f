"""Question answering: find the answer to a question in a context."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bertvision.errors import BertVisionError
from bertvision.estimators.base import BaseTextEstimator
from bertvision.inputs import Rows, examples_from_rows, read_items
from bertvision.runs import Run
from bertvision.tasks import SquadTask, Task


class QuestionAnswerer(BaseTextEstimator):
    """Find the answer to a question in a context, or tell that the context does not answer it.

    >>> from bertvision import QuestionAnswerer
    >>> contexts = ["The tower in Rome was made by Ann.", "The bridge in Paris was made by Bob."] * 10
    >>> pairs = [("Who made it?", context) for context in contexts]
    >>> answerer = QuestionAnswerer(fraction=0, verbose=0).fit(pairs, ["Ann", "Bob"] * 10)
    >>> answer = answerer.predict("Who made it?", "The river in London was made by Carl.")
    >>> sorted(answer)
    ['answer', 'end', 'nbest', 'null_probability', 'score', 'start']

    The arguments are those of `TextClassifier`, without `class_weight`. `fit` takes pairs of a question and a context,
    and as labels the answers: a text that occurs in the context; an empty text or None for questions without an answer;
    or SQuAD's {"text": [...], "answer_start": [...]}. It also takes a table with these columns, or a SQuAD JSON file.
    """

    kind: ClassVar[str] = "question-answering"

    def _read_labels(self, X: Any, y: Any) -> Any:
        """Convert answers that are plain texts to SQuAD's format."""
        return _as_answers(X, y)

    def predict(self, X: Any, context: Any = None, *, nbest: int = 5) -> Any:
        """Answer questions.

        Args:
            X: Pairs of a question and a context, or a table; or the question(s) if `context` is given.
            context: The context(s) of the question(s).
            nbest: How many candidate answers to return.

        Returns:
            For each question a dictionary: "answer" ("" if there is none), "start" and "end" (its characters in the
            context), "score", "null_probability" (the calibrated probability that the context has no answer) and
            "nbest". For a single question and context, one dictionary.
        """
        if isinstance(X, str):
            if not isinstance(context, str):
                raise BertVisionError(f"Give a context for the question, as a text; got {type(context).__name__}.")
            return self.predict([(X, context)], nbest=nbest)[0]
        items = self._items(X if context is None else _pairs(X, context))
        if not items:
            return []
        with self._context():
            return self.model_.predict(items, nbest=nbest)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the F1 score of SQuAD, between 0 and 1. The answers are y, or the column of answers that X has."""
        check_is_fitted(self, "model_")
        task = self.model_.task
        examples = examples_from_rows(self._read_labelled(X, _as_answers(X, y)), task)
        features = self.model_.encode_examples(examples)
        answers = task.decode(self._predict(features), features, self.model_.settings)
        return task.score(answers, examples)["f1"] / 100

    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        if len(rows.text_names) != 2:
            raise BertVisionError("Question answering needs pairs of a question and a context; got single texts.")
        return SquadTask(name="question-answering", summary="Answers in a context", answerable=False)


def _pairs(questions: Any, context: Any) -> list[tuple[str, str]]:
    """Pair each question with its context; a single context is used for all questions."""
    columns = []
    for name, values in (("questions", questions), ("contexts", context)):
        if not isinstance(values, Iterable):
            raise BertVisionError(f"The {name} must be texts, such as a list or Series; got {type(values).__name__}.")
        columns.append(values if isinstance(values, str) else list(values))
    asked, contexts = columns
    contexts = [contexts] * len(asked) if isinstance(contexts, str) else contexts
    if len(contexts) != len(asked):
        raise BertVisionError(f"There are {len(asked):,} questions, but {len(contexts):,} contexts.")
    return list(zip(asked, contexts, strict=True))


def _as_answers(X: Any, y: Any) -> Any:
    """Convert answers that are plain texts to SQuAD's format. Anything else is returned as it is."""
    if y is None or isinstance(y, str | Mapping) or not hasattr(y, "__iter__"):
        return y
    answers = list(y)
    if not all(answer is None or isinstance(answer, str | float) for answer in answers):
        return answers
    contexts = [item[1] for item in read_items(X, ("question", "context"))]
    if len(contexts) != len(answers):
        raise BertVisionError(f"There are {len(contexts):,} questions, but the number of answers is {len(answers):,}.")
    spans = []
    for row, (answer, context) in enumerate(zip(answers, contexts, strict=True)):
        if answer is None or answer == "" or (isinstance(answer, float) and np.isnan(answer)):
            spans.append({"text": [], "answer_start": []})
            continue
        start = str(context).find(str(answer))
        if start < 0:
            raise BertVisionError(f"Row {row}: the answer {answer!r} does not occur in the context.")
        spans.append({"text": [answer], "answer_start": [start]})
    return spans
