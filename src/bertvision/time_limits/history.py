"""What a run with a time limit did: one entry for each stage."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A stage that has ended."""

    seconds: float
    """Since the limit began."""
    stage: str
    validation_score: float | None
    """Of the best candidate of the stage, in percent."""
    best_score: float | None
    """Of the best model so far."""
    predicted_seconds: float
    """How long the stage was planned to take."""
    stage_seconds: float
    """How long it took."""
    decided: str
    """What was decided, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        values = asdict(self)
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}
