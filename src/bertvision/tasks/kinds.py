"""The registry of task kinds, by which the task of a saved run is rebuilt."""

from collections.abc import Mapping
from typing import Any, TypeVar

from bertvision.errors import BertVisionError, lookup
from bertvision.tasks.base import Task

TaskClass = TypeVar("TaskClass", bound=type[Task])

TASK_KINDS: dict[str, type[Task]] = {}
"""Task classes by their `kind`."""


def register_task_kind(task_class: TaskClass) -> TaskClass:
    """Make `task_from_dict` able to rebuild tasks of this class. Can be used as a class decorator."""
    registered = TASK_KINDS.setdefault(task_class.kind, task_class)
    if registered is not task_class:
        raise BertVisionError(
            f"The task kind {task_class.kind!r} already belongs to {registered.__name__}; choose another name."
        )
    return task_class


def task_from_dict(description: Mapping[str, Any]) -> Task:
    """Rebuild a task from the result of `Task.to_dict`."""
    task_class = lookup(TASK_KINDS, str(description.get("kind", "")), "kind of task")
    try:
        return task_class.from_dict(description)
    except TypeError as error:
        raise BertVisionError(f"Cannot rebuild a task from its description: {error}.") from error
