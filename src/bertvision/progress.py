"""Progress bars on terminals and in notebooks, or the same numbers for a view that follows the work."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Bar
from rich.text import Text

PATIENCE = 2.0  # seconds of work before a bar is shown
Follower = Callable[[str, int, int], None]
"""Is called with the label of some work, the steps done and all steps, when it begins and whenever it advances."""
_follower: ContextVar[Follower | None] = ContextVar("follower of progress, in place of bars", default=None)


def is_main_rank() -> bool:
    """Return whether this process prints. Of several processes (torchrun, accelerate), only the first one does."""
    return os.environ.get("RANK", "0") == "0"


def can_show_bars(console: Console) -> bool:
    """Return whether stderr is a terminal, or the console a notebook that can update its output."""
    return sys.stderr.isatty() or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def followed_by(follower: Follower | None) -> Iterator[None]:
    """Report progress to a function within a `with` block, and show no bars. With None, bars are shown again."""
    token = _follower.set(follower)
    try:
        yield
    finally:
        _follower.reset(token)


def hidden(hide: bool = True) -> AbstractContextManager[None]:
    """Show no progress bars within a `with` block, e.g. for `verbose=0`; with False, show them again."""
    return followed_by((lambda label, done, total: None) if hide else None)


class _Rate(ProgressColumn):
    def render(self, task: Bar) -> Text:
        return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="cyan")


@contextmanager
def bar(label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar. The bar appears after PATIENCE seconds."""
    console, follower = Console(stderr=True), _follower.get()
    if follower or not (is_main_rank() and can_show_bars(console)):

        def report(steps: int) -> None:
            nonlocal done
            done += steps
            if follower:
                follower(label, done, total)

        report(0)
        yield report
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()]
    progress = Progress(*columns, TextColumn("left"), console=console, transient=True)
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
