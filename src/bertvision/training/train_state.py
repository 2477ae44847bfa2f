"""One model in training, and the file from which a run that was killed goes on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.errors import BertVisionError
from bertvision.files import load_tensors, save_tensors
from bertvision.training.config import TrainingConfig


@dataclass(kw_only=True)
class TrainState:
    """One model in training, with everything that a resumed run needs to go on as if nothing had happened."""

    model: nn.Module
    optim: TrainingConfig
    optimizer: torch.optim.Optimizer
    scaler: Any
    seconds: float = 0.0
    """Its own time."""
    shared_seconds: float = 0.0
    """The time of data and validation, as if it had trained alone; set when it stops."""
    losses: list[float] = field(default_factory=list)
    """Mean training loss of each finished epoch."""
    validation_scores: list[list[float]] = field(default_factory=list)
    """Validation after each epoch."""
    best_epoch: int = 0
    """Counted from 1; 0: not validated."""
    best: dict[str, Tensor] = field(default_factory=dict)
    running: float = 0.0
    """Sum of the losses of the current epoch."""
    count: int = 0
    stopped: str = ""
    """Why it no longer trains; empty while it does."""
    failed: str = ""
    """Why it must not be used: its loss is not a number."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain values that `restore` takes."""
        tensors = {f"model/{key}": value for key, value in self.model.state_dict().items()}
        tensors |= {f"best/{key}": value for key, value in self.best.items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        kept = (
            "seconds",
            "shared_seconds",
            "losses",
            "validation_scores",
            "best_epoch",
            "running",
            "count",
            "stopped",
            "failed",
        )
        return tensors, {name: getattr(self, name) for name in kept} | {"scaler": self.scaler.state_dict()}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        self.model.load_state_dict(_under(tensors, "model/"))
        self.best = _under(tensors, "best/")
        parameters = dict(self.model.named_parameters())
        for key, value in tensors.items():
            if key.startswith("optimizer/"):
                _, kind, name = key.split("/", 2)
                # The step count stays where AdamW wants it; moments live with their parameter.
                here = value if kind == "step" else value.to(parameters[name].device)
                self.optimizer.state[parameters[name]][kind] = here
        plain = dict(values)
        self.scaler.load_state_dict(plain.pop("scaler"))
        for name, value in plain.items():
            setattr(self, name, value)


def save(path: Path, fingerprint: str, train_states: Mapping[str, TrainState], progress: dict[str, Any]) -> None:
    tensors, values = {}, {}
    for name, train_state in train_states.items():
        own, values[name] = train_state.state()
        tensors |= {f"{name}//{key}": value for key, value in own.items()}
    state = {"fingerprint": fingerprint, "progress": progress, "train_states": values}
    save_tensors(path, tensors, {"state": json.dumps(state)})


def load(
    path: Path,
    fingerprint: str,
    train_states: Mapping[str, TrainState],
    progress: dict[str, Any],
    pauses: Mapping[int, list[float]],
) -> None:
    """Take up a saved state if it is this run's and no point still to be saved lies before it."""
    tensors, metadata = load_tensors(path, "saved training state")
    state = json.loads(metadata["state"])
    if state["fingerprint"] != fingerprint or set(state["train_states"]) != set(train_states):
        raise BertVisionError(
            f"{path} holds the state of another training run. Delete it to start anew, or use the settings it had."
        )
    if any(step <= state["progress"]["step"] for step in pauses):
        return
    for name, train_state in train_states.items():
        train_state.restore(_under(tensors, f"{name}//"), state["train_states"][name])
    progress.update(state["progress"])


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
