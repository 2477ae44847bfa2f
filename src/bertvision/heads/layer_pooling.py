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
        self.weights = nn.Parameter(torch.zeros(layers))  # zeros: the initial mix is the mean
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.scale * torch.einsum("l,bltw->btw", self.weights.softmax(dim=0), x)


class ConcatLayers(nn.Module):
    """Concatenate the features of all layers."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(start_dim=2)


class PoolThenNetwork(nn.Module):
    """Merge the layers, then apply an adapter and a network to the result, which is an image of one channel."""

    def __init__(self, layer_pooling: nn.Module, *, narrow: nn.Module | None = None, then: nn.Module | None = None):
        super().__init__()
        self.layer_pooling = layer_pooling
        self.narrow = narrow or nn.Identity()
        self.then = then
        self.mixes_tokens = getattr(then, "mixes_tokens", False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        merged = self.narrow(self.layer_pooling(x, mask).unsqueeze(1))
        return self.then(merged, mask) if self.then is not None else merged.squeeze(1)


class AdapterPlusMix(nn.Module):
    """Apply one adapter to every layer and another to the merged layers; add the latter to each, then concatenate."""

    def __init__(self, each: nn.Module, layer_pooling: nn.Module, pooled: nn.Module):
        super().__init__()
        self.each = each
        self.layer_pooling = layer_pooling
        self.pooled = pooled
        self.flatten = ConcatLayers()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        merged = self.pooled(self.layer_pooling(x, mask).unsqueeze(1))
        return self.flatten(self.each(x) + merged, mask)
