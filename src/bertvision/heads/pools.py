"""Merge the layers. (B, L, T, A) -> (B, T, F)"""

import torch
from torch import Tensor, nn


class MeanPool(nn.Module):
    """Average the layers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class LearnedPool(nn.Module):
    """Weigh the layers by a learned softmax, after Tenney et al. 2019 (arXiv:1905.05950)."""

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))  # zeros: start as the mean
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.einsum("l,bltw->btw", self.weights.softmax(dim=0), x)


class FlattenLayers(nn.Module):
    """Lay the layers side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(start_dim=2)
