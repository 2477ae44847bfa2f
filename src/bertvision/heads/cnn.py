"""Convolutions over hidden states seen as images: 1xN along the width of each token alone, NxN over tokens too.

(B, C, T, W), mask (B, T) -> (B, T, F). The token axis is kept: a span head that shrinks it cannot learn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class EachToken(nn.Module):
    """Apply a network to every real token alone: padding is neither computed nor seen by batch norm."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network  # (N, C, W) -> (N, F)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        tokens = x.movedim(1, 2)
        if x.is_meta or torch.compiler.is_exporting():  # no values to select by: compute padding too, and blank it
            every = self.network(tokens.flatten(0, 1))
            return every.reshape(*mask.shape, every.shape[-1]) * mask.unsqueeze(-1)
        real = self.network(tokens[mask])
        out = real.new_zeros(*mask.shape, real.shape[-1])
        out[mask] = real
        return out


def cnn_1xn(
    channels: int,
    filters: Sequence[int] = (160, 224, 96),
    *,
    kernel: int = 5,
    dropout: float = 0.0,
    dilated: bool = False,
) -> EachToken:
    """Three convolutions along the width; halving it each time, or dilated. (B, C, T, W) -> (B, T, F * W')"""
    steps: list[nn.Module] = []
    for depth, (one, other) in enumerate(zip([channels, *filters], filters, strict=False)):
        dilation = 2**depth if dilated else 1
        stride = 1 if dilated and depth else 2
        padding = dilation * (kernel // 2)
        steps += [nn.Conv1d(one, other, kernel, stride=stride, padding=padding, dilation=dilation), nn.GELU()]
        if dropout:
            steps.append(nn.Dropout(dropout))
    return EachToken(nn.Sequential(*steps, nn.Flatten()))


class Image(nn.Module):
    """Run convolutions over tokens and width, blanking padding before each, then lay the width out flat."""

    mixes_tokens = True

    def __init__(self, *steps: nn.Module):
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, None, :, None]
        for step in self.steps:
            x = step(x * real)  # what a kernel leaves in the padding would come back through the next one
        return x.movedim(1, 2).flatten(start_dim=2)


def cnn_nxn(channels: int, filters: Sequence[int] = (64, 160, 297)) -> Image:
    """Three convolutions over neighbouring tokens and width, 7x7, 5x5, 3x3, halving the width each time."""
    steps = [
        nn.Sequential(nn.Conv2d(one, other, kernel, stride=(1, 2), padding=kernel // 2), nn.GELU())
        for one, other, kernel in zip([channels, *filters], filters, (7, 5, 3), strict=False)
    ]
    return Image(*steps)
