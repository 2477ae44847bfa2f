"""Progress bars on terminals and in notebooks."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Bar
from rich.text import Text

PATIENCE = 2.0  # seconds of work before a bar is shown
_hidden: ContextVar[bool] = ContextVar("progress bars are hidden", default=False)


def is_main_rank() -> bool:
    """Return whether this process prints. Of several processes (torchrun, accelerate), only the first one does."""
    return os.environ.get("RANK", "0") == "0"


def can_show_bars(console: Console) -> bool:
    """Return whether stderr is a terminal, or the console a notebook that can update its output."""
    return sys.stderr.isatty() or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def hidden(hide: bool = True) -> Iterator[None]:
    """Show no progress bars within a `with` block, e.g. for `verbose=0`; with False, show them again."""
    token = _hidden.set(hide)
    try:
        yield
    finally:
        _hidden.reset(token)


class _Rate(ProgressColumn):
    def render(self, task: Bar) -> Text:
        return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="cyan")


@contextmanager
def bar(label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar. The bar appears after PATIENCE seconds."""
    console = Console(stderr=True)
    if _hidden.get() or not (is_main_rank() and can_show_bars(console)):
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
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(label, total=total, completed=done)
    began = time.monotonic()

    def advance(steps: int) -> None:
        progress.update(task, advance=steps)
        if not progress.live.is_started and time.monotonic() - began > PATIENCE:
            progress.start()

    try:
        yield advance
    finally:
        console.quiet = console.is_jupyter  # or rich leaves an empty output in the notebook
        progress.stop()
