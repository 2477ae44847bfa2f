"""Fine-tuning of one encoder on several tasks: mixed batches, and a model with one head per task."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.encoders import Encoder
from bertvision.states import TokenBatches
from bertvision.types import Batch

TASK = "task"
"""The name of the input that holds the number of a batch's task."""


class MixedBatches:
    """The batches of several tasks in random order. The order depends on the seed and the epoch only.

    The rows of all tasks are numbered consecutively, task after task.
    """

    def __init__(self, parts: Sequence[TokenBatches], seed: int):
        self.parts = parts
        self.seed = seed
        self.starts = np.cumsum([0, *(part.rows for part in parts)])
        self.rows: int = int(self.starts[-1])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def plan(self, number: int) -> list[np.ndarray]:
        """Return the rows of every batch of epoch `number`. A batch has rows of one task."""
        batches = [
            rows + start for part, start in zip(self.parts, self.starts, strict=False) for rows in part.plan(number)
        ]
        order = np.random.default_rng([self.seed, number]).permutation(len(batches))
        return [batches[index] for index in order]

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        for rows in batches:
            task = int(np.searchsorted(self.starts, rows[0], side="right")) - 1
            batch = self.parts[task].collate(rows - self.starts[task])
            assert isinstance(batch.inputs, dict)
            yield replace(batch, rows=rows, inputs=batch.inputs | {TASK: torch.full((len(rows),), task)})


class MultiTaskModel(nn.Module):
    """An encoder with BERT's own kind of head for each task."""

    def __init__(self, encoder: Encoder, heads: Sequence[nn.Module]):
        super().__init__()
        self.encoder = encoder
        self.heads: nn.ModuleList = nn.ModuleList(heads)
        self.current_task: int = 0
        """The task of the last batch, whose loss is computed next."""

    def forward(self, tokens: dict[str, Tensor], attention_mask: Tensor) -> Tensor:
        """Return the logits of a batch of one task."""
        self.current_task = int(tokens[TASK][0])
        inputs = {name: values for name, values in tokens.items() if name != TASK}
        return self.heads[self.current_task](self.encoder.last(inputs, attention_mask), attention_mask)
