"""The table of tasks by name. The entry point "benchmarks" adds the benchmarks of the laboratory."""

from typing import Any

from bertvision.errors import BertVisionError
from bertvision.registries import Registry
from bertvision.tasks.base import Task


def _as_task(value: Any) -> Task:
    """Return a task, or the task that a function or class without arguments makes."""
    task = value if isinstance(value, Task) or not callable(value) else value()
    if not isinstance(task, Task):
        raise BertVisionError(f"A task is an instance of bertvision.tasks.Task, got {task!r}.")
    return task


TASKS: Registry[Task] = Registry("task", {}, _as_task)
"""All tasks by name."""


def register_task(task: Any) -> Task:
    """Register a task under its own name, so that commands and experiments can use it.

    `task` is a `Task`, or a function without arguments that makes one. Its class needs `register_task_kind`, so that
    saved models of the task can be loaded.
    """
    task = _as_task(task)
    TASKS.register(task.name, task)
    return task
