"""The data types that modules exchange.

Axes: B examples of a batch, L layers (embedding output first), T tokens, W hidden size, F features, C outputs.
Only a `Batch` is padded.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class StateView:
    """Which hidden states are read. Only these are computed, stored and loaded.

    The channels (axis L) are the bi-encoded layers, then the cross-encoded layers, then the pooler output.
    """

    cross_layers: tuple[int, ...] = ()
    """Layers of the cross-encoding, which reads a pair as one sequence, in rising order. 0 is the embedding output."""
    bi_layers: tuple[int, ...] = ()
    """Layers of the bi-encoding, which reads each text of a pair separately, in rising order."""
    pooler_output: bool = False
    """Whether the last channel is BERT's pooler output: at token 0, zeros elsewhere."""
    first_token_only: bool = False
    """Whether only the first token, [CLS], is kept."""
    num_layers: int = field(default=0, compare=False)
    """Layers of the encoder, embedding output included. The manifest of a store needs it to number `bi_layers`."""

    @property
    def num_channels(self) -> int:
        """The size of axis L."""
        return len(self.bi_layers) + len(self.cross_layers) + self.pooler_output

    def positions(self, part: "StateView") -> list[int]:
        """Return the positions of the channels of `part` on axis L of this view."""
        available = self._channels()
        return [available.index(channel) for channel in part._channels()]

    def _channels(self) -> list[str]:
        layers = [*(f"bi {layer}" for layer in self.bi_layers), *(f"cross {layer}" for layer in self.cross_layers)]
        return [*layers, "pooler_output"] if self.pooler_output else layers


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """The input and output dimensions a head is built for."""

    num_layers: int
    """Layers of the encoder, embedding output included."""
    max_tokens: int
    """The largest number of tokens of an input. Only heads that flatten the tokens depend on it."""
    hidden_size: int
    num_outputs: int
    per_token: bool
    """True: logits are (B, T, C), as for spans. False: (B, C), as for whole texts."""
    pooler_output: bool = False
    """Whether BERT's pooler output is available as one more channel after the layers."""
    bi_encoding: bool = False
    """Whether the layers of the bi-encoding are available, before those of the cross-encoding."""

    @property
    def view(self) -> StateView:
        """All hidden states that are available."""
        layers = tuple(range(self.num_layers))
        return StateView(
            cross_layers=layers,
            bi_layers=layers if self.bi_encoding else (),
            pooler_output=self.pooler_output,
            num_layers=self.num_layers,
        )

    @property
    def num_channels(self) -> int:
        """The size of axis L."""
        return self.view.num_channels


@dataclass(frozen=True, kw_only=True)
class Features:
    """A tokenized split: one row per window of text, so that a long passage has several rows."""

    ids: list[str]
    """Unique per row."""
    tokens: dict[str, np.ndarray]
    """The inputs of the encoder (`input_ids`, ...), each (sum of lengths,): rows concatenated without padding."""
    offsets: np.ndarray
    """(N + 1,): row i is `tokens[name][offsets[i]:offsets[i + 1]]`."""
    labels: np.ndarray
    """(N,) int64 classes or float32 scores; (N, 2) start and end tokens for spans; (N, C) for several labels; (N, T)
    tags."""
    example_ids: list[str]
    """The example that each row is made of."""
    second_text_starts: np.ndarray | None = None
    """(N,) the position of the first token of each pair's second text. None if the rows are single texts."""
    windows: list[Any] | None = None
    """For tasks with spans or words: the part of the text that each row covers."""
    weights: np.ndarray | None = None
    """float32 (N,): the weight of each row in the training loss. None: all are 1."""
    truncated: np.ndarray | None = None
    """bool (N,): the rows whose text was longer than `max_tokens` and was cut. None: no row was."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row. (N,)"""
        return np.diff(self.offsets)

    def with_weights(self, weights: Mapping[str, float]) -> "Features":
        """Return the features with the weights of their examples, by example id."""
        return replace(self, weights=np.array([weights[id] for id in self.example_ids], dtype=np.float32))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch of tokens or hidden states."""

    rows: np.ndarray
    """(B,) positions of the rows in their Features."""
    inputs: dict[str, Tensor] | Tensor
    """The inputs of the encoder, each (B, T), or hidden states (B, L, T, W)."""
    attention_mask: Tensor
    """bool (B, T): True for tokens, False for padding."""
    labels: Tensor
    """(B,), or (B, 2) for spans."""
    text_ids: Tensor | None = None
    """uint8 (B, T): 0 for the tokens of a pair's first text and padding, 1 for those of its second text. None for
    single texts."""
    weights: Tensor | None = None
    """float32 (B,): the weight of each row in the loss. 2 counts as two such rows, 0 as none. None: all are 1."""

    def __post_init__(self) -> None:
        require_bool(self.attention_mask)

    @property
    def total_weight(self) -> float:
        """The sum of the weights; the number of rows if there are none."""
        return len(self.labels) if self.weights is None else float(self.weights.sum())

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with all tensors on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def rows_between(self, start: int, end: int) -> "Batch":
        """Return the rows from `start` to before `end` as a batch."""
        return replace(self._map(lambda tensor: tensor[start:end]), rows=self.rows[start:end])

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply a function to every tensor."""
        inputs = self.inputs
        return replace(
            self,
            inputs={name: function(x) for name, x in inputs.items()} if isinstance(inputs, dict) else function(inputs),
            attention_mask=function(self.attention_mask),
            labels=function(self.labels),
            text_ids=None if self.text_ids is None else function(self.text_ids),
            weights=None if self.weights is None else function(self.weights),
        )


def require_bool(attention_mask: Tensor) -> None:
    """Raise a TypeError unless an attention mask is boolean."""
    if attention_mask.dtype != torch.bool:
        raise TypeError(
            f"An attention mask must be of type torch.bool, got {attention_mask.dtype}. Convert it with "
            "`attention_mask.bool()`, and give the texts of pairs as `text_ids`."
        )


def call_head(head: nn.Module, inputs: Any, attention_mask: Tensor, text_ids: Tensor | None = None) -> Any:
    """Call a head, or a model with a head, with `text_ids` only if its `forward` takes them."""
    if text_ids is None or not _takes_text_ids(type(head)):
        return head(inputs, attention_mask)
    return head(inputs, attention_mask, text_ids=text_ids)


@cache
def _takes_text_ids(kind: type[nn.Module]) -> bool:
    return "text_ids" in inspect.signature(kind.forward).parameters


class Batches(Protocol):
    """The batches of a split, in an order that depends only on the number of the epoch."""

    rows: int
    """Examples in an epoch."""

    @property
    def plan(self) -> Callable[[int], list[np.ndarray]]:
        """A function from the number of an epoch to the rows of its batches."""
        ...

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on. Batches before it are not computed."""
        ...

    def read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The logits of the rows of a split, by row id."""

    ids: list[str]
    logits: np.ndarray
    """float32 (N, C); for per-token tasks (sum of lengths, C), the tokens of all rows concatenated."""
    offsets: np.ndarray | None = None
    """(N + 1,) for per-token tasks, as in Features; None for others."""

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, index: int) -> np.ndarray:
        """Return the logits of one row: (C,), or (T, C) for per-token tasks."""
        if self.offsets is None:
            return self.logits[index]
        return self.logits[self.offsets[index] : self.offsets[index + 1]]
