"""Encoders that read long rows in windows: each window by itself, and the hidden states are joined again."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.encoders import Encoder

WINDOW_TOKENS = "window_tokens"
"""The field of a task, and of its description, that holds the length of the windows."""


class WindowedEncoder(Encoder):
    """An encoder that reads rows of more than `window_tokens` tokens in windows. It shares the weights of `encoder`.

    A head sees the hidden states of all tokens of a row, so its token pooling works over all windows.
    """

    def __init__(self, encoder: Encoder, window_tokens: int):
        nn.Module.__init__(self)
        vars(self).update(vars(encoder))  # the modules are shared, not copied
        self.window_tokens = window_tokens

    def last(self, tokens: dict[str, Tensor], attention_mask: Tensor) -> Tensor:
        """Return the last layer alone, for fine-tuning. (B, T) -> (B, 1, T, W)"""
        windows = _Windows(attention_mask, self.window_tokens)
        states = super().last(windows.split_all(tokens), windows.mask)
        return windows.join(states.squeeze(1)).unsqueeze(1)

    def _read(self, tokens: dict[str, Tensor], mask: Tensor) -> list[Tensor]:
        """Return the states of each layer, (B, T, W). mask: bool (B, T)"""
        windows = _Windows(mask, self.window_tokens)
        return [windows.join(states) for states in super()._read(windows.split_all(tokens), windows.mask)]


class _Windows:
    """The windows of a batch of rows. Windows without tokens are not encoded."""

    def __init__(self, attention_mask: Tensor, size: int):
        """attention_mask: bool (B, T)"""
        self.rows, self.length = attention_mask.shape
        # An exported graph is the same for all lengths, so there short rows are padded to a window.
        self.size = size if torch.compiler.is_exporting() else min(size, self.length)
        self.count = (self.length + self.size - 1) // self.size
        mask = self._split(attention_mask)
        if torch.compiler.is_exporting():  # all windows are encoded; one without tokens reads its first position
            first = torch.arange(self.size) == 0
            self.used = None
            self.mask = mask | (first & ~mask.any(dim=1, keepdim=True))
        else:
            self.used = mask.any(dim=1)
            self.mask = mask[self.used]

    def split_all(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of the windows, each (windows, size)."""
        split = {name: self._split(values) for name, values in tokens.items()}
        return split if self.used is None else {name: values[self.used] for name, values in split.items()}

    def join(self, states: Tensor) -> Tensor:
        """Return the states of the rows. (windows, size, W) -> (B, T, W)"""
        if self.used is not None:
            joined = states.new_zeros(self.rows * self.count, self.size, states.shape[-1])
            joined[self.used] = states
            states = joined
        return states.reshape(self.rows, self.count * self.size, states.shape[-1])[:, : self.length]

    def _split(self, values: Tensor) -> Tensor:
        """(B, T) -> (B x count, size)"""
        padded = functional.pad(values, (0, self.count * self.size - self.length))
        return padded.reshape(self.rows * self.count, self.size)


def in_windows(encoder: Encoder, task: Any) -> Encoder:
    """Return the encoder as a task reads it: in windows, if the task or its description has a length of windows."""
    size = task.get(WINDOW_TOKENS, 0) if isinstance(task, Mapping) else getattr(task, WINDOW_TOKENS, 0)
    return WindowedEncoder(encoder, size) if size else encoder
