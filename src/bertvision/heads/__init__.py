"""The zoo. To add a head: write its parts in one file here, add one line to HEADS."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from bertvision.errors import BertVisionError, lookup
from bertvision.heads.adapters import Adapter
from bertvision.heads.attention import LayerAttention
from bertvision.heads.cnn import cnn_1xn, cnn_nxn
from bertvision.heads.copies import Copies
from bertvision.heads.gathers import GATHERS
from bertvision.heads.head import Head, Last, Select
from bertvision.heads.inception import inception
from bertvision.heads.layers import select_layers
from bertvision.heads.pools import AdapterAndPool, Chain, FlattenLayers, LearnedPool, MeanPool
from bertvision.heads.xception import xception, xception_small
from bertvision.types import Shape, View

__all__ = [
    "HEADS",
    "GATHERS",
    "TEXTS",
    "Head",
    "Last",
    "Select",
    "build_for",
    "build_head",
    "canonical",
    "count",
    "expand",
    "last_layer_only",
    "learns_in",
    "look_through",
    "options_of",
    "parse",
    "reads_apart",
    "select_layers",
    "train_in",
    "view_of",
]


PAPER_SIZE = 386  # adapter outputs of the published models, which made a square image of 386 tokens


def adapter(
    s: Shape, size: int, *, skip: bool = False, shared: bool = True, norm=False, start=1e-3, **options: Any
) -> Head:
    """Every layer through an adapter, laid side by side."""
    adapt = Adapter(s.layers, s.width, size, shared=shared, norm=norm, start=start)
    return Head(s, FlattenLayers(), adapt=adapt, skip=skip, **options)


def pooled_adapter(
    s: Shape, pool: nn.Module, size: int, then: Callable[[int], nn.Module] | None = None, **options: Any
) -> Head:
    """Merge the layers, narrow what is left, and perhaps look at it as an image."""
    narrow = Adapter(1, s.width, size)
    return Head(s, Chain(pool, narrow=narrow, then=then(1) if then else None), **options)


def both(s: Shape, size: int, **options: Any) -> Head:
    """Adapter on every layer and on the pooled state, with the last layer put back."""
    parts = Adapter(s.layers, s.width, size), LearnedPool(s.layers), Adapter(1, s.width, size)
    return Head(s, AdapterAndPool(*parts), skip=True, **options)


@dataclass(frozen=True)
class Row:
    """A head of the table: how to build it, its name in the paper, and one line about it."""

    build: Callable[..., nn.Module]
    summary: str
    paper: str = ""


# fmt: off
HEADS: dict[str, Row] = {
    "last": Row(lambda s, dropout=0.1: Last(s, dropout=dropout), "BERT's own kind of head, on the last layer", "BERT"),
    "mean": Row(lambda s, **o: Head(s, MeanPool(), **o), "average of the layers", "average pooling"),
    "learned": Row(lambda s, **o: Head(s, LearnedPool(s.layers), **o), "learned weights for the layers", "learned pooling; Tenney small"),
    "attention": Row(lambda s, **o: Head(s, LayerAttention(s.layers, s.width), **o), "every token weighs its own layers"),
    "attention-skip": Row(lambda s, **o: Head(s, LayerAttention(s.layers, s.width), skip=True, **o), "and the last layer put back"),
    "adapter": Row(lambda s, size=64, norm=False, start=1e-3, **o: adapter(s, size, norm=norm, start=start, **o), "one adapter for all layers", "adapter 64 shared"),
    "adapter-skip": Row(lambda s, size=64, norm=False, start=1e-3, **o: adapter(s, size, skip=True, norm=norm, start=start, **o), "and the last layer put back", "adapter 64 shared + skip"),
    "adapter-independent": Row(lambda s, size=64, norm=False, start=1e-3, **o: adapter(s, size, shared=False, norm=norm, start=start, **o), "an adapter for each layer", "adapter 64 independent"),
    "adapter-independent-skip": Row(lambda s, size=64, **o: adapter(s, size, shared=False, skip=True, **o), "and the last layer put back", "adapter 64 independent + skip"),
    "adapter-386": Row(lambda s, size=PAPER_SIZE, **o: adapter(s, size, **o), "a wide adapter for all layers", "adapter 386 shared"),
    "adapter-386-skip": Row(lambda s, size=PAPER_SIZE, **o: adapter(s, size, skip=True, **o), "and the last layer put back", "adapter 386 shared + skip"),
    "adapter-386-independent": Row(lambda s, size=PAPER_SIZE, **o: adapter(s, size, shared=False, **o), "a wide adapter for each layer", "adapter 386 independent"),
    "adapter-386-independent-skip": Row(lambda s, size=PAPER_SIZE, **o: adapter(s, size, shared=False, skip=True, **o), "and the last layer put back", "adapter 386 independent + skip"),
    "adapter-pooler": Row(lambda s, size=0, gather="all", **o: adapter(s, size or (384 if s.per_token else 128), gather=gather, **o), "adapter, all tokens laid side by side (fixed length)", "AdapterPooler"),
    "learned-adapter-386-skip": Row(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, LearnedPool(s.layers), size, skip=True, **o), "learned weights, adapter, last layer put back", "LP -> adapter 386 + skip; adapter pooler Tenney"),
    "mean-adapter-386-skip": Row(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, MeanPool(), size, skip=True, **o), "average, adapter, last layer put back", "adapter pooler average"),
    "adapter-386-skip-learned": Row(lambda s, size=PAPER_SIZE, **o: both(s, size, **o), "adapters on every layer and on their learned mix", "adapter 386 shared + skip + LP (Tenney)"),
    "cnn-1xn": Row(lambda s, **o: Head(s, cnn_1xn(s.layers), **o), "convolutions along the width, layers as channels", "1xN CNN"),
    "cnn-1xn-dropout": Row(lambda s, **o: Head(s, cnn_1xn(s.layers, dropout=0.1), **o), "and dropout", "1xN CNN, dropout"),
    "cnn-1xn-dilated": Row(lambda s, **o: Head(s, cnn_1xn(s.layers, dilated=True), **o), "dilated", "1xN CNN, dilated"),
    "learned-cnn-1xn": Row(lambda s, **o: Head(s, Chain(LearnedPool(s.layers), then=cnn_1xn(1)), **o), "learned weights, then convolutions", "LP -> 1xN CNN"),
    "mean-cnn-1xn": Row(lambda s, **o: Head(s, Chain(MeanPool(), then=cnn_1xn(1)), **o), "average, then convolutions", "AP -> 1xN CNN"),
    "learned-adapter-386-cnn-1xn": Row(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, LearnedPool(s.layers), size, cnn_1xn, **o), "learned weights, adapter, convolutions", "LP -> adapter 386 -> 1xN CNN"),
    "learned-adapter-386-cnn-nxn": Row(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, LearnedPool(s.layers), size, cnn_nxn, **o), "and over neighbouring tokens", "LP -> adapter 386 -> NxN CNN"),
    "learned-adapter-386-inception": Row(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, LearnedPool(s.layers), size, inception, **o), "learned weights, adapter, Inception that keeps the tokens", "LP -> adapter 386 -> Inception"),
    "learned-adapter-386-xception": Row(lambda s, size=PAPER_SIZE, **o: pooled_adapter(s, LearnedPool(s.layers), size, partial(xception, middle=1, last=(1428,)), **o), "learned weights, adapter, Xception that keeps the tokens", "LP -> adapter 386 -> Xception"),
    "xception-small": Row(lambda s, **o: Head(s, xception_small(s.layers), **o), "abbreviated Xception, layers as channels", "Xception abbreviated"),
    "xception-small-skip": Row(lambda s, **o: Head(s, xception_small(s.layers), skip=True, **o), "and the last layer put back", "Xception abbreviated, CLS residual"),
    "xception": Row(lambda s, **o: Head(s, xception(s.layers), **o), "the whole Xception", "Xception full"),
}
# fmt: on

DEFAULTS = {
    "span": ["learned", "adapter-skip"],
    "pair": ["learned", "adapter:copies=3,gather=max+compare+align,layers=every2,size=32,texts=both"],
    "text": ["learned", "adapter:copies=3,gather=max,size=32"],
}
"""The heads trained when none are named, by the task's kind (docs/decisions/0020, 0023, 0024)."""

