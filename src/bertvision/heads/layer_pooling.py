"""Merge the layers. (B, L, T, A), mask (B, T) -> (B, T, F)"""

import torch
from torch import Tensor, nn


class MeanLayers(nn.Module):
    """Average the layers."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.mean(dim=1)


class ScalarMix(nn.Module):
    """Weigh the layers by a learned softmax, after Tenney et al. 2019 (arXiv:1905.05950)."""

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))  # zeros: start as the mean
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.scale * torch.einsum("l,bltw->btw", self.weights.softmax(dim=0), x)


class ConcatLayers(nn.Module):
    """Lay the layers side by side."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(start_dim=2)


class Chain(nn.Module):
    """Merge the layers, then go on with the one state that is left, as an image of one channel."""

    def __init__(self, layer_pooling: nn.Module, *, narrow: nn.Module | None = None, then: nn.Module | None = None):
        super().__init__()
        self.layer_pooling = layer_pooling
        self.narrow = narrow or nn.Identity()
        self.then = then
        self.mixes_tokens = getattr(then, "mixes_tokens", False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        one = self.narrow(self.layer_pooling(x, mask).unsqueeze(1))
        return self.then(one, mask) if self.then is not None else one.squeeze(1)


class AdapterAndPool(nn.Module):
    """Every layer through one adapter, with the pooled state through another added to each; then side by side."""

    def __init__(self, each: nn.Module, layer_pooling: nn.Module, pooled: nn.Module):
        super().__init__()
        self.each = each
        self.layer_pooling = layer_pooling
        self.pooled = pooled
        self.flatten = ConcatLayers()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        one = self.pooled(self.layer_pooling(x, mask).unsqueeze(1))
        return self.flatten(self.each(x) + one, mask)
