"""The wide adapters of the published study, and adapters on merged layers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bertvision.heads.adapters import Adapter
from bertvision.heads.head import Head
from bertvision.heads.layer_pooling import ConcatLayers, ScalarMix
from bertvision.types import HeadShape

PAPER_SIZE = 386  # adapter outputs of the published models, which made a square image of 386 tokens


class PoolThenNetwork(nn.Module):
    """Merge the layers, then apply an adapter and a network to the result, which is an image of one channel."""

    def __init__(self, layer_pooling: nn.Module, *, narrow: nn.Module | None = None, then: nn.Module | None = None):
        super().__init__()
        self.layer_pooling = layer_pooling
        self.narrow: nn.Module = narrow or nn.Identity()
        self.then = then
        self.mixes_tokens: bool = getattr(then, "mixes_tokens", False)

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
        self.flatten: ConcatLayers = ConcatLayers()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        merged = self.pooled(self.layer_pooling(x, mask).unsqueeze(1))
        return self.flatten(self.each(x) + merged, mask)


def pooled_adapter(
    shape: HeadShape, pool: nn.Module, size: int, then: Callable[[int], nn.Module] | None = None, **options: Any
) -> Head:
    """Build a head that merges the layers, applies an adapter, and optionally convolutions."""
    narrow = Adapter(1, shape.hidden_size, size)
    return Head(shape, PoolThenNetwork(pool, narrow=narrow, then=then(1) if then else None), **options)


def adapter_and_mix(shape: HeadShape, size: int, **options: Any) -> Head:
    """Build a head with adapters on every layer and on their learned mix, concatenated with the last layer."""
    parts = (
        Adapter(shape.num_channels, shape.hidden_size, size),
        ScalarMix(shape.num_channels),
        Adapter(1, shape.hidden_size, size),
    )
    return Head(shape, AdapterPlusMix(*parts), skip=True, **options)
