"""The table of heads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.adapters import Adapter
from bertvision.heads.head import BertHead, Head
from bertvision.heads.layer_attention import LayerAttention
from bertvision.heads.layer_pooling import AdapterPlusMix, ConcatLayers, MeanLayers, PoolThenNetwork, ScalarMix
from bertvision.registries import Registry
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
_HEADS: dict[str, HeadEntry] = {
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
}
# fmt: on


def _as_entry(value: Any) -> HeadEntry:
    """Return the entry of a head class, a function that builds a head, or an entry itself."""
    if isinstance(value, HeadEntry):
        return value
    if not callable(value):
        raise BertVisionError(f"A head is a module class or a function that builds one, got {value!r}.")
    build: Callable[..., nn.Module] = value  # pyright: ignore[reportAssignmentType]
    return HeadEntry(build, (value.__doc__ or "").strip().partition("\n")[0])


HEADS: Registry[HeadEntry] = Registry("head", _HEADS, _as_entry, reserved=("default", "all"))
"""All heads by name."""

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


def register_head(name: str, summary: str = "") -> Callable[[Builder], Builder]:
    """Register a head under `name`: decorate a module class or a function that takes a `HeadShape` and options.

    Each option needs a default value, whose type is the option's type. The module's `forward(hidden, attention_mask)`
    takes hidden states (B, L, T, W) and a boolean mask (B, T), and returns logits (B, C), or (B, T, C) where
    `shape.per_token`. It may also take `text_ids` (B, T), and may have an `input_spec`.
    """
    HEADS.check_name(name)

    def register(build: Builder) -> Builder:
        entry = _as_entry(build)
        HEADS.register(name, HeadEntry(build, summary or entry.summary))
        return build

    return register
