"""Tasks: the table of them, tasks from the user's own files, and tasks of finished runs."""

from bertvision.tasks.base import DataRequest, DataSplits, Example, Span, Task
from bertvision.tasks.custom import task_from_files
from bertvision.tasks.decoding import Answer, Candidate
from bertvision.tasks.reading import read_table
from bertvision.tasks.scoring import score_file
from bertvision.tasks.splitting import draw_nested
from bertvision.tasks.table import TASKS, task_from_dict

__all__ = [
    "TASKS",
    "Answer",
    "Candidate",
    "DataSplits",
    "Example",
    "DataRequest",
    "Span",
    "Task",
    "task_from_files",
    "draw_nested",
    "read_table",
    "task_from_dict",
    "score_file",
]
