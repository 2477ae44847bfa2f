"""The file from which an interrupted training resumes."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bertvision import distributed
from bertvision.errors import BertVisionError
from bertvision.files import file_lock, load_tensors, save_tensors
from bertvision.training.train_state import LoopState, TrainState, with_prefix

MIN_SECONDS = 20.0  # between two saves
MAX_SHARE = 0.02  # of the time spent on saving


class Checkpointer:
    """Saves the state of training to one file at intervals, and restores it.

    Args:
        path: The file. It is written atomically, and removed by `remove` when training has ended.
        fingerprint: Names the training run. The state of another run is refused.
    """

    def __init__(self, path: Path, fingerprint: str = ""):
        self.path = path
        self.fingerprint = fingerprint
        self._last_save = time.monotonic()
        self._cost = 0.0

    @contextmanager
    def locked(self) -> Iterator["Checkpointer"]:
        """Hold the lock of the file, so that no other process trains the same models."""
        if distributed.is_main_process():
            with file_lock(self.path, wait=False):
                yield self
        else:
            yield self
        distributed.barrier()

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)

    def restore(self, train_states: Mapping[str, TrainState], loop_state: LoopState, first_pending: float) -> None:
        """Restore a saved state, unless it is later than `first_pending`, the first step still to be reported."""
        if not distributed.broadcast_decision(self.path.exists()):
            return
        try:
            tensors, metadata = load_tensors(self.path, "saved training state")
            state = json.loads(metadata["state"])
        except (BertVisionError, KeyError, ValueError) as error:
            raise BertVisionError(f"{error} Delete {self.path} to start this training from the beginning.") from error
        if state["fingerprint"] != self.fingerprint or set(state["train_states"]) != set(train_states):
            raise BertVisionError(
                f"{self.path} holds the state of another training run. Delete the file to start from the beginning, "
                "or use the settings of that run."
            )
        if first_pending <= state["loop"]["step"]:
            return
        for name, train_state in train_states.items():
            train_state.load_state_dict(with_prefix(tensors, f"{name}//"), state["train_states"][name])
        vars(loop_state).update(state["loop"])

    def save_if_due(self, train_states: Mapping[str, TrainState], loop_state: LoopState) -> bool:
        """Save if the last save is long enough ago, and return whether it was. Slow disks are written to less often."""
        began = time.monotonic()
        if began - self._last_save <= max(MIN_SECONDS, self._cost / MAX_SHARE) or not distributed.is_main_process():
            return False
        self.save(train_states, loop_state)
        self._last_save = time.monotonic()
        self._cost = self._last_save - began
        loop_state.saving_seconds += self._cost
        return True

    def save(self, train_states: Mapping[str, TrainState], loop_state: LoopState) -> None:
        """Write the file."""
        tensors, values = {}, {}
        for name, train_state in train_states.items():
            own_tensors, values[name] = train_state.state_dict()
            tensors |= {f"{name}//{key}": value for key, value in own_tensors.items()}
        state = {"fingerprint": self.fingerprint, "loop": loop_state.to_dict(), "train_states": values}
        save_tensors(self.path, tensors, {"state": json.dumps(state)})
