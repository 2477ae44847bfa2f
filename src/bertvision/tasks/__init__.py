"""Tasks: the table of them, tasks from the user's own files, and tasks of finished runs."""

from bertvision.tasks.base import Data, Example, Request, Span, Task
from bertvision.tasks.custom import custom
from bertvision.tasks.decoding import Answer, Candidate
from bertvision.tasks.reading import read_table
from bertvision.tasks.scoring import score_file
from bertvision.tasks.splitting import draw_nested
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
    "draw_nested",
    "read_table",
    "restore",
    "score_file",
]
