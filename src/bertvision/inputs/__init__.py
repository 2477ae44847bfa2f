"""Input data: texts, labels, groups and weights from lists, arrays, data frames, data sets and files."""

from bertvision.inputs.bad_rows import read_examples
from bertvision.inputs.calibration import calibration_errors
from bertvision.inputs.column_splits import require_own_files, split_by_groups, split_by_time
from bertvision.inputs.custom_tasks import task_from_files
from bertvision.inputs.label_lists import SeparatedLabels, refuse_joined_labels
from bertvision.inputs.labels import ClassLabelEncoder
from bertvision.inputs.long_texts import (
    LONG_TEXTS,
    LongMultiLabelTask,
    LongTextTask,
    WindowedText,
    log_windows,
    parts_of_batch,
    with_windows,
)
from bertvision.inputs.metrics import with_primary_metric
from bertvision.inputs.multi_label import LabelSet, MultiLabelTask
from bertvision.inputs.notices import warn_data, warn_one_answer, warn_truncated
from bertvision.inputs.rows import (
    Rows,
    examples_from_rows,
    find_text_error,
    read_items,
    read_rows,
    read_texts,
    task_from_rows,
)
from bertvision.inputs.tables import is_column
from bertvision.inputs.tagged_rows import read_tagged_rows

__all__ = [
    "LONG_TEXTS",
    "ClassLabelEncoder",
    "LabelSet",
    "LongMultiLabelTask",
    "LongTextTask",
    "MultiLabelTask",
    "Rows",
    "SeparatedLabels",
    "WindowedText",
    "calibration_errors",
    "examples_from_rows",
    "find_text_error",
    "is_column",
    "log_windows",
    "parts_of_batch",
    "read_examples",
    "read_items",
    "read_rows",
    "read_tagged_rows",
    "read_texts",
    "refuse_joined_labels",
    "require_own_files",
    "split_by_groups",
    "split_by_time",
    "task_from_files",
    "task_from_rows",
    "warn_data",
    "warn_one_answer",
    "warn_truncated",
    "with_primary_metric",
    "with_windows",
]
