"""What the prediction routes of all protocols have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from bertvision.errors import BertVisionError
from bertvision.serving.metrics import ServerMetrics
from bertvision.serving.service import AnswerOptions, InferenceService
from bertvision.trained_model import TrainedModel


class ServerState:
    """Whether the server accepts requests."""

    def __init__(self) -> None:
        self.ready = False
        self.draining = False

    @property
    def accepting(self) -> bool:
        """True from the end of the warm-up until SIGTERM."""
        return self.ready and not self.draining

    @property
    def status(self) -> str:
        """The state as one word: "starting", "ready" or "draining"."""
        return "draining" if self.draining else "ready" if self.ready else "starting"


class ShuttingDown(BertVisionError):
    """The server accepts no more requests."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down. Send the request to another server.")


@dataclass(frozen=True)
class PredictionHandler:
    """Answers prediction requests, and records them in metrics and log."""

    service: InferenceService
    state: ServerState
    metrics: ServerMetrics

    async def __call__(
        self,
        request: Request,
        models: dict[str, TrainedModel],
        items: Sequence[Any],
        options: AnswerOptions,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Return the body of the response of /v1/predict. `timeout` counts from the arrival of the headers."""
        if self.state.draining:
            raise ShuttingDown
        deadline = request.state.started_at + self.service.time_limit(timeout)
        result = await self.service.predict(models, items, options, deadline)
        for name in models:
            self.metrics.items.labels(name).inc(len(items))
        request.state.log_fields.update(items=len(items), models=len(models), tokens=result["tokens"])
        return result
