"""Token classification: find the entities in texts."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bertvision.encoders import Encoder
from bertvision.errors import BertVisionError
from bertvision.estimators.base import BaseTextEstimator
from bertvision.heads import HeadConfig
from bertvision.inputs import Rows, examples_from_rows, read_tagged_rows
from bertvision.runs import Run
from bertvision.tasks import Example, Task
from bertvision.token_tasks import TokenTask
from bertvision.token_tasks.entities import occurring_types


class TokenClassifier(BaseTextEstimator):
    """Find the entities in texts, or tag words.

    >>> from bertvision import TokenClassifier
    >>> words = [["Ann", "lives", "in", "Rome"], ["Bob", "left", "Paris"]] * 10
    >>> tags = [["B-person", "O", "O", "B-place"], ["B-person", "O", "B-place"]] * 10
    >>> tagger = TokenClassifier(fraction=0, verbose=0).fit(words, tags)
    >>> [len(sentence) for sentence in tagger.predict([["Carl", "lives", "in", "Oslo"]])]
    [4]
    >>> tagger.classes_
    array(['person', 'place'], dtype='<U6')

    `fit` takes lists of words with a tag for each word, in the schemes IOB2 or IOBES; or texts with spans (start, end,
    type) of characters; or a table with such columns; or a file in the CoNLL format. The other arguments are those of
    `TextClassifier`, without `class_weight`. `classes_` are the types of entities.

    Args:
        encoder: The name of an encoder (`bertvision encoders` lists them), the name of a model on the Hugging Face Hub,
            the directory of a model, or an `Encoder`.
        fraction: Epochs of fine-tuning. Entities need more of it than classes of whole texts (docs/lab-log.md).
        scheme: The scheme of the tags: "iob2", "iob1" or "iobes". "auto" stands for IOB2 or IOBES; tags that are not
            valid in it are an error, so IOB1 has to be named.
    """

    kind: ClassVar[str] = "tokens"

    def __init__(
        self,
        encoder: str | Encoder = "minilm",
        *,
        fraction: float = 2.0,
        time_limit: float | str | None = None,
        memory_limit: int | str | None = None,
        disk_limit: int | str | None = None,
        head: str | HeadConfig = "auto",
        scheme: str = "auto",
        validation_fraction: float = 0.1,
        max_tokens: int | None = None,
        controls: bool = True,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str | None = None,
        precision: str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        warm_start: bool = False,
        verbose: int = 1,
    ):
        super().__init__(
            encoder,
            fraction=fraction,
            time_limit=time_limit,
            memory_limit=memory_limit,
            disk_limit=disk_limit,
            head=head,
            validation_fraction=validation_fraction,
            max_tokens=max_tokens,
            controls=controls,
            settings=settings,
            random_state=random_state,
            device=device,
            precision=precision,
            cache_dir=cache_dir,
            warm_start=warm_start,
            verbose=verbose,
        )
        self.scheme = scheme

    def predict(self, X: Any) -> list[Any]:
        """Return the IOB2 tags of each list of words, or the entities of each text.

        Entities are dictionaries with the keys "type", "text", "start" and "end" (characters of the text) and "score",
        the mean probability of the tags of the words.
        """
        examples = self._unlabelled(X)
        if not examples or not examples[0].words:
            return self._entities(examples)
        features = self.model_.encode_examples(examples)
        tags = self._task.decode(self._predict(features), features, self.model_.settings)
        return [list(tags[example.id]) for example in examples]

    def predict_entities(self, X: Any) -> list[list[dict[str, Any]]]:
        """Return the entities of each text, or of each list of words joined by spaces, as `predict` does for texts."""
        return self._entities(self._unlabelled(X))

    def _entities(self, examples: list[Example]) -> list[list[dict[str, Any]]]:
        if not examples:
            return []
        features = self.model_.encode_examples(examples)
        answers = self._task.format_answers(self._predict(features), features, self.model_.settings)
        return [answers[example.id]["entities"] for example in examples]

    def score(self, X: Any, y: Any = None) -> float:
        """Return the F1 of entities, between 0 and 1: an entity counts if its type and all its words are right."""
        task = self._task
        examples = examples_from_rows(self._read_rows(X, y, labelled=True), task)
        features = self.model_.encode_examples(examples)
        return task.score(task.decode(self._predict(features), features, self.model_.settings), examples)["f1"] / 100

    @property
    def _task(self) -> TokenTask:
        check_is_fitted(self, "model_")
        assert isinstance(self.model_.task, TokenTask)
        return self.model_.task

    def _read_rows(self, X: Any, y: Any, **options: Any) -> Rows:
        options = {name: value for name, value in options.items() if name != "text_pair" or value is not None}
        if "text_pair" in options:
            raise BertVisionError("A TokenClassifier takes single texts or lists of words; it has no text_pair.")
        return read_tagged_rows(X, y, scheme=self.scheme, **options)

    def _known_columns(self, X: Any, y: Any) -> dict[str, Any]:
        return {}  # `read_tagged_rows` knows the columns of words, tags and spans by their names

    def _unlabelled(self, X: Any) -> list[Example]:
        """Return the rows to predict. The model splits texts into words as in its training."""
        check_is_fitted(self, "model_")
        if hasattr(X, "__len__") and not len(X):
            return []
        rows = self._read_rows(X, None, labelled=False)
        rows = replace(rows, words=None) if rows.splitting == "punctuation" else rows
        return examples_from_rows(rows, self._task)

    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        if start is not None:
            return self._task
        types = occurring_types(tag for tags in rows.labels or [] for tag in tags)
        if not types:
            raise BertVisionError("The rows hold no entities: all tags are O.")
        summary = f"Entities of {len(types)} type(s) in each text"
        return TokenTask(name="token-classification", summary=summary, entity_types=types, splitting=rows.splitting)

    def _set_fitted_attributes(self, rows: Rows, start: Run | None) -> None:
        self.classes_ = np.array(self._task.entity_types)

    def _check_labels_are_known(self, rows: Rows) -> None:
        examples_from_rows(rows, self._task)
