"""What a run with a time limit shows: the stages, the time left and the best score; plain lines without a terminal."""

import time
from collections.abc import Sequence

from bertvision.stage_view import StageRow, StageView
from bertvision.time_limits.clock import Clock
from bertvision.time_limits.history import HistoryEntry
from bertvision.time_limits.planner import Plan, Stage
from bertvision.training import Callback, EvaluateEvent, StepEvent


class LiveView(StageView):
    """The view of a run with a time limit: its stages with the seconds that they were planned to take."""

    def __init__(self, clock: Clock, *, silent: bool = False):
        super().__init__(silent=silent)
        self.clock = clock
        self.best_score: float | None = None
        self._ended: list[HistoryEntry] = []
        self._running: Stage | None = None
        self._began = 0.0
        self._coming: Sequence[Stage] = ()
        self._detail = ""

    def restart(self, clock: Clock) -> None:
        """Show the time of another limit."""
        self.clock = clock

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
        remarks = [] if entry.validation_score is None else [f"validation {entry.validation_score:.1f}"]
        remarks += [] if entry.best_score is None else [f"best {entry.best_score:.1f}"]
        if entry.stage != "plan":
            self.ended_line(entry.seconds, entry.stage, entry.stage_seconds, remarks)

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

    def rows(self) -> list[StageRow]:
        """Return the lines of the table."""
        rows = []
        for entry in self._ended:
            score = "" if entry.validation_score is None else f"{entry.validation_score:.1f}"
            rows.append(StageRow(state="done", seconds=f"{entry.stage_seconds:.1f} s", title=entry.stage, detail=score))
        if self._running is not None:
            seconds = f"{time.monotonic() - self._began:.0f}/{self._running.seconds:.0f} s"
            rows.append(StageRow(state="now", seconds=seconds, title=self._running.describe(), detail=self._detail))
        coming = [(f"{stage.seconds:.0f} s", stage.describe()) for stage in self._coming]
        return rows + [StageRow(state="then", seconds=seconds, title=title) for seconds, title in coming]

    def footer(self) -> str:
        """Return the time left and the best score so far."""
        best = "" if self.best_score is None else f", best validation score so far {self.best_score:.1f}"
        return f"{max(0.0, self.clock.left):.0f} s left{best}. Ctrl-C ends early and keeps the best model."


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
