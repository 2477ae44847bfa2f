"""Hidden states computed as they are asked for."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bertvision.activations.tokens import Tokens
from bertvision.types import Batch


class Streamed:
    """Run the frozen backbone over batches of tokens, each time they are read."""

    def __init__(
        self,
        backbone: Callable[..., Tensor],
        tokens: Tokens,
        *,
        pool: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ):
        """With `pool`, BERT's pooled [CLS] becomes one more channel, at token 0."""
        self.backbone = backbone
        self.tokens = tokens
        self.rows = tokens.rows
        self.pool = pool
        self.device = device or torch.device("cpu")
        self.autocast = autocast

    def __len__(self) -> int:
        return len(self.tokens)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the hidden states of epoch `number` from batch `start` on."""
        for batch in self.tokens.epoch(number, start):
            batch = batch.to(self.device)
            with torch.no_grad(), self.autocast():  # not inference_mode: a head must back-propagate from these
                hidden = self.backbone(batch.inputs, batch.mask)
                if self.pool is not None:
                    channel = torch.zeros_like(hidden[:, :1])
                    channel[:, 0, 0] = self.pool(hidden[:, -1])
                    hidden = torch.cat([hidden, channel], dim=1)
            # Outside no_grad: a yield inside would switch off the caller's gradients while it works.
            yield replace(batch, inputs=hidden)
