"""Merge the layers. (B, L, T, A), mask (B, T) -> (B, T, F)"""

import torch
from torch import Tensor, nn


class MeanLayers(nn.Module):
    """Average the layers."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.mean(dim=1)


class ScalarMix(nn.Module):
    """Mix the layers with learned softmax weights, after Tenney et al. 2019 (arXiv:1905.05950)."""

    def __init__(self, layers: int):
        super().__init__()
        self.weights: nn.Parameter = nn.Parameter(torch.zeros(layers))  # zeros: the initial mix is the mean
        self.scale: nn.Parameter = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.scale * torch.einsum("l,bltw->btw", self.weights.softmax(dim=0), x)


class ConcatLayers(nn.Module):
    """Concatenate the features of all layers."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(start_dim=2)