RATES = {"span": 1e-3, "pair": 2e-3, "text": 2e-3}
"""The learning rate of heads, when none is given."""

THROUGH = {"span": "last", "pair": "adapter:gather=max+compare", "text": "last"}
"""The head that fine-tuning goes through beside BERT's own, when none is named (docs/decisions/0019)."""

TEXTS = {
    "together": "the encoder reads the texts of a pair as one",
    "apart": "it reads each by itself",
    "both": "a head on each of these, or its copies; their mean answers",
}

MOST_COPIES = 100  # a misspelt number should not fill the memory

COMMON = {"gather": "cls", "dropout": 0.0}
"""What every head but `last` takes beside its own options."""


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Read "adapter:size=64,layers=0,6,12" as a name and its options."""
    name, _, rest = spec.partition(":")
    known = options_of(name.strip())
    options: dict[str, Any] = {}
    # A piece without "=" continues the one before it: layers=0,6,12.
    for piece in re.findall(r"[^=,]+=[^=]*(?=,[^=,]+=|$)", rest) if rest else []:
        key, _, value = piece.strip(", ").partition("=")
        default = lookup(known, key.strip(), f"option of head {name!r}")
        options[key.strip()] = _convert(value.strip(), default, key.strip())
    if rest and not options:
        raise BertVisionError(f"Head {spec!r} is not of the form name:option=value,option=value.")
    if options.get("size", 1) < (0 if name == "adapter-pooler" else 1) or not 0 <= options.get("dropout", 0) < 1:
        raise BertVisionError(f"Head {spec!r} needs size >= 1 and dropout from 0 to less than 1.")
    if not 1 <= options.get("copies", 1) <= MOST_COPIES:
        raise BertVisionError(f"Head {spec!r} needs copies from 1 to {MOST_COPIES}.")
    for gather in options.get("gather", "cls").split("+"):
        lookup(GATHERS, gather, "gather")
    if lookup(TEXTS, options.get("texts", "together"), "value of texts") and reads_apart(options):
        if options.get("gather", known["gather"]) == "cls":
            raise BertVisionError(f"Head {spec!r} would see one text only; with texts apart, name a gather, e.g. max.")
        if options.get("pooled"):
            raise BertVisionError(f"Head {spec!r} wants BERT's pooled [CLS], which is of texts that are read together.")
    return name.strip(), options


def reads_apart(options: Mapping[str, Any]) -> bool:
    """Tell whether a head with these options reads the texts of a pair, each by itself."""
    return options.get("texts", "together") != "together"


def options_of(name: str) -> dict[str, Any]:
    """Return the options a head takes, with their defaults."""
    parameters = signature(lookup(HEADS, name, "head").build).parameters
    known = {key: value.default for key, value in list(parameters.items())[1:]}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        known.pop("o", None)
        known = COMMON | known
    return known | {"layers": "all", "pooled": False, "copies": 1} | ({} if name == "last" else {"texts": "together"})


def _convert(text: str, default: Any, key: str) -> Any:
    """Read an option's value as the type of its default."""
    if isinstance(default, bool):
        return lookup({"true": True, "false": False, "1": True, "0": False}, text.lower(), f"value of {key}")
    try:
        return type(default)(text)
    except ValueError:
        raise BertVisionError(f"Option {key} of a head must be {type(default).__name__}, got {text!r}.") from None


