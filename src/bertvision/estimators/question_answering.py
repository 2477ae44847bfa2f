"""Question answering: find the answer to a question in a context."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sklearn.utils.validation import check_is_fitted

from bertvision.errors import BertVisionError
from bertvision.estimators.base import BaseTextEstimator
from bertvision.inputs import Rows, examples_from_rows, read_items, read_rows
from bertvision.inputs.tables import Columns, as_items, as_table, columns_of_items, is_missing, to_list
from bertvision.runs import Run
from bertvision.tasks import SquadTask, Task

SINGLE_TEXTS = "Question answering needs pairs of a question and a context; got single texts."


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
    or SQuAD's {"text": [...], "answer_start": [...]}. It also takes a table with the columns question, context and
    answer or answers (or others: text=..., text_pair=..., label=...), or a SQuAD JSON file.
    """

    kind: ClassVar[str] = "question-answering"

    def _read_rows(self, X: Any, y: Any, *, label: Any = None, **options: Any) -> Rows:
        """Read and check rows. Answers that are plain texts are located in their contexts."""
        X, y = (list(values) if isinstance(values, Iterator) else values for values in (X, y))
        table = as_table(X) or columns_of_items(as_items(X))
        column = label or (y if isinstance(y, str) else _answer_column(table) if y is None else None)
        if table.named and column:
            column = table.check(column)
        answers = to_list(table.get(column)) if table.named and column else y
        if not _is_plain(answers):
            return read_rows(X, y, label=label, **options)
        unlabelled: dict[str, Any] = options | {"labelled": False}
        texts = read_rows(X, **unlabelled).texts
        rows = read_rows(X, _locate(answers, texts), **options)
        return replace(rows, label=column or rows.label)

    def _items(self, X: Any) -> list[Any]:
        check_is_fitted(self, "model_")
        names = {} if isinstance(X, list | Iterator) else self._known_columns(X, ())
        if set(names) != {"text", "text_pair"}:
            return read_items(X, self.model_.task.text_names)
        return read_items(X, (names["text"], names["text_pair"]))

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
        examples = examples_from_rows(self._read_labelled(X, y), task)
        features = self.model_.encode_examples(examples)
        answers = task.decode(self._predict(features), features, self.model_.settings)
        return task.score(answers, examples)["f1"] / 100

    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        if len(rows.text_names) != 2:
            raise BertVisionError(SINGLE_TEXTS)
        if not all(isinstance(label, tuple) for label in rows.labels or []):
            raise BertVisionError(
                "The answers to questions are texts that occur in the contexts, or dictionaries with the keys text and "
                f"answer_start; got {next(label for label in rows.labels or [] if not isinstance(label, tuple))!r}."
            )
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


def _is_plain(answers: Any) -> bool:
    """Whether answers are plain texts, instead of SQuAD's format."""
    if answers is None or isinstance(answers, str | Mapping) or not hasattr(answers, "__iter__"):
        return False
    return all(isinstance(answer, str) or is_missing(answer) for answer in answers)


def _answer_column(table: Columns) -> str | None:
    """Return the column of the answers, if it can be told by its name."""
    names = [name for name in table.names if name.lower() in ("answers", "answer", "label")]
    return names[0] if table.named and len(names) == 1 else None


def _locate(answers: Any, texts: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Find answers that are plain texts in their contexts, and return SQuAD's format."""
    answers = list(answers)
    if len(texts) != len(answers):
        raise BertVisionError(f"There are {len(texts):,} questions, but the number of answers is {len(answers):,}.")
    if len(texts[0]) != 2:
        raise BertVisionError(SINGLE_TEXTS)
    spans = []
    for row, (answer, (_, context)) in enumerate(zip(answers, texts, strict=True)):
        if is_missing(answer) or not answer:
            spans.append({"text": [], "answer_start": []})
            continue
        start = context.find(answer)
        if start < 0:
            raise BertVisionError(f"Row {row}: the answer {answer!r} does not occur in the context.")
        spans.append({"text": [answer], "answer_start": [start]})
    return spans
