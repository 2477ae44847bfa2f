"""The stages of a run, for whoever follows it: which are to come, which one begins and ends, and scores on the way.

The pipeline calls these functions. They do nothing unless a `StageListener` listens, such as the view on a terminal.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExpectedStage:
    """A stage that is to come."""

    title: str
    work: float = 0.0
    """How much there is to do, relative to the other stages. 0: not known."""


class StageListener:
    """Base class of listeners. Every method does nothing."""

    def expect_stages(self, stages: Sequence[ExpectedStage]) -> None:
        """Handle a list of the stages that are to come. Some of them may be left out."""

    def begin_stage(self, title: str) -> None:
        """Handle the start of a stage."""

    def end_stage(self) -> None:
        """Handle the end of the stage that runs."""

    def add_note(self, note: str) -> None:
        """Handle a remark about the stage that runs."""

    def add_score(self, name: str, score: float) -> None:
        """Handle the validation score of a model, in percent."""


_listener: ContextVar[StageListener | None] = ContextVar("listener of stages", default=None)


@contextmanager
def listened_by(listener: StageListener | None) -> Iterator[None]:
    """Tell a listener about the stages within a `with` block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(title: str) -> Iterator[None]:
    """Say that a stage begins and, unless it fails, that it ends."""
    if listener := _listener.get():
        listener.begin_stage(title)
    yield
    if listener:
        listener.end_stage()


def expect_stages(stages: Sequence[ExpectedStage]) -> None:
    """Say which stages are to come."""
    if listener := _listener.get():
        listener.expect_stages(stages)


def add_note(note: str) -> None:
    """Say something about the stage that runs."""
    if listener := _listener.get():
        listener.add_note(note)


def add_score(name: str, score: float) -> None:
    """Report the validation score of a model, in percent."""
    if listener := _listener.get():
        listener.add_score(name, score)
