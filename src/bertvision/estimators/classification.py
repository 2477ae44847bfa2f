"""Classification of texts and pairs of texts."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_sample_weight

from bertvision.encoders import Encoder
from bertvision.errors import BertVisionError
from bertvision.estimators.base import BaseTextEstimator
from bertvision.heads import HeadConfig
from bertvision.inputs import ClassLabelEncoder, Rows, task_from_rows, warn_joined_labels
from bertvision.runs import Run
from bertvision.tasks import Task
from bertvision.tasks.text import label_name


class TextClassifier(ClassifierMixin, BaseTextEstimator):
    """Classify texts or pairs of texts.

    An encoder is fine-tuned for a fraction of an epoch. Then a head is trained on the hidden states of all its layers.

    >>> from bertvision import TextClassifier
    >>> texts = ["a fine film", "a dull film", "fine acting", "dull acting"] * 10
    >>> classifier = TextClassifier(fraction=0, verbose=0).fit(texts, ["good", "bad"] * 20)
    >>> classifier.classes_
    array(['bad', 'good'], dtype='<U4')
    >>> classifier.predict_proba(["a fine plot", "a dull plot"]).shape
    (2, 2)

    Args:
        encoder: The name of an encoder (`bertvision encoders` lists them), the name of a model on the Hugging Face Hub,
            the directory of a model, or an `Encoder`.
        fraction: Epochs of fine-tuning, e.g. 0.3. 0: the encoder is used as it is.
        head: The head: "default", a specification such as "adapter:size=32", or a `HeadConfig`.
        class_weight: "balanced", or weights by class, as in scikit-learn. None: all classes have the same weight.
        validation_fraction: The fraction of the rows that is held out for validation if `fit` gets no `eval_set`.
        max_tokens: The largest number of tokens of an input. Longer texts are truncated. None: 128.
        controls: Whether to train the controls that `leaderboard_` shows: BERT's own kind of head, and the head on the
            last layer only.
        settings: Other settings of `bertvision.lab.Experiment`, such as {"finetune.learning_rate": 5e-5}.
        random_state: The seed of fine-tuning and of the heads. Results also depend slightly on the number of threads
            (OMP_NUM_THREADS), because sums are rounded in another order.
        device: "cpu", "cuda", "cuda:1" or "mps". None: a GPU if there is one.
        precision: The number type of the encoder's matrix products: "auto", "float32", "bfloat16" or "float16".
        cache_dir: Where results are kept, so that the same call of `fit` finds them. None: the cache directory of the
            user. Nothing is written to the working directory.
        warm_start: Whether `fit` continues with the encoder and the head of the previous call.
        verbose: 0: no progress bars.
    """

    kind: ClassVar[str] = "classification"

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder = "minilm",
        *,
        fraction: float = 0.3,
        head: str | HeadConfig = "default",
        class_weight: str | Mapping[Any, float] | None = None,
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
        self.class_weight = class_weight

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of each row. (N,)"""
        logits = self._logits(X)
        return self.label_encoder_.inverse_transform(logits.argmax(axis=1))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, in the order of `classes_`. (N, C)

        Probabilities are calibrated: logits are divided by a temperature that was fitted on the validation rows.
        """
        temperature = self.model_.settings.get("temperature", 1.0) if hasattr(self, "model_") else 1.0
        return softmax(self._logits(X).astype(np.float64) / temperature, axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class. (N, C)"""
        return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits (N, C); for two classes, the logit of the second class minus that of the first (N,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy. The labels are y, or the column of labels that X has."""
        rows = self._read_labelled(X, y, sample_weight)
        return float(accuracy_score(rows.labels, self.predict(rows.texts), sample_weight=rows.weights))

    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        classes = self._label_encoder(rows, start).classes_.tolist()
        if len(classes) < 2:
            raise BertVisionError(
                f"A classifier needs two or more classes; all labels are of one class, {classes[0]!r}."
            )
        warn_joined_labels(rows.labels or [])
        task = task_from_rows(rows, kind=self.kind, name="text-classification", classes=classes)
        return replace(task, calibrated=True, keep_groups=True)

    def _label_encoder(self, rows: Rows, start: Run | None) -> ClassLabelEncoder:
        """Return the encoder of the labels: of new ones, or of those that training continues with."""
        return ClassLabelEncoder().fit(rows.labels or [], rows.label_dtype) if start is None else self.label_encoder_

    def _check_labels_are_known(self, rows: Rows) -> None:
        known = self.label_encoder_.names_
        for row, label in enumerate(rows.labels or []):
            if label_name(label) not in known:
                raise BertVisionError(
                    f"Row {row} has the new label {label!r}. The classifier knows the labels {', '.join(known)}. Fit a "
                    "new classifier for new labels."
                )

    def _weighted(self, rows: Rows) -> Rows:
        if self.class_weight is None:
            return rows
        try:
            weights = compute_sample_weight(self.class_weight, rows.labels)
        except (TypeError, ValueError) as error:
            raise BertVisionError(
                'class_weight must be "balanced", None, or a dictionary with a number for each class; got '
                f"{self.class_weight!r}. The classes are {', '.join(sorted(set(map(str, rows.labels or []))))}."
            ) from error
        return replace(rows, weights=weights if rows.weights is None else weights * rows.weights)

    def _set_fitted_attributes(self, rows: Rows, start: Run | None) -> None:
        self.label_encoder_ = self._label_encoder(rows, start)
        self.classes_ = self.label_encoder_.classes_
