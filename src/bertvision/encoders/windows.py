"""Windows: rows that are longer than an encoder reads are encoded in pieces, and their states are joined again."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def encode_in_windows(model: Any, tokens: dict[str, Tensor], mask: Tensor, size: int, **options: Any) -> Any:
    """Call a model on each window of `size` tokens by itself; return its output with the states of whole rows.

    tokens and mask (B, T) -> states (B, T, W). Windows without tokens are not encoded.
    """
    rows, length = mask.shape
    count = -(-length // size)

    def cut(values: Tensor) -> Tensor:
        padding = values.new_zeros(rows, count * size - length)
        return torch.cat([values, padding], dim=1).reshape(rows * count, size)

    windows = cut(mask)
    used = windows.any(dim=1)
    inputs = {name: cut(values)[used] for name, values in tokens.items()}
    output = model(**inputs, attention_mask=windows[used], **options)

    def join(states: Tensor) -> Tensor:
        joined = states.new_zeros(rows * count, size, states.shape[-1])
        joined[used] = states
        return joined.reshape(rows, count * size, -1)[:, :length]

    hidden = getattr(output, "hidden_states", None)
    return SimpleNamespace(
        hidden_states=None if hidden is None else tuple(map(join, hidden)),
        last_hidden_state=join(output.last_hidden_state),
    )