def expand(text: str) -> list[str]:
    """Read "learned,adapter:size=8,gather=max", "adapter*" or "all" as a list of heads."""
    specs: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        # After a comma, "gather=max" and "12" go on with the head before it; a name starts the next one.
        if specs and re.match(r"[\d-]+$|[^:]*=", piece):
            specs[-1] += f",{piece}"
        elif "*" in piece or piece == "all":
            found = fnmatch.filter(HEADS, "*" if piece == "all" else piece)
            if not found:
                raise BertVisionError(f"No head is called like {piece!r}. Known: {', '.join(sorted(HEADS))}.")
            specs += [name for name in found if name != "last"]
        else:
            specs.append(piece)
    return [canonical(spec) for spec in specs]


def canonical(spec: str) -> str:
    """Write a head's specification in the one way that names it."""
    name, options = parse(spec)
    return name + "".join(
        f"{',' if i else ':'}{key}={str(value).lower() if isinstance(value, bool) else value}"
        for i, (key, value) in enumerate(sorted(options.items()))
    )


def last_layer_only(spec: str) -> str:
    """Name the control of a head: the same head, gather and size, on the last layer alone."""
    name, options = parse(spec)
    options = {key: value for key, value in options.items() if key not in ("layers", "pooled")}
    return canonical(name + ":" + ",".join(f"{k}={v}" for k, v in (options | {"layers": "last"}).items()))


