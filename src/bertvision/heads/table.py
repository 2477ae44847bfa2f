"""The table of heads."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.adapters import Adapter
from bertvision.heads.cnn import cnn_1xn, cnn_nxn
from bertvision.heads.head import BertHead, Head
from bertvision.heads.inception import inception
from bertvision.heads.layer_attention import LayerAttention
from bertvision.heads.layer_pooling import AdapterPlusMix, ConcatLayers, MeanLayers, PoolThenNetwork, ScalarMix
from bertvision.heads.xception import xception, xception_small
from bertvision.types import HeadShape

PAPER_SIZE = 386  # adapter outputs of the published models, which made a square image of 386 tokens


def adapter(
    shape: HeadShape, size: int, *, skip: bool = False, shared: bool = True, norm=False, init_std=1e-3, **options: Any
) -> Head:
    """Build a head that concatenates the adapter outputs of all layers."""
    adapters = Adapter(shape.num_channels, shape.hidden_size, size, shared=shared, norm=norm, init_std=init_std)
    return Head(shape, ConcatLayers(), adapter=adapters, skip=skip, **options)


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


@dataclass(frozen=True)
class HeadEntry:
    """An entry of the table of heads."""

    build: Callable[..., nn.Module]
    """Builds the head: build(shape, **options). Its keyword parameters and their defaults are the head's options."""
    summary: str
    paper: str = ""
    """The name of the head in the paper."""


