"""Input data: texts, labels, groups and weights from lists, arrays, data frames, data sets and files."""

from bertvision.inputs.custom_tasks import task_from_files
from bertvision.inputs.labels import ClassLabelEncoder
from bertvision.inputs.notices import warn_joined_labels, warn_truncated
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
    "ClassLabelEncoder",
    "Rows",
    "examples_from_rows",
    "find_text_error",
    "is_column",
    "read_items",
    "read_rows",
    "read_tagged_rows",
    "read_texts",
    "task_from_files",
    "task_from_rows",
    "warn_joined_labels",
    "warn_truncated",
]
