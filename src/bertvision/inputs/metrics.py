"""The choice of the primary metric of a task, by which epochs and heads are chosen."""

from dataclasses import replace

from bertvision.errors import BertVisionError, lookup
from bertvision.inputs.multi_label import METRICS as MULTI_LABEL_METRICS
from bertvision.inputs.multi_label import MultiLabelTask
from bertvision.tasks import Task, TextTask

CLASS_METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "matthews")
TWO_CLASS_METRICS = (*CLASS_METRICS, "f1")
SCORE_METRICS = ("pearson", "spearman")


def metrics_of(task: Task) -> tuple[str, ...]:
    """Return the metrics that a task can be ranked by."""
    if isinstance(task, MultiLabelTask):
        return MULTI_LABEL_METRICS
    if not isinstance(task, TextTask):
        return (task.primary,)
    if not task.classes:
        return SCORE_METRICS
    # The Matthews correlation is that of two classes.
    return TWO_CLASS_METRICS if len(task.classes) == 2 else tuple(m for m in CLASS_METRICS if m != "matthews")


def with_primary_metric(task: Task, metric: str) -> Task:
    """Return the task with a metric first, by which epochs and heads are chosen. Empty: the task as it is."""
    if not metric or metric == task.primary:
        return task
    lookup(dict.fromkeys(metrics_of(task)), metric, f"metric of {task.name}")
    if not isinstance(task, TextTask):
        raise BertVisionError(f"{task.name} is ranked by {task.primary}.")
    return replace(task, metrics=(metric, *(other for other in task.metrics if other != metric)))
