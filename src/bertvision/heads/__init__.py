"""The zoo. To add a head: write its parts in one file here, add one line to HEADS in table.py."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.copies import Copies
from bertvision.heads.gathers import GATHERS
from bertvision.heads.head import Head, Last, Select
from bertvision.heads.layers import select_layers
from bertvision.heads.specs import TEXTS, canonical, expand, last_layer_only, options_of, parse, reads_apart
from bertvision.heads.table import DEFAULTS, HEADS, RATES, THROUGH
from bertvision.types import Shape, View

__all__ = [
    "DEFAULTS",
    "HEADS",
    "RATES",
    "THROUGH",
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
    return torch.bfloat16 if all(model.halved for model in models) else torch.float32


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
