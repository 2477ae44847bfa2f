"""Hidden states computed once and held in memory, for splits small enough."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bertvision.activations.streamed import Streamed
from bertvision.activations.tokens import Tokens
from bertvision.errors import BertVisionError, lookup
from bertvision.progress import bar
from bertvision.types import Batch, Batches

MEMORY = 2 * 1024**3
"""Bytes of states a split may take: on two cores, about as many as are computed again in a minute after a crash."""
MODES = ("auto", "memory", "stream")


class Kept:
    """Ragged states of every row, without padding; batches are cut from them."""

    def __init__(self, states: Tensor, tokens: Tokens):
        """`states`: the tokens of all rows end to end. (sum of lengths, L, W)"""
        self.states = states
        self.tokens = tokens
        self.rows = tokens.rows

    def __len__(self) -> int:
        return len(self.tokens)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the hidden states of epoch `number` from batch `start` on."""
        offsets = torch.from_numpy(self.tokens.features.offsets)
        for rows in self.tokens.plan(number)[start:]:
            first, last = offsets[rows], offsets[rows + 1]
            columns = torch.arange(int((last - first).max()))
            mask = columns < (last - first)[:, None]
            where = torch.where(mask, first[:, None] + columns, 0)
            hidden = self.states[where].movedim(2, 1)  # (B, T, L, W) -> (B, L, T, W), a view
            labels = torch.from_numpy(self.tokens.features.labels[rows])
            yield Batch(rows=rows, inputs=hidden, mask=mask, labels=labels)


def keep(stream: Streamed, label: str = "read states") -> Tensor:
    """Run the backbone over every row once. -> (sum of lengths, L, W)"""
    offsets = stream.tokens.features.offsets
    states: Tensor | None = None
    with bar(label, total=stream.rows) as advance:
        # The same batches each time, so that a resumed run computes the same states to the last bit.
        for batch in stream.epoch(0):
            hidden, mask = batch.inputs, batch.mask.cpu()
            assert isinstance(hidden, Tensor)
            hidden = hidden.movedim(1, 2).float().cpu()
            if states is None:
                states = torch.empty(int(offsets[-1]), *hidden.shape[2:])
            first = torch.from_numpy(offsets[batch.rows])
            where = first[:, None] + torch.arange(mask.shape[1])
            states[where[mask]] = hidden[mask]
            advance(len(batch.rows))
    assert states is not None, "a split has at least one row"
    return states


def size(tokens: Tokens, layers: int, width: int) -> int:
    """Bytes that the states of a split take in memory."""
    return int(tokens.features.offsets[-1]) * layers * width * 4


def choose(mode: str, ordered: Streamed, tokens: Tokens, layers: int, width: int) -> Batches:
    """Return the states of `tokens`: kept in memory if `mode` says so or they are few, else streamed.

    `ordered` streams the same rows in a fixed order; `tokens` gives the order in which they are wanted.
    """
    lookup(dict.fromkeys(MODES), mode, "way to get activations")
    needed = size(tokens, layers, width)
    if mode == "memory" and needed > (free := _free_memory()):
        raise BertVisionError(
            f"The states take {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB of memory are free. "
            "Use --set activations=stream."
        )
    if mode == "memory" or (mode == "auto" and needed <= min(MEMORY, _free_memory() // 2)):
        return Kept(keep(ordered), tokens)
    return Streamed(ordered.backbone, tokens, pool=ordered.pool, device=ordered.device, autocast=ordered.autocast)


def _free_memory() -> int:
    """Bytes a process may still take."""
    import psutil

    return int(psutil.virtual_memory().available)
