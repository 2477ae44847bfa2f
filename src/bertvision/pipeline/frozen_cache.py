"""A cache in memory of the encoder that was used last, and of the hidden states of texts.

Estimators use it where the same frozen encoder reads the same texts again: the folds of a cross-validation, the
candidates of a grid search, `partial_fit` and predictions. `FrozenCache(max_bytes=0)` keeps nothing.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bertvision.computed_states import ComputedStates
from bertvision.encoders import LoadedEncoder, weights_hash
from bertvision.progress import bar
from bertvision.types import Features, StateView

MAX_BYTES = 512 * 1024**2


@dataclass(frozen=True)
class CachedEncoder:
    """An encoder that is not changed, and the hash of its weights."""

    loaded: LoadedEncoder
    weights_hash: str


class FrozenCache:
    """The encoder that was used last, and the hidden states that were used last. Threads may share a cache."""

    def __init__(self, max_bytes: int = MAX_BYTES):
        """Create an empty cache that holds at most `max_bytes` of hidden states."""
        self.max_bytes = max_bytes
        self.rows_computed: int = 0
        """How many rows an encoder has read so far."""
        self._encoder: tuple[Any, CachedEncoder] | None = None
        self._states: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def encoder(self, key: Any, load: Callable[[], LoadedEncoder]) -> CachedEncoder:
        """Return the encoder of a key, frozen. It is loaded unless it was the last one that was used."""
        with self._lock:
            if self._encoder is None or self._encoder[0] != key:
                loaded = load()
                loaded.encoder.eval().requires_grad_(False)
                cached = CachedEncoder(loaded, weights_hash(loaded.encoder))
                if not self.max_bytes:
                    return cached
                self._encoder = (key, cached)
            return self._encoder[1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._encoder, self._bytes, self.rows_computed = None, 0, 0
            self._states.clear()

    @property
    def last_encoder(self) -> CachedEncoder | None:
        """The encoder that was used last."""
        return self._encoder[1] if self._encoder else None

    def read(self, source: ComputedStates, identity: str) -> list[Tensor]:
        """Return the hidden states, float32 (L, T, W), of every row. Rows that are not in the cache are computed.

        Args:
            source: The encoder and the rows, in a fixed order of batches. Its view is made by `full_view`.
            identity: All that the hidden states of a text depend on, apart from its tokens and the view.
        """
        keys = row_keys(source.tokens.features, f"{identity} {bool(source.view.bi_layers)}")
        with self._lock:
            states = {row: self._states[key] for row, key in enumerate(keys) if key in self._states}
            for row in states:
                self._states.move_to_end(keys[row])
        missing = np.array([row not in states for row in range(len(keys))])
        batches = [rows[missing[rows]] for rows in source.plan(0) if missing[rows].any()]
        with bar("read states", total=int(missing.sum())) as advance:
            for batch in source.read(batches):
                hidden, lengths = batch.inputs, batch.attention_mask.sum(dim=1).tolist()
                assert isinstance(hidden, Tensor)
                for row, state, length in zip(batch.rows.tolist(), hidden.float().cpu(), lengths, strict=True):
                    states[row] = state[:, :length].clone()
                advance(len(batch.rows))
        self._add({keys[row]: states[row] for row in np.flatnonzero(missing).tolist()})
        return [states[row] for row in range(len(keys))]

    def _add(self, states: dict[bytes, Tensor]) -> None:
        """Add hidden states, and remove those that were not used for the longest time."""
        with self._lock:
            self.rows_computed += len(states)
            for key, state in states.items():
                if key not in self._states:
                    self._states[key] = state
                    self._bytes += state.nbytes
            while self._bytes > self.max_bytes:
                _, removed = self._states.popitem(last=False)
                self._bytes -= removed.nbytes


def full_view(num_layers: int, *, bi_encoding: bool) -> StateView:
    """Return the view of all layers, so that heads which read different layers share the hidden states."""
    layers = tuple(range(num_layers))
    return StateView(cross_layers=layers, bi_layers=layers if bi_encoding else (), num_layers=num_layers)


def row_keys(features: Features, identity: str) -> list[bytes]:
    """Return a hash of the tokens of each row."""
    keys = []
    for row in range(len(features)):
        digest = hashlib.sha256(identity.encode())
        part = slice(features.offsets[row], features.offsets[row + 1])
        for name in sorted(features.tokens):
            digest.update(features.tokens[name][part].tobytes())
        if features.second_text_starts is not None:
            digest.update(int(features.second_text_starts[row]).to_bytes(8, "little"))
        keys.append(digest.digest())
    return keys
