"""The history of a fit: what was done, after how many seconds, with which validation score."""

import time
from typing import Any

from bertvision.training import Callback
from bertvision.training.callbacks import CheckpointEvent, EvaluateEvent


class HistoryRecorder(Callback):
    """Records validation scores and fine-tuning checkpoints. The result is the `history_` of an estimator."""

    def __init__(self) -> None:
        self.began: float = time.perf_counter()
        self.entries: list[dict[str, Any]] = []

    def add(self, action: str, **values: Any) -> None:
        """Record an action."""
        self.entries.append({"seconds": round(time.perf_counter() - self.began, 3), "action": action, **values})

    def on_evaluate(self, event: EvaluateEvent) -> None:
        """Record the best validation score of the models that were evaluated."""
        if event.validation_scores:
            model, (score, _) = max(event.validation_scores.items(), key=lambda item: item[1])
            self.add(
                "validated heads",
                stage=event.stage,
                epoch=event.epoch,
                model=model.rpartition("@")[0] or model,
                validation_score=score,
            )

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """Record that a fine-tuning checkpoint was saved."""
        if event.stage == "finetune":
            self.add("saved the encoder", stage=event.stage, epoch=event.epoch)
