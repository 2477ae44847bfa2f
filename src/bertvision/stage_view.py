"""What a run shows: the stages that are done, running and to come, the time left, and the best score so far.

On a terminal and in notebooks with widgets this is a table that is kept up to date. Elsewhere, with NO_COLOR and on
terminals that cannot move the cursor, it is plain lines.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bertvision import progress
from bertvision.run_stages import ExpectedStage, StageListener, listened_by

REFRESHES = 4  # per second
SILENCE = 10.0
"""Seconds without a line after which work that advances is reported, where there is no table."""
MEASURABLE = 1.0
"""Seconds of work from which the time left is estimated."""
WIDE = 110
"""Columns of a terminal on which the hint at Ctrl-C has room."""
GAP = 2
"""Spaces between two columns of the table."""
MOST_ROWS = 8
"""The stages to come that the table names."""


def can_update(console: Console) -> bool:
    """Return whether the table can be shown, rather than lines."""
    return progress.can_show_bars(console) and not (console.is_dumb_terminal or os.environ.get("NO_COLOR"))


def duration(seconds: float) -> str:
    """Return a time for people: "8 s", "3:20 min" or "1:05 h"."""
    if seconds < 99.5:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 3570:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h"


@contextmanager
def loading() -> Iterator[None]:
    """Say on a terminal that libraries are loaded, which takes seconds."""
    console = Console(stderr=True)
    if not (progress.is_main_rank() and can_update(console)):
        yield
        return
    with console.status("Loading PyTorch and transformers"):
        yield


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """A line of the table."""

    state: str
    """"done", "now" or "then"."""
    seconds: str
    title: str
    detail: str = ""


class StageView(ABC):
    """A table on a terminal or in a notebook, lines elsewhere, nothing if it is silent. Subclasses say what is in it.

    Args:
        silent: Show nothing.
        lines: Print a line for each stage that has ended. Without them the table lists those stages, and nothing is
            shown where there is no table.
        patience: Seconds before the table is shown, so that short work shows nothing.
    """

    STYLES = {"done": "dim", "now": "bold", "then": ""}

    def __init__(self, *, silent: bool = False, lines: bool = True, patience: float = 0.0):
        self.console = Console(stderr=True)
        self.silent = silent or not progress.is_main_rank()
        self.lines = lines
        self.patience = patience
        self._live: Live | None = None
        self._entered = time.monotonic()

    def __enter__(self) -> Self:
        self._entered = time.monotonic()
        if not self.silent and can_update(self.console):
            self._live = Live(
                get_renderable=self.render,
                console=self.console,
                refresh_per_second=REFRESHES,
                transient=True,
                redirect_stdout=self.console.is_jupyter or os.isatty(1),
            )
            self.show()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self.console.quiet = self.console.is_jupyter and not self._live.is_started  # no empty output
            self._live.stop()
            self._live = None

    @property
    def is_live(self) -> bool:
        """Whether there is a table, or will be one when there has been enough work."""
        return self._live is not None

    def show(self) -> None:
        """Show the table, if it is time."""
        if self._live and not self._live.is_started and time.monotonic() - self._entered >= self.patience:
            self._live.start()

    def line(self, text: str) -> None:
        """Print a line."""
        if not self.silent and self.lines:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def ended_line(self, elapsed: float, title: str, seconds: float, remarks: Sequence[str]) -> None:
        """Print that a stage has ended."""
        self.line(", ".join([f"{elapsed:6.1f} s  {title} in {seconds:.1f} s", *remarks]))

    @abstractmethod
    def rows(self) -> list[StageRow]:
        """Return the lines of the table."""

    @abstractmethod
    def footer(self) -> str:
        """Return what is below the table."""

    def render(self) -> Group:
        """Return the table. Titles are cut where the terminal is narrow."""
        table = Table(box=None, pad_edge=False, show_header=False, expand=False)
        for justify in ("left", "right", "left", "left"):
            table.add_column(no_wrap=True, justify=justify)
        rows = [row for row in self.rows() if row.state != "done" or not self.lines]
        coming = [row for row in rows if row.state == "then"]
        shown = [row for row in rows if row.state != "then"] + coming[:MOST_ROWS]
        others = [(row.state, row.seconds, row.detail) for row in shown]
        taken = sum(max(map(len, column)) for column in zip(*others, strict=True)) + 3 * GAP
        for row in shown:
            title = Text(row.title)
            title.truncate(max(10, self.console.width - taken - 1), overflow="ellipsis")
            table.add_row(row.state, row.seconds, title, Text(row.detail), style=self.STYLES[row.state])
        if len(coming) > MOST_ROWS:
            table.add_row("", "", f"and {len(coming) - MOST_ROWS} more")
        return Group(table, Text(self.footer(), style="cyan"))


@dataclass
class _Work:
    """Work that a progress bar would show."""

    label: str
    done: int
    total: int
    began: float
    first: int
    """The steps that were done when it began."""


class RunView(StageView, StageListener):
    """The view of a run without a time limit. Within its `with` block it follows the stages and their progress.

    >>> from bertvision.run_stages import stage
    >>> with RunView(silent=True) as view:
    ...     with stage("read the rows"):
    ...         pass
    >>> [row.title for row in view.rows()]
    ['read the rows']
    """

    def __init__(self, *, silent: bool = False, lines: bool = True, patience: float = 0.0):
        super().__init__(silent=silent, lines=lines, patience=patience)
        self.best: tuple[float, str] | None = None
        """The best validation score so far, and the name of its model."""
        self._is_better = False
        """Whether there is a better model since the last stage."""
        self._ended: list[tuple[str, float]] = []
        self._coming: list[ExpectedStage] = []
        self._title = ""
        self._running_work = 0.0
        self._notes: list[str] = []
        self._began = self._line_at = time.monotonic()
        self._measured_work = self._measured_seconds = 0.0
        self._work: _Work | None = None
        self._inner = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        self._began = self._line_at = self._entered
        self._stack.enter_context(listened_by(self))
        if not self.silent and (self.is_live or self.lines):
            self._stack.enter_context(progress.followed_by(self.follow))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        super().__exit__(kind, error, at)

    def line(self, text: str) -> None:
        """Print a line."""
        self._line_at = time.monotonic()
        super().line(text)

    # What the run tells

    def expect_stages(self, stages: Sequence[ExpectedStage]) -> None:
        """Show the stages that are to come."""
        if not self._coming and not self.is_live and len(stages) > 1:
            self.line(f"{self.elapsed:6.1f} s  to do: {'; '.join(stage.title for stage in stages)}")
        self._coming = list(stages)

    def begin_stage(self, title: str) -> None:
        """Show that a stage begins. Those before it, whose results are on disk, are left out."""
        titles = [stage.title for stage in self._coming]
        self._running_work = 0.0
        if title in titles:
            self._running_work = self._coming[titles.index(title)].work
            self._coming = self._coming[titles.index(title) + 1 :]
        self._title, self._work, self._inner, self._notes = title, None, "", []
        self.show()

    def end_stage(self) -> None:
        """Show that the stage has ended."""
        seconds = time.monotonic() - self._began
        if self._running_work and not self._notes and seconds > MEASURABLE:
            self._measured_work += self._running_work
            self._measured_seconds += seconds
        self._ended.append((self._title, seconds))
        better = [f"validation {self._best}"] if self._is_better else []
        self.ended_line(self.elapsed, self._title, seconds, [*self._notes, *better])
        self._title, self._work, self._inner, self._running_work = "", None, "", 0.0
        self._began, self._is_better = time.monotonic(), False  # what comes between two stages belongs to the second

    def add_note(self, note: str) -> None:
        """Show a remark about the stage."""
        self._notes.append(note)

    def add_score(self, name: str, score: float) -> None:
        """Show the score if it is the best one."""
        if self.best is None or score > self.best[0]:
            self.best, self._is_better = (score, name), True

    def follow(self, label: str, done: int, total: int) -> None:
        """Show the progress of work. Work within other work, such as validation in training, is named beside it."""
        now = time.monotonic()
        work = self._work
        if work is None or work.label == label or work.done >= work.total:
            if work is None or work.label != label or done < work.done:
                self._work = work = _Work(label=label, done=done, total=total, began=now, first=done)
            work.done, self._inner = done, ""
        else:
            self._inner = f"{label} {done:,}/{total:,}" if done < total else ""
        self.show()
        if not self.is_live and now - self._line_at > SILENCE:
            left = "" if self.seconds_left is None else f", about {duration(self.seconds_left)} left"
            self.line(f"{self.elapsed:6.1f} s  {self._title or label}: {self._detail()}{left}")

    # What is shown

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._entered

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the time left; None as long as nothing has been measured."""
        running, coming = self._left_of_stage(), sum(stage.work for stage in self._coming)
        work, seconds = self._measured_work, self._measured_seconds
        if not work and running is not None and self._running_work:
            work, seconds = self._running_work, running + time.monotonic() - self._began
        if not work:
            return running if not coming else None
        rate = seconds / work
        if running is None:
            running = max(0.0, rate * self._running_work - (time.monotonic() - self._began))
        return running + rate * coming

    def _left_of_stage(self) -> float | None:
        """Return the time that is left of the work in progress, at its present speed."""
        work = self._work
        if work is None or work.done <= work.first or time.monotonic() - work.began < MEASURABLE:
            return None
        return (time.monotonic() - work.began) / (work.done - work.first) * (work.total - work.done)

    def _detail(self) -> str:
        steps = f"{self._work.done:,}/{self._work.total:,}" if self._work else ""
        return f"{steps} ({self._inner})" if self._inner else steps

    @property
    def _best(self) -> str:
        return f"{self.best[0]:.1f} ({self.best[1]})" if self.best else ""

    def rows(self) -> list[StageRow]:
        """Return the lines of the table."""
        rows = [StageRow(state="done", seconds=duration(seconds), title=title) for title, seconds in self._ended]
        coming = [stage.title for stage in self._coming]
        title = self._title or (self._work.label if self._work else "")
        if coming and not title:  # e.g. an encoder is loaded for it
            title, *coming = coming
        if title:
            seconds = duration(time.monotonic() - self._began)
            rows.append(StageRow(state="now", seconds=seconds, title=title, detail=self._detail()))
        return rows + [StageRow(state="then", seconds="", title=title) for title in coming]

    def footer(self) -> str:
        """Return the time and the best score so far."""
        left = self.seconds_left
        parts = [duration(self.elapsed)]
        if left is not None:
            parts.append(f"about {duration(left)} left")
        if self.best:
            parts.append(f"best validation score so far {self._best}")
        hint = " Ctrl-C stops; the same command goes on." if self.console.width >= WIDE else ""
        return ", ".join(parts) + "." + hint
