"""What a run with a time limit shows: the stages, the time left and the best score; plain lines without a terminal."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bertvision.progress import can_show_bars, is_main_rank
from bertvision.time_limits.clock import Clock
from bertvision.time_limits.history import HistoryEntry
from bertvision.time_limits.planner import Plan, Stage
from bertvision.training import Callback, EvaluateEvent, StepEvent

REFRESHES = 4  # per second


class LiveView:
    """A table on a terminal or in a notebook, lines elsewhere, nothing if it is silent."""

    def __init__(self, clock: Clock, *, silent: bool = False):
        self.clock = clock
        self.console = Console(stderr=True)
        self.silent = silent or not is_main_rank()
        self.best_score: float | None = None
        self._ended: list[HistoryEntry] = []
        self._running: Stage | None = None
        self._began = 0.0
        self._coming: Sequence[Stage] = ()
        self._detail = ""
        self._live: Live | None = None

    def restart(self, clock: Clock) -> None:
        """Show the time of another limit."""
        self.clock = clock

    def __enter__(self) -> Self:
        if not self.silent and can_show_bars(self.console):
            self._live = Live(
                get_renderable=self._render, console=self.console, refresh_per_second=REFRESHES, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self, text: str) -> None:
        """Print a line."""
        if not self.silent:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show_plan(self, plan: Plan, clock: Clock, seconds: float) -> None:
        """Print the plan before it is carried out."""
        self._coming = plan.stages
        disk = max((stage.disk for stage in plan.stages), default=0)
        memory = max((stage.memory for stage in plan.stages), default=0)
        self.line(f"Time limit {clock.seconds:g} s, of which {clock.elapsed:.1f} s have passed. The plan:")
        for stage in plan.stages:
            self.line(f"  {stage.seconds:7.1f} s  {stage.describe()}")
        self.line(f"  {'':9}up to {memory / 1e9:.2f} GB of memory and {disk / 1e9:.2f} GB of disk")
        for note in plan.notes:
            self.line(f"  {'':9}{note}")

    def begin(self, stage: Stage, coming: Sequence[Stage]) -> None:
        """Show that a stage begins."""
        self._running, self._coming, self._began, self._detail = stage, coming, time.monotonic(), ""

    def end(self, entry: HistoryEntry) -> None:
        """Show that a stage has ended."""
        self._ended.append(entry)
        self._running = None
        score = "" if entry.validation_score is None else f", validation {entry.validation_score:.1f}"
        best = "" if entry.best_score is None else f", best {entry.best_score:.1f}"
        if entry.stage != "plan":
            self.line(f"{entry.seconds:6.1f} s  {entry.stage} in {entry.stage_seconds:.1f} s{score}{best}")

    def finish(self, clock: Clock, score: tuple[float, float] | None) -> None:
        """Print the outcome."""
        shown = "" if score is None else f" Best validation score: {score[0]:.2f}."
        self.line(f"Finished after {clock.elapsed:.1f} of {clock.seconds:g} s.{shown}")

    def callback(self) -> Callback:
        """Return a callback that shows the progress of training."""
        return _ShowProgress(self)

    def detail(self, text: str) -> None:
        """Show what the running stage does."""
        self._detail = text

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, show_header=False)
        for entry in self._ended:
            score = "" if entry.validation_score is None else f"{entry.validation_score:.1f}"
            table.add_row("done", f"{entry.stage_seconds:.1f} s", entry.stage, score, style="dim")
        if self._running is not None:
            seconds = f"{time.monotonic() - self._began:.0f}/{self._running.seconds:.0f} s"
            table.add_row("now", seconds, self._running.describe(), self._detail, style="bold")
        for stage in self._coming:
            table.add_row("then", f"{stage.seconds:.0f} s", stage.describe(), "")
        best = "" if self.best_score is None else f", best validation score {self.best_score:.1f}"
        left = max(0.0, self.clock.left)
        return Group(table, Text(f"{left:.0f} s left{best}. Ctrl-C ends early and keeps the best model.", style="cyan"))


class _ShowProgress(Callback):
    """Shows the epoch and the validation score of training."""

    def __init__(self, view: LiveView):
        self.view = view

    def on_step(self, event: StepEvent) -> None:
        """Show the epoch."""
        loss = next(iter(event.losses.values()), 0.0)
        self.view.detail(f"epoch {event.epoch:.2f}, loss {loss:.3f}")

    def on_evaluate(self, event: EvaluateEvent) -> None:
        """Show the validation score."""
        if event.validation_scores:
            score = max(event.validation_scores.values())[0]
            self.view.detail(f"epoch {event.epoch:.2f}, validation {score:.1f}")