# fmt: off
HEADS: dict[str, HeadEntry] = {
    "bert-head": HeadEntry(lambda shape, dropout=0.1: BertHead(shape, dropout=dropout), "BERT's own kind of head on the last layer", "BERT"),
    "mean": HeadEntry(lambda shape, **options: Head(shape, MeanLayers(), **options), "average of the layers", "average pooling"),
    "learned": HeadEntry(lambda shape, **options: Head(shape, ScalarMix(shape.num_channels), **options), "learned weights for the layers", "learned pooling; Tenney small"),
    "attention": HeadEntry(lambda shape, **options: Head(shape, LayerAttention(shape.num_channels, shape.hidden_size), **options), "attention over the layers, separately for each token"),
    "attention-skip": HeadEntry(lambda shape, **options: Head(shape, LayerAttention(shape.num_channels, shape.hidden_size), skip=True, **options), "the same, concatenated with the last layer"),
    "adapter": HeadEntry(lambda shape, size=64, norm=False, init_std=1e-3, **options: adapter(shape, size, norm=norm, init_std=init_std, **options), "an adapter shared by all layers", "adapter 64 shared"),
    "adapter-skip": HeadEntry(lambda shape, size=64, norm=False, init_std=1e-3, **options: adapter(shape, size, skip=True, norm=norm, init_std=init_std, **options), "the same, concatenated with the last layer", "adapter 64 shared + skip"),
    "adapter-independent": HeadEntry(lambda shape, size=64, norm=False, init_std=1e-3, **options: adapter(shape, size, shared=False, norm=norm, init_std=init_std, **options), "a separate adapter for each layer", "adapter 64 independent"),
    "adapter-independent-skip": HeadEntry(lambda shape, size=64, **options: adapter(shape, size, shared=False, skip=True, **options), "the same, concatenated with the last layer", "adapter 64 independent + skip"),
    "adapter-386": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, **options), "a wide adapter shared by all layers", "adapter 386 shared"),
    "adapter-386-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, skip=True, **options), "the same, concatenated with the last layer", "adapter 386 shared + skip"),
    "adapter-386-independent": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, shared=False, **options), "a separate wide adapter for each layer", "adapter 386 independent"),
    "adapter-386-independent-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter(shape, size, shared=False, skip=True, **options), "the same, concatenated with the last layer", "adapter 386 independent + skip"),
    "adapter-pooler": HeadEntry(lambda shape, size=0, token_pooling="flatten", **options: adapter(shape, size or (384 if shape.per_token else 128), token_pooling=token_pooling, **options), "adapter, tokens concatenated (fixed length)", "AdapterPooler"),
    "learned-adapter-386-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, skip=True, **options), "learned weights, adapter, concatenated with the last layer", "LP -> adapter 386 + skip; adapter pooler Tenney"),
    "mean-adapter-386-skip": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, MeanLayers(), size, skip=True, **options), "average, adapter, concatenated with the last layer", "adapter pooler average"),
    "adapter-386-skip-learned": HeadEntry(lambda shape, size=PAPER_SIZE, **options: adapter_and_mix(shape, size, **options), "adapters on every layer and on their learned mix, concatenated with the last layer", "adapter 386 shared + skip + LP (Tenney)"),
    "cnn-1xn": HeadEntry(lambda shape, **options: Head(shape, cnn_1xn(shape.num_channels), **options), "convolutions along the width, layers as channels", "1xN CNN"),
    "cnn-1xn-dropout": HeadEntry(lambda shape, **options: Head(shape, cnn_1xn(shape.num_channels, dropout=0.1), **options), "the same with dropout", "1xN CNN, dropout"),
    "cnn-1xn-dilated": HeadEntry(lambda shape, **options: Head(shape, cnn_1xn(shape.num_channels, dilated=True), **options), "the same, dilated", "1xN CNN, dilated"),
    "learned-cnn-1xn": HeadEntry(lambda shape, **options: Head(shape, PoolThenNetwork(ScalarMix(shape.num_channels), then=cnn_1xn(1)), **options), "learned weights, then convolutions", "LP -> 1xN CNN"),
    "mean-cnn-1xn": HeadEntry(lambda shape, **options: Head(shape, PoolThenNetwork(MeanLayers(), then=cnn_1xn(1)), **options), "average, then convolutions", "AP -> 1xN CNN"),
    "learned-adapter-386-cnn-1xn": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, cnn_1xn, **options), "learned weights, adapter, convolutions", "LP -> adapter 386 -> 1xN CNN"),
    "learned-adapter-386-cnn-nxn": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, cnn_nxn, **options), "learned weights, adapter, convolutions over neighbouring tokens", "LP -> adapter 386 -> NxN CNN"),
    "learned-adapter-386-inception": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, inception, **options), "learned weights, adapter, Inception with the token axis kept", "LP -> adapter 386 -> Inception"),
    "learned-adapter-386-xception": HeadEntry(lambda shape, size=PAPER_SIZE, **options: pooled_adapter(shape, ScalarMix(shape.num_channels), size, partial(xception, middle=1, last=(1428,)), **options), "learned weights, adapter, Xception with the token axis kept", "LP -> adapter 386 -> Xception"),
    "xception-small": HeadEntry(lambda shape, **options: Head(shape, xception_small(shape.num_channels), **options), "abbreviated Xception, layers as channels", "Xception abbreviated"),
    "xception-small-skip": HeadEntry(lambda shape, **options: Head(shape, xception_small(shape.num_channels), skip=True, **options), "the same, concatenated with the last layer", "Xception abbreviated, CLS residual"),
    "xception": HeadEntry(lambda shape, **options: Head(shape, xception(shape.num_channels), **options), "full Xception, layers as channels", "Xception full"),
}
# fmt: on


Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


def register_head(name: str, summary: str = "") -> Callable[[Builder], Builder]:
    """Register a head under `name`: decorate a module class or a function that takes a `HeadShape` and options.

    Each option needs a default value, whose type is the option's type. The module's `forward(hidden, attention_mask)`
    takes hidden states (B, L, T, W) and a boolean mask (B, T), and returns logits (B, C), or (B, T, C) where
    `shape.per_token`. It may also take `text_ids` (B, T), and may have an `input_spec`.
    """
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name) or name in (*HEADS, "default", "all"):
        raise BertVisionError(
            f"A head cannot be registered as {name!r}: the name is taken, or not made of A-Z 0-9 . _ -"
        )

    def register(build: Builder) -> Builder:
        HEADS[name] = HeadEntry(build, summary or (build.__doc__ or "").strip().partition("\n")[0])
        return build

    return register
