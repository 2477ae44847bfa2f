"""Tasks: what is predicted from which texts, how logits become answers, and how answers are scored."""

from bertvision.tasks.base import DataRequest, DataSource, DataSplits, Example, Span, Task
from bertvision.tasks.decoding import Answer, SpanCandidate
from bertvision.tasks.kinds import TASK_KINDS, register_task_kind, task_from_dict
from bertvision.tasks.reading import read_table
from bertvision.tasks.splitting import draw_nested
from bertvision.tasks.squad import SquadTask
from bertvision.tasks.table import TASKS, register_task
from bertvision.tasks.text import TextTask
from bertvision.tasks.user_files import UserFiles

__all__ = [
    "TASKS",
    "TASK_KINDS",
    "Answer",
    "SpanCandidate",
    "DataRequest",
    "DataSource",
    "DataSplits",
    "Example",
    "Span",
    "SquadTask",
    "Task",
    "TextTask",
    "UserFiles",
    "draw_nested",
    "read_table",
    "register_task",
    "register_task_kind",
    "task_from_dict",
]
