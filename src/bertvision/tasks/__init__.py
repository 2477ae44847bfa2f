"""Tasks: the table of them, tasks from the user's own files, and tasks of finished runs."""

from bertvision.tasks.base import Data, Example, Request, Span, Task
from bertvision.tasks.custom import custom
from bertvision.tasks.decoding import Answer, Candidate
from bertvision.tasks.metrics import difference, interval
from bertvision.tasks.scoring import score_file
from bertvision.tasks.table import TASKS, restore

__all__ = [
    "TASKS",
    "Answer",
    "Candidate",
    "Data",
    "Example",
    "Request",
    "Span",
    "Task",
    "custom",
    "difference",
    "interval",
    "restore",
    "score_file",
]
