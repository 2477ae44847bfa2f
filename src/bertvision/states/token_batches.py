"""Batches of tokens with little padding."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from bertvision.states.batch_plan import BatchPlan
from bertvision.types import Batch, Features

EVALUATION_ROWS = 64
EVALUATION_TOKENS = {"cpu": 1024}
"""Tokens of a batch, padding included, by device. Larger batches are no faster on a CPU and need more memory."""
EVALUATION_TOKENS_ELSEWHERE = 4096
EVALUATION_BYTES = 128 * 1024**2
"""Hidden states of all layers of a batch."""


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
        """Shuffle if a `seed` is given; else go from long to short, at most `budget` tokens (with padding) a batch.

        With `chosen`, an epoch is these rows alone.
        """
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


def evaluation_batches(features: Features, pad_ids: dict[str, int], token_bytes: int, device: str) -> TokenBatches:
    """Return batches of a split in a fixed order, for prediction.

    Runs are scored on these batches, and scored again on the same ones: in bfloat16 the hidden states of a text depend
    on the batch that it is in.

    Args:
        features: The rows.
        pad_ids: The padding value of each input.
        token_bytes: Bytes that the hidden states of one token take in all layers, as float32.
        device: The type of the device, e.g. "cpu".
    """
    budget = min(EVALUATION_TOKENS.get(device, EVALUATION_TOKENS_ELSEWHERE), EVALUATION_BYTES // token_bytes)
    return TokenBatches(features, EVALUATION_ROWS, pad_ids, budget=budget)
