"""The table of heads, and which of them a task gets when none is named."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from bertvision.heads.adapters import Adapter
from bertvision.heads.cnn import cnn_1xn, cnn_nxn
from bertvision.heads.head import BertHead, Head
from bertvision.heads.inception import inception
from bertvision.heads.layer_attention import LayerAttention
from bertvision.heads.layer_pooling import AdapterAndPool, Chain, ConcatLayers, MeanLayers, ScalarMix
from bertvision.heads.xception import xception, xception_small
from bertvision.types import HeadShape

PAPER_SIZE = 386  # adapter outputs of the published models, which made a square image of 386 tokens


def adapter(
    s: HeadShape, size: int, *, skip: bool = False, shared: bool = True, norm=False, init_std=1e-3, **options: Any
) -> Head:
    """Every layer through an adapter, laid side by side."""
    adapter_module = Adapter(s.layers, s.width, size, shared=shared, norm=norm, init_std=init_std)
    return Head(s, ConcatLayers(), adapter=adapter_module, skip=skip, **options)


def pooled_adapter(
    s: HeadShape, pool: nn.Module, size: int, then: Callable[[int], nn.Module] | None = None, **options: Any
) -> Head:
    """Merge the layers, narrow what is left, and perhaps look at it as an image."""
    narrow = Adapter(1, s.width, size)
    return Head(s, Chain(pool, narrow=narrow, then=then(1) if then else None), **options)


def both(s: HeadShape, size: int, **options: Any) -> Head:
    """Adapter on every layer and on the pooled state, with the last layer put back."""
    parts = Adapter(s.layers, s.width, size), ScalarMix(s.layers), Adapter(1, s.width, size)
    return Head(s, AdapterAndPool(*parts), skip=True, **options)


@dataclass(frozen=True)
class HeadEntry:
    """A head of the table: how to build it, its name in the paper, and one line about it."""

    build: Callable[..., nn.Module]
    summary: str
    paper: str = ""


# fmt: off
HEADS: dict[str, HeadEntry] = {
    "last": HeadEntry(lambda s, dropout=0.1: BertHead(s, dropout=dropout), "BERT's own kind of head, on the last layer", "BERT"),
    "mean": HeadEntry(lambda s, **o: Head(s, MeanLayers(), **o), "average of the layers", "average pooling"),
    "learned": HeadEntry(lambda s, **o: Head(s, ScalarMix(s.layers), **o), "learned weights for the layers", "learned pooling; Tenney small"),
    "attention": HeadEntry(lambda s, **o: Head(s, LayerAttention(s.layers, s.width), **o), "every token weighs its own layers"),
    "attention-skip": HeadEntry(lambda s, **o: Head(s, LayerAttention(s.layers, s.width), skip=True, **o), "and the last layer put back"),
    "adapter": HeadEntry(lambda s, size=64, norm=False, init_std=1e-3, **o: adapter(s, size, norm=norm, init_std=init_std, **o), "one adapter for all layers", "adapter 64 shared"),
    "adapter-skip": HeadEntry(lambda s, size=64, norm=False, init_std=1e-3, **o: adapter(s, size, skip=True, norm=norm, init_std=init_std, **o), "and the last layer put back", "adapter 64 shared + skip"),
    "adapter-independent": HeadEntry(lambda s, size=64, norm=False, init_std=1e-3, **o: adapter(s, size, shared=False, norm=norm, init_std=init_std, **o), "an adapter for each layer", "adapter 64 independent"),
    "adapter-independent-skip": HeadEntry(lambda s, size=64, **o: adapter(s, size, shared=False, skip=True, **o), "and the last layer put back", "adapter 64 independent + skip"),
    "adapter-386": HeadEntry(lambda s, size=PAPER_SIZE, **o: adapter(s, size, **o), "a wide adapter for all layers", "adapter 386 shared"),
    "adapter-386-skip": HeadEntry(lambda s, size=PAPER_SIZE, **o: adapter(s, size, skip=True, **o), "and the last layer put back", "adapter 386 shared + skip"),
    "adapter-386-independent": HeadEntry(lambda s, size=PAPER_SIZE, **o: adapter(s, size, shared=False, **o), "a wide adapter for each layer", "adapter 386 independent"),
    "adapter-386-independent-skip": HeadEntry(lambda s, size=PAPER_SIZE, **o: adapter(s, size, shared=False, skip=True, **o), "and the last layer put back", "adapter 386 independent + skip"),
    "adapter-pooler": HeadEntry(lambda s, size=0, token_pooling="flatten", **o: adapter(s, size or (384 if s.per_token else 128), token_pooling=token_pooling, **o), "adapter, all tokens laid side by side (fixed length)", "AdapterPooler"),
    "learned-adapter-386-skip": HeadEntry(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, ScalarMix(s.layers), size, skip=True, **o), "learned weights, adapter, last layer put back", "LP -> adapter 386 + skip; adapter pooler Tenney"),
    "mean-adapter-386-skip": HeadEntry(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, MeanLayers(), size, skip=True, **o), "average, adapter, last layer put back", "adapter pooler average"),
    "adapter-386-skip-learned": HeadEntry(lambda s, size=PAPER_SIZE, **o: both(s, size, **o), "adapters on every layer and on their learned mix", "adapter 386 shared + skip + LP (Tenney)"),
    "cnn-1xn": HeadEntry(lambda s, **o: Head(s, cnn_1xn(s.layers), **o), "convolutions along the width, layers as channels", "1xN CNN"),
    "cnn-1xn-dropout": HeadEntry(lambda s, **o: Head(s, cnn_1xn(s.layers, dropout=0.1), **o), "and dropout", "1xN CNN, dropout"),
    "cnn-1xn-dilated": HeadEntry(lambda s, **o: Head(s, cnn_1xn(s.layers, dilated=True), **o), "dilated", "1xN CNN, dilated"),
    "learned-cnn-1xn": HeadEntry(lambda s, **o: Head(s, Chain(ScalarMix(s.layers), then=cnn_1xn(1)), **o), "learned weights, then convolutions", "LP -> 1xN CNN"),
    "mean-cnn-1xn": HeadEntry(lambda s, **o: Head(s, Chain(MeanLayers(), then=cnn_1xn(1)), **o), "average, then convolutions", "AP -> 1xN CNN"),
    "learned-adapter-386-cnn-1xn": HeadEntry(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, ScalarMix(s.layers), size, cnn_1xn, **o), "learned weights, adapter, convolutions", "LP -> adapter 386 -> 1xN CNN"),
    "learned-adapter-386-cnn-nxn": HeadEntry(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, ScalarMix(s.layers), size, cnn_nxn, **o), "and over neighbouring tokens", "LP -> adapter 386 -> NxN CNN"),
    "learned-adapter-386-inception": HeadEntry(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, ScalarMix(s.layers), size, inception, **o), "learned weights, adapter, Inception that keeps the tokens", "LP -> adapter 386 -> Inception"),
    "learned-adapter-386-xception": HeadEntry(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, ScalarMix(s.layers), size, partial(xception, middle=1, last=(1428,)), **o), "learned weights, adapter, Xception that keeps the tokens", "LP -> adapter 386 -> Xception"),
    "xception-small": HeadEntry(lambda s, **o: Head(s, xception_small(s.layers), **o), "abbreviated Xception, layers as channels", "Xception abbreviated"),
    "xception-small-skip": HeadEntry(lambda s, **o: Head(s, xception_small(s.layers), skip=True, **o), "and the last layer put back", "Xception abbreviated, CLS residual"),
    "xception": HeadEntry(lambda s, **o: Head(s, xception(s.layers), **o), "the whole Xception", "Xception full"),
}
# fmt: on
