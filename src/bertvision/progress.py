"""What a user is told on the way, on stderr: notices, and progress with rate and time left if it is a terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Bar
from rich.text import Text

PATIENCE = 2.0  # seconds before a bar is worth showing
SPEAKS = os.environ.get("RANK", "0") == "0"
"""Of processes that work together (torchrun, accelerate launch), the first one speaks for all."""


def say(message: str) -> None:
    """Tell the user something on the way, apart from results."""
    if SPEAKS:
        print(message, file=sys.stderr)


class _Rate(ProgressColumn):
    def render(self, task: Bar) -> Text:
        return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="cyan")


@contextmanager
def bar(label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the bar; it appears only if the work takes longer than a moment."""
    if not (SPEAKS and sys.stderr.isatty()):
        yield lambda steps: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(label, total=total, completed=done)
    began = time.monotonic()

    def advance(steps: int) -> None:
        progress.update(task, advance=steps)
        if not progress.live.is_started and time.monotonic() - began > PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        progress.stop()
