"""The table of heads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.adapters import Adapter
from bertvision.heads.head import BertHead, Head, LinearHead
from bertvision.heads.layer_pooling import ConcatLayers, MeanLayers, ScalarMix
from bertvision.registries import Registry
from bertvision.types import HeadShape


def adapter(
    shape: HeadShape, size: int, *, skip: bool = False, shared: bool = True, norm=False, init_std=1e-3, **options: Any
) -> Head:
    """Build a head that concatenates the adapter outputs of all layers."""
    adapters = Adapter(shape.num_channels, shape.hidden_size, size, shared=shared, norm=norm, init_std=init_std)
    return Head(shape, ConcatLayers(), adapter=adapters, skip=skip, **options)


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
    "bert-head": HeadEntry(lambda shape, dropout=0.1, end_given_start=False: BertHead(shape, dropout=dropout, end_given_start=end_given_start), "BERT's own kind of head on the last layer", "BERT"),
    "mean": HeadEntry(lambda shape, **options: Head(shape, MeanLayers(), **options), "average of the layers", "average pooling"),
    "learned": HeadEntry(lambda shape, **options: Head(shape, ScalarMix(shape.num_channels), **options), "learned weights for the layers", "learned pooling; Tenney small"),
    "adapter": HeadEntry(lambda shape, size=64, norm=False, init_std=1e-3, **options: adapter(shape, size, norm=norm, init_std=init_std, **options), "an adapter shared by all layers", "adapter 64 shared"),
    "adapter-skip": HeadEntry(lambda shape, size=64, norm=False, init_std=1e-3, **options: adapter(shape, size, skip=True, norm=norm, init_std=init_std, **options), "the same, concatenated with the last layer", "adapter 64 shared + skip"),
    "adapter-independent": HeadEntry(lambda shape, size=64, norm=False, init_std=1e-3, **options: adapter(shape, size, shared=False, norm=norm, init_std=init_std, **options), "a separate adapter for each layer", "adapter 64 independent"),
    "adapter-independent-skip": HeadEntry(lambda shape, size=64, **options: adapter(shape, size, shared=False, skip=True, **options), "the same, concatenated with the last layer", "adapter 64 independent + skip"),
    "ridge": HeadEntry(lambda shape, token_pooling="mean+max", **options: LinearHead(shape, "ridge", token_pooling=token_pooling, **options), "ridge regression on the pooled tokens of all layers, fitted in closed form"),
    "logistic": HeadEntry(lambda shape, token_pooling="mean", **options: LinearHead(shape, "logistic", token_pooling=token_pooling, **options), "logistic regression on the pooled tokens of all layers, fitted to its optimum"),
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

    Each option needs a default, of the option's type. `forward(hidden, attention_mask)` takes hidden states (B, L, T, W)
    and a boolean mask (B, T), and returns logits (B, C), or (B, T, C). It may take `text_ids` (B, T), too.
    """
    HEADS.check_name(name)

    def register(build: Builder) -> Builder:
        entry = _as_entry(build)
        HEADS.register(name, HeadEntry(build, summary or entry.summary))
        return build

    return register
