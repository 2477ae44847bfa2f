"""Classification of texts and pairs of texts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_sample_weight

from bertvision.encoders import Encoder
from bertvision.errors import BertVisionError
from bertvision.estimators.base import BaseTextEstimator
from bertvision.heads import HeadConfig
from bertvision.inputs import (
    ClassLabelEncoder,
    MultiLabelTask,
    Rows,
    SeparatedLabels,
    examples_from_rows,
    refuse_joined_labels,
    task_from_rows,
    warn_truncated,
)
from bertvision.inputs.tables import to_list
from bertvision.runs import Run
from bertvision.tasks import Task
from bertvision.tasks.text import label_name
from bertvision.training import Callback


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

    Labels that are lists mean any number of labels per text: `predict` returns lists, and `predict_proba` the
    probability of each label by itself. An array of 0 and 1 with a column for each label means the same; `predict`
    then returns such an array.

    Args:
        encoder: The name of an encoder (`bertvision encoders` lists them), the name of a model on the Hugging Face Hub,
            the directory of a model, or an `Encoder`.
        fraction: Epochs of fine-tuning, e.g. 0.3. 0: the encoder is used as it is. None: 1 for single texts, whose rate
            then falls to zero, and 0.3 for pairs.
        time_limit: Seconds, or a text such as "5m", for everything that `fit` does. What is trained, and for how long,
            follows from it, and `fraction` and `controls` are not used. None: no limit.
        memory_limit: Bytes, or a text such as "4GB", that the process may hold. It needs a time limit.
        disk_limit: Bytes, or a text such as "1GB", that the models may take on disk. It needs a time limit.
        head: The head: "auto" trains the default heads of the kind of task, of which validation chooses one; or
            "default", a specification such as "adapter:size=32", or a `HeadConfig`.
        class_weight: "balanced", or weights by class, as in scikit-learn. None: all classes have the same weight.
        label_separator: The text between several labels in a string, e.g. ",". "": a string is one label. None: labels
            that seem to hold several are refused with a question.
        metric: The metric by which epochs and heads are chosen, and which `score` returns: "accuracy",
            "balanced_accuracy" or "macro_f1"; for two classes also "f1" or "matthews"; for several labels "micro_f1",
            "macro_f1", "average_precision" or "accuracy" (all labels right). None: "accuracy"; for several labels
            "micro_f1".
        validation_fraction: The fraction of the rows that is held out for validation if `fit` gets no `eval_set`.
        max_tokens: The largest number of tokens that the encoder reads at once. None: 128.
        long_texts: What is done with longer texts: "truncate", or "windows": they are read in overlapping windows of
            `max_tokens`, and the head pools the hidden states of all of them. Texts of more than 2,048 tokens are cut.
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
        verbose: 0: nothing is shown. 1: the stages, the time left and the best score, on a terminal. 2: also lines
            where there is no terminal.
    """

    kind: ClassVar[str] = "classification"
    _indicators: bool = False
    """Whether labels were an array of 0 and 1, which `predict` then returns."""
    _given_classes: Any = None
    """The `classes` of the call of `partial_fit` that is in progress."""

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder = "minilm",
        *,
        fraction: float | None = None,
        time_limit: float | str | None = None,
        memory_limit: int | str | None = None,
        disk_limit: int | str | None = None,
        head: str | HeadConfig = "auto",
        class_weight: str | Mapping[Any, float] | None = None,
        label_separator: str | None = None,
        metric: str | None = None,
        validation_fraction: float = 0.1,
        max_tokens: int | None = None,
        long_texts: str = "truncate",
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
            long_texts=long_texts,
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
        self.label_separator = label_separator
        self.metric = metric

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        classes: Any = None,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        groups: Any = None,
        sample_weight: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train the head further on new rows. The encoder stays as it is. A label that is not known is an error.

        The other arguments are those of `fit`. The columns of a table are those of the previous call, if it has such.

        Args:
            X: Texts, as in `fit`.
            y: Labels, as in `fit`.
            classes: All labels that the rows of this and of later calls may have. Only the first call reads them. None:
                the labels of the rows of the first call.
        """
        self._given_classes = classes
        try:
            return super().partial_fit(
                X,
                y,
                text=text,
                text_pair=text_pair,
                label=label,
                groups=groups,
                sample_weight=sample_weight,
                callbacks=callbacks,
            )
        finally:
            del self._given_classes

    def predict(self, X: Any) -> Any:
        """Return the label of each row (N,); a list of labels for each row if the classifier was fitted on lists."""
        logits = self._logits(X)
        if not isinstance(task := self.model_.task, MultiLabelTask):
            return self.label_encoder_.inverse_transform(logits.argmax(axis=1))
        probabilities = task.probabilities(logits.astype(np.float64), self.model_.settings)
        chosen = probabilities >= task.thresholds(self.model_.settings)
        if self._indicators:
            return chosen.astype(np.int64)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [self.classes_[row[flags[row]]].tolist() for row, flags in zip(order, chosen, strict=True)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, in the order of `classes_`. (N, C)

        Probabilities are calibrated: logits are divided by a temperature that was fitted on the validation rows.
        """
        logits = self._logits(X).astype(np.float64)
        if isinstance(task := self.model_.task, MultiLabelTask):
            return task.probabilities(logits, self.model_.settings)
        return softmax(logits / self.model_.settings.get("temperature", 1.0), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class. (N, C)"""
        return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits (N, C); for two classes, the logit of the second class minus that of the first (N,)."""
        logits = self._logits(X)
        if logits.shape[1] == 2 and not self.model_.task.independent_outputs:
            return logits[:, 1] - logits[:, 0]
        return logits

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the metric of the classifier, from 0 to 1: the accuracy if no other was chosen, or micro F1 for lists.

        The labels are y, or the column of labels that X has.
        """
        rows = self._read_labelled(X, y, sample_weight)
        task = self.model_.task
        if task.primary == "accuracy" and not task.independent_outputs:
            return float(accuracy_score(rows.labels, self.predict(rows.texts), sample_weight=rows.weights))
        if rows.weights is not None:
            raise BertVisionError(f"`score` takes a sample_weight only if it returns the accuracy, not {task.primary}.")
        examples, features = examples_from_rows(rows, task), self.model_.encode(rows.texts)
        warn_truncated({"given": features}, self.model_.max_tokens)
        answers = task.decode(self._predict(features), features, self.model_.settings)
        return (task.compute_metric(task.outcomes(answers, examples), task.primary) or 0.0) / 100

    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        classes = self._label_encoder(rows, start).classes_.tolist()
        if len(classes) < 2:
            raise BertVisionError(
                f"A classifier needs two or more classes; all labels are of one class, {classes[0]!r}."
            )
        if rows.has_label_lists and self.class_weight is not None:
            raise BertVisionError("class_weight applies to one class per text, not to lists of labels.")
        kind = "multi-label" if rows.has_label_lists else self.kind
        task = task_from_rows(rows, kind=kind, name="text-classification", classes=classes)
        return replace(task, keep_groups=True)

    def _label_encoder(self, rows: Rows, start: Run | None) -> ClassLabelEncoder:
        """Return the encoder of the labels: of new ones, or of those that training continues with."""
        if start is not None:
            return self.label_encoder_
        labels, dtype = list(rows.label_names) or rows.flat_labels, rows.label_dtype
        if self._given_classes is not None and not rows.label_names:
            labels, dtype = to_list(self._given_classes), None
        if not labels:
            raise BertVisionError("No row has a label; a classifier needs two or more classes.")
        encoder = ClassLabelEncoder().fit(labels, dtype)
        if rows.label_names:  # in the order of the columns
            encoder.classes_, encoder.names_ = np.array(labels), tuple(map(label_name, labels))
        return encoder

    def _label_format(self, label: str | Sequence[str] | None) -> Any:
        return SeparatedLabels(label, self.label_separator) if self.label_separator else label

    def _check_labels(self, rows: Rows) -> None:
        if rows.has_label_lists or self.label_separator is not None:
            return
        refuse_joined_labels(
            rows.labels or [],
            f"{rows.source}: column {rows.label!r}" if rows.source else "y",
            lambda separator: (
                f"Use TextClassifier(label_separator={separator!r}) for several labels, or label_separator='' to keep "
                "the combinations as classes."
            ),
        )

    def _metric(self) -> str:
        return self.metric or ""

    def _check_labels_are_known(self, rows: Rows) -> None:
        known = self.label_encoder_.names_
        for row, labels in enumerate(rows.labels or []):
            for label in labels if rows.has_label_lists else [labels]:
                if label_name(label) in known:
                    continue
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
        self._indicators = bool(rows.label_names) and not rows.label_columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