def build_head(spec: str, shape: Shape) -> nn.Module:
    """Build the head that `spec` names, sized for `shape`."""
    name, options = parse(spec)
    readings = _readings(options, shape)
    pooled, copies = options.pop("pooled", False), options.pop("copies", 1)
    for used in ("layers", "texts"):
        options.pop(used, None)
    if pooled and not shape.pooled:
        raise BertVisionError(f"Head {spec!r} wants BERT's pooled [CLS], which exists for sentence tasks only.")
    if readings[-1][0] < 0 and not shape.apart:
        raise BertVisionError(f"Head {spec!r} reads the texts of a pair apart, which these states are not of.")
    heads = []
    for chosen in readings:
        seen = replace(shape, layers=len(chosen), pooled=pooled, apart=False)
        made = [HEADS[name].build(seen, **options) for _ in range(copies)]
        head = made[0] if copies == 1 else Copies(made)
        heads.append(head if chosen == shape.numbers else Select(head, chosen, shape.numbers))
    return heads[0] if len(heads) == 1 else Copies(heads)


def _readings(options: Mapping[str, Any], shape: Shape) -> list[list[int]]:
    """Return the numbers of the layers that a head reads, for each way in which it has the texts read."""
    chosen = select_layers(options.get("layers", "all"), shape.own_layers)
    apart = [number - shape.own_layers for number in chosen]
    together = [*chosen, shape.own_layers] if options.get("pooled") else chosen
    return {"together": [together], "apart": [apart], "both": [together, apart]}[options.get("texts", "together")]


def train_in(precision: str, head: nn.Module) -> nn.Module:
    """Let a head learn with products of this precision, where it is bfloat16; it answers in float32 in any case."""
    for part in head.modules():
        if isinstance(part, Head):
            part.halved = precision == "bfloat16"
    return head


def learns_in(models: Iterable[nn.Module]) -> torch.dtype:
    """The type of states that these heads learn from: float32 unless all of them round to bfloat16 anyway."""
    return torch.bfloat16 if all(_halved(model) for model in models) else torch.float32


def _halved(model: nn.Module) -> bool:
    if isinstance(model, Select | Copies):
        return all(_halved(part) for part in ([model.head] if isinstance(model, Select) else model.copies))
    return isinstance(model, Head) and model.halved


def build_for(spec: str, shape: Shape, view: View) -> nn.Module:
    """Build a head that finds its layers in states which are a view of all of them."""
    return look_through(build_head(spec, shape), view, shape.own_layers)


def look_through(head: nn.Module, view: View, layers: int) -> nn.Module:
    """Let a head find its layers in states that are a view of a backbone with so many."""
    for part in head.modules():
        if isinstance(part, Select):
            part.through(view, layers)
    return head


def view_of(specs: Iterable[str], shape: Shape) -> View:
    """Return the part of the states that these heads, and BERT's own, read between them."""
    layers, pooled, first = {shape.own_layers - 1}, False, not shape.per_token
    for spec in specs:
        options = parse(spec)[1]
        layers |= {number for each in _readings(options, shape) for number in each if number < shape.own_layers}
        pooled |= options.get("pooled", False)
        with torch.device("meta"):
            first = first and bool(build_head(spec, shape).reads_first)
    return View(layers=tuple(sorted(layers)), pooled=pooled, first=first)


def count(spec: str, shape: Shape) -> tuple[int, int]:
    """Count the numbers a head holds at `shape`, and those it trains; batch norm keeps statistics beside."""
    with torch.device("meta"):
        head = build_head(spec, shape)
    trained = sum(p.numel() for p in head.parameters())
    kept = sum(b.numel() for name, b in head.named_buffers() if name.endswith(("running_mean", "running_var")))
    return trained + kept, trained
