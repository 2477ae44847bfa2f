"""The state of training: of one model, and of the loop."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.training.config import TrainingConfig

STOPPED = "stopped by a callback"
_SAVED = ("seconds", "shared_seconds", "losses", "validation_scores", "best_epoch", "loss_sum", "loss_count")


@dataclass(kw_only=True)
class TrainState:
    """One model in training, with everything that a resumed run needs to continue exactly."""

    model: nn.Module
    config: TrainingConfig
    optimizer: torch.optim.Optimizer
    scaler: Any
    seconds: float = 0.0
    """Time of this model's own steps."""
    shared_seconds: float = 0.0
    """Time of data loading and validation up to the end of this model's training."""
    losses: list[float] = field(default_factory=list)
    """Mean training loss of each finished epoch."""
    validation_scores: list[list[float]] = field(default_factory=list)
    """Validation score after each epoch."""
    best_epoch: int = 0
    """Epoch with the best validation score, counted from 1; 0: not validated yet."""
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    loss_sum: float = 0.0
    """Sum of the losses of the current epoch."""
    loss_count: int = 0
    stopped: str = ""
    """Why training has ended; empty while it goes on."""
    failed: str = ""
    """Why the model cannot be used: its loss became infinite or NaN."""

    @property
    def best_score(self) -> tuple[float, float]:
        """The validation score of the best epoch."""
        score, negated_loss = self.validation_scores[self.best_epoch - 1]
        return score, negated_loss

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the plain values that `load_state_dict` takes."""
        tensors = {f"model/{key}": value for key, value in self.model.state_dict().items()}
        tensors |= {f"best/{key}": value for key, value in self.best_weights.items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        values = {name: getattr(self, name) for name in (*_SAVED, "stopped", "failed")}
        return tensors, values | {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Return to a saved state."""
        self.model.load_state_dict(with_prefix(tensors, "model/"))
        self.best_weights = with_prefix(tensors, "best/")
        parameters = dict(self.model.named_parameters())
        for key, value in tensors.items():
            if key.startswith("optimizer/"):
                _, moment, name = key.split("/", 2)
                # AdamW keeps its step count on the CPU, and the moments on the device of their parameter.
                placed = value if moment == "step" else value.to(parameters[name].device)
                self.optimizer.state[parameters[name]][moment] = placed
        plain = dict(values)
        self.scaler.load_state_dict(plain.pop("scaler"))
        for name, value in plain.items():
            setattr(self, name, value)


@dataclass
class LoopState:
    """The progress of the loop over all models."""

    step: int = 0
    loss_sum: float = 0.0
    """Sum of the losses since the last fraction."""
    loss_count: int = 0
    shared_seconds: float = 0.0
    saving_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
