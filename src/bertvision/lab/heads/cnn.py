"""Convolutions over hidden states as images: 1xN along the width of each token, NxN over neighbouring tokens too.

(B, C, T, W), mask (B, T) -> (B, T, F). The token axis keeps its length, because span heads need logits for each token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class TokenwiseNetwork(nn.Module):
    """Apply a network to each real token separately. Padding does not influence batch norm."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network  # (N, C, W) -> (N, F)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        tokens = x.movedim(1, 2)
        if x.is_meta or torch.compiler.is_exporting():  # the mask has no values here: compute padding, then zero it
            features = self.network(tokens.flatten(0, 1))
            return features.reshape(*mask.shape, features.shape[-1]) * mask.unsqueeze(-1)
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
) -> TokenwiseNetwork:
    """Build convolutions along the width that halve it each time, or are dilated. (B, C, T, W) -> (B, T, F * W')"""
    steps: list[nn.Module] = []
    for depth, (inputs, outputs) in enumerate(zip([channels, *filters], filters, strict=False)):
        dilation = 2**depth if dilated else 1
        stride = 1 if dilated and depth else 2
        padding = dilation * (kernel // 2)
        steps += [nn.Conv1d(inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation), nn.GELU()]
        if dropout:
            steps.append(nn.Dropout(dropout))
    return TokenwiseNetwork(nn.Sequential(*steps, nn.Flatten()))


class ImageNetwork(nn.Module):
    """Apply convolutions over tokens and width, then flatten channels and width. (B, C, T, W) -> (B, T, F)"""

    mixes_tokens = True

    def __init__(self, *steps: nn.Module):
        super().__init__()
        self.steps: nn.ModuleList = nn.ModuleList(steps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[:, None, :, None]
        for step in self.steps:
            x = step(x * real)  # each convolution writes into the padding, which the next one would read
        return x.movedim(1, 2).flatten(start_dim=2)


def cnn_nxn(channels: int, filters: Sequence[int] = (64, 160, 297)) -> ImageNetwork:
    """Build convolutions over tokens and width, 7x7, 5x5 and 3x3, which halve the width each time."""
    steps = [
        nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride=(1, 2), padding=kernel // 2), nn.GELU())
        for inputs, outputs, kernel in zip([channels, *filters], filters, (7, 5, 3), strict=False)
    ]
    return ImageNetwork(*steps)
