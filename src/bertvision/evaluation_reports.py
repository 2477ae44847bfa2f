"""Scores of a model on a labelled file: the official metrics, a report for each class, and a confusion matrix."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bertvision.errors import BertVisionError
from bertvision.inputs import MultiLabelTask, calibration_errors, read_examples
from bertvision.tasks import Example, Task, TextTask
from bertvision.token_tasks import TokenTask, entity_scores
from bertvision.trained_model import TrainedModel

AVERAGES = ("macro avg", "weighted avg")
MULTI_LABEL_AVERAGES = ("micro avg", *AVERAGES)
"""Rows below the classes of a report, as in scikit-learn's `classification_report`."""


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Scores of one class, or an average of them, in percent."""

    precision: float
    recall: float
    f1: float
    support: int
    """Number of rows with this label."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of a model."""

    scores: dict[str, float]
    """The metrics of the task, in percent."""
    rows: int
    classes: dict[str, ClassScores] = field(default_factory=dict)
    """Scores of each class or entity type, then averages. Empty for regression and for answers to questions."""
    confusion: list[list[int]] = field(default_factory=list)
    """Counts by label (rows) and predicted class (columns), in the order of `classes`. Empty for several labels."""

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON. The metrics of the task are at the top level."""
        values: dict[str, Any] = {**self.scores, "rows": self.rows}
        if self.classes:
            values["classes"] = {name: asdict(scores) for name, scores in self.classes.items()}
            if self.confusion:
                values["confusion"] = self.confusion
        return values


def evaluate_file(
    model: TrainedModel, path: str | Path, *, text: str = "", text_pair: str = "", label: str = ""
) -> Evaluation:
    """Predict a labelled file and score the predictions.

    A model that was loaded with `precision="run"` gives exactly the scores of its run on the same rows.

    Args:
        model: The model.
        path: A CSV, TSV, JSONL or Parquet file, a JSON file in the SQuAD format, or a CoNLL file.
        text: Column of the text; by default that of the training data.
        text_pair: Column of the second text of a pair.
        label: Column of the label.
    """
    task = with_columns(model.task, text=text, text_pair=text_pair, label=label)
    examples = _read(task, Path(path))
    features = model.encode_examples(examples)
    predictions = model.logits(features)
    outcomes = task.outcomes(task.decode(predictions, features, model.settings), examples)
    calibration = calibration_errors(task, predictions, features, model.settings, examples)
    return evaluation(task, outcomes, calibration)


def _read(task: Task, path: Path) -> list[Example]:
    """Read a labelled file. Where the official files of a task number its classes, names are accepted as well."""
    if not isinstance(task, TextTask):
        return task.read(path)
    try:
        return task.read(path)
    except BertVisionError:
        if task.numbered:
            with suppress(BertVisionError):
                return replace(task, numbered=False).read(path)
    return read_examples(task, path)


def evaluation(task: Task, outcomes: np.ndarray, calibration: Mapping[str, float] | None = None) -> Evaluation:
    """Return the scores of outcomes, which `Task.outcomes` computes from answers and labels."""
    scores = task.compute_metrics(outcomes) | dict(calibration or {})
    if isinstance(task, TokenTask):
        by_type = entity_scores(task.type_counts(outcomes), task.entity_types)
        types = {name: ClassScores(**row._asdict()) for name, row in by_type.items()}
        return Evaluation(scores=scores, rows=len(outcomes), classes=types)
    classes: Sequence[str] = getattr(task, "classes", ())
    if not classes:
        return Evaluation(scores=scores, rows=len(outcomes))
    labels, predicted, options = _labels_and_predictions(task, outcomes, len(classes))
    by_class: Any = precision_recall_fscore_support(labels, predicted, **options)
    report = {
        name: _class_scores(precision, recall, f1, support)
        for name, precision, recall, f1, support in zip(classes, *by_class, strict=True)
    }
    for name in MULTI_LABEL_AVERAGES if task.independent_outputs else AVERAGES:
        average: Any = precision_recall_fscore_support(labels, predicted, average=name.removesuffix(" avg"), **options)
        precision, recall, f1, _ = average
        report[name] = _class_scores(precision, recall, f1, int(sum(report[label].support for label in classes)))
    confusion = (
        [] if task.independent_outputs else confusion_matrix(labels, predicted, labels=options["labels"]).tolist()
    )
    return Evaluation(scores=scores, rows=len(outcomes), classes=report, confusion=confusion)


def _labels_and_predictions(
    task: Task, outcomes: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return labels and predictions as class indices (N,), or as 0 and 1 for several labels (N, C), with options."""
    if isinstance(task, MultiLabelTask):
        truth, predicted, _ = task.split_outcomes(outcomes)
        return truth.astype(int), predicted.astype(int), {"zero_division": 0}
    options = {"labels": list(range(classes)), "zero_division": 0}
    return outcomes[:, 0].astype(int), outcomes[:, 1].astype(int), options


def _class_scores(precision: float, recall: float, f1: float, support: int) -> ClassScores:
    percent = [100.0 * float(share) for share in (precision, recall, f1)]
    return ClassScores(precision=percent[0], recall=percent[1], f1=percent[2], support=int(support))


def with_columns(task: Task, *, text: str = "", text_pair: str = "", label: str = "") -> Task:
    """Return the task with other names of columns; empty names are kept."""
    if not (text or text_pair or label):
        return task
    if isinstance(task, TokenTask) and not text_pair:
        return replace(task, text=text or task.text, label=label or task.label)
    if not isinstance(task, TextTask):
        raise BertVisionError(f"{task.name} reads files in the SQuAD format, which have no columns to name.")
    if text_pair and len(task.texts) == 1:
        raise BertVisionError(f"{task.name} takes one text, so there is no column of a second text to name.")
    texts = tuple(given or column for given, column in zip((text, text_pair), task.texts, strict=False))
    # A file with other columns is not the official one, which may have no header line.
    return replace(task, texts=texts, label=label or task.label, header=())
