"""Hidden states computed by an encoder each time they are read."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision import cpu_optimizations
from bertvision.cpu_optimizations.two_readers import map_two_at_a_time
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.token_batches import TokenBatches
from bertvision.types import Batch, StateView


class ComputedStates:
    """The hidden states of a frozen encoder, computed each time they are read."""

    def __init__(
        self,
        encoder: Any,
        tokens: TokenBatches,
        view: StateView,
        *,
        pool: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | None = None,
    ):
        """Prepare to read; nothing is computed yet.

        Args:
            encoder: an `Encoder`, or an object with its `forward`, `packed` and `num_layers`.
            tokens: the tokens, in the order in which states are read.
            view: the hidden states to compute.
            pool: computes the pooler output (B, W) from the last layer (B, T, W), if the view holds it.
            device: where the encoder is; the CPU by default.
        """
        self.encoder = encoder
        self.tokens = tokens
        self.view = view
        self.rows: int = tokens.rows
        self.pool = pool
        self.device: torch.device = device or torch.device("cpu")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def plan(self) -> BatchPlan:
        """The order of the rows."""
        return self.tokens.plan

    def over(self, tokens: TokenBatches) -> "ComputedStates":
        """Return the same hidden states in the order of `tokens`."""
        return ComputedStates(self.encoder, tokens, self.view, pool=self.pool, device=self.device)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the hidden states of epoch `number` from batch `start` on."""
        yield from self.read(self.tokens.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the hidden states of these rows, batch by batch."""
        if self.device.type != "cpu" or not cpu_optimizations.enabled():
            yield from map(self._states, batches)
            return
        with self.encoder.packed():
            yield from map_two_at_a_time(self._states, batches)

    def _states(self, rows: np.ndarray) -> Batch:
        """Compute one batch. Not inside `read`, since a yield in no_grad disables the caller's gradients."""
        batch = self.tokens.collate(rows).to(self.device)
        with torch.no_grad():  # not inference_mode, since heads are trained on the result
            hidden = self._encode(batch)
        if not self.view.first_token_only:
            return replace(batch, inputs=hidden)
        text_ids = None if batch.text_ids is None else batch.text_ids[:, :1]
        return replace(batch, inputs=hidden, attention_mask=batch.attention_mask[:, :1], text_ids=text_ids)

    def _encode(self, batch: Batch) -> Tensor:
        """Return the hidden states of the view."""
        view, cross_layers = self.view, self.view.cross_layers
        if view.pooler_output:  # it is computed from the last layer, which the view need not hold
            cross_layers = tuple(sorted({*cross_layers, self.encoder.num_layers - 1}))
        states = self.encoder(
            batch.inputs, batch.attention_mask, batch.text_ids, cross_layers=cross_layers, bi_layers=view.bi_layers
        )
        hidden = states[:, : len(view.bi_layers) + len(view.cross_layers)]
        hidden = hidden[:, :, :1] if view.first_token_only else hidden
        if view.pooler_output:
            assert self.pool is not None, "a view with the pooler output needs the pooler"
            channel = torch.zeros_like(hidden[:, :1])
            channel[:, 0, 0] = self.pool(states[:, -1])
            hidden = torch.cat([hidden, channel], dim=1)
        return hidden
