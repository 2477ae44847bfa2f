"""Batches of tokens with little padding."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from bertvision.states.batch_plan import BatchPlan
from bertvision.types import Batch, Features


def build_masks(lengths: np.ndarray, second_text_starts: np.ndarray | None) -> tuple[Tensor, Tensor | None]:
    """Return the attention mask, bool (B, T), and for pairs the text ids, uint8 (B, T), of rows of these lengths."""
    positions = np.arange(lengths.max())
    attention_mask = positions < lengths[:, None]
    if second_text_starts is None:
        return torch.from_numpy(attention_mask), None
    text_ids = (attention_mask & (positions >= second_text_starts[:, None])).astype(np.uint8)
    return torch.from_numpy(attention_mask), torch.from_numpy(text_ids)


def batch_weights(weights: np.ndarray | None, rows: np.ndarray) -> Tensor | None:
    """Return the weights of these rows, or None if rows have no weights."""
    return None if weights is None else torch.from_numpy(weights[rows].astype(np.float32))


class TokenBatches:
    """The batches of tokens of a split: rows of similar length, shuffled by seed and epoch."""

    def __init__(
        self,
        features: Features,
        batch_size: int,
        pad_ids: dict[str, int],
        *,
        seed: int | None = None,
        budget: int = 0,
        chosen: np.ndarray | None = None,
    ):
        """Create the batches; `seed`, `budget` and `chosen` are those of `BatchPlan`."""
        self.features = features
        self.rows: int = len(features)
        self.pad_ids = pad_ids
        self.plan: BatchPlan = BatchPlan(features.lengths, batch_size, seed=seed, budget=budget, chosen=chosen)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        for rows in batches:
            yield self.collate(rows)

    def collate(self, rows: np.ndarray) -> Batch:
        """Return a batch of these rows, padded to the longest of them."""
        features = self.features
        starts, lengths = features.offsets[rows], features.lengths[rows]
        second_text_starts = features.second_text_starts
        attention_mask, text_ids = build_masks(
            lengths, None if second_text_starts is None else second_text_starts[rows]
        )
        is_token = attention_mask.numpy()
        positions = np.where(is_token, starts[:, None] + np.arange(is_token.shape[1]), 0)
        inputs = {}
        for name, flat in features.tokens.items():
            padded = np.where(is_token, flat[positions], self.pad_ids.get(name, 0))
            inputs[name] = torch.from_numpy(padded.astype(np.int64))
        labels, weights = torch.from_numpy(features.labels[rows]), batch_weights(features.weights, rows)
        return Batch(
            rows=rows, inputs=inputs, attention_mask=attention_mask, labels=labels, text_ids=text_ids, weights=weights
        )
