"""The zoo. To add a head: write its parts in one file here, add one line to HEADS in table.py."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.config import ENCODINGS, canonical, expand, last_layer_only, options_of, parse, uses_bi_encoding
from bertvision.heads.head import BertHead, Head, LayerSelect
from bertvision.heads.head_ensemble import HeadEnsemble
from bertvision.heads.layer_selection import select_layers
from bertvision.heads.table import AUXILIARY_HEADS, DEFAULT_HEADS, DEFAULT_LEARNING_RATES, HEADS
from bertvision.heads.token_pooling import TOKEN_POOLINGS
from bertvision.types import HeadShape, StateView

__all__ = [
    "DEFAULT_HEADS",
    "HEADS",
    "DEFAULT_LEARNING_RATES",
    "AUXILIARY_HEADS",
    "TOKEN_POOLINGS",
    "ENCODINGS",
    "Head",
    "BertHead",
    "LayerSelect",
    "build_for",
    "build_head",
    "canonical",
    "count",
    "expand",
    "last_layer_only",
    "training_dtype",
    "select_from_view",
    "options_of",
    "parse",
    "uses_bi_encoding",
    "select_layers",
    "set_training_precision",
    "view_of",
]


def build_head(spec: str, shape: HeadShape) -> nn.Module:
    """Build the head that `spec` names, sized for `shape`."""
    name, options = parse(spec)
    readings = _readings(options, shape)
    pooled, members = options.pop("pooler_output", False), options.pop("members", 1)
    for used in ("layers", "encoding"):
        options.pop(used, None)
    if pooled and not shape.pooled:
        raise BertVisionError(f"Head {spec!r} wants BERT's pooled [CLS], which exists for sentence tasks only.")
    if readings[-1][0] < 0 and not shape.apart:
        raise BertVisionError(f"Head {spec!r} reads the texts of a pair apart, which these states are not of.")
    heads = []
    for chosen in readings:
        seen = replace(shape, layers=len(chosen), pooled=pooled, apart=False)
        made = [HEADS[name].build(seen, **options) for _ in range(members)]
        head = made[0] if members == 1 else HeadEnsemble(made)
        heads.append(head if chosen == shape.numbers else LayerSelect(head, chosen, shape.numbers))
    return heads[0] if len(heads) == 1 else HeadEnsemble(heads)


def _readings(options: Mapping[str, Any], shape: HeadShape) -> list[list[int]]:
    """Return the numbers of the layers that a head reads, for each way in which it has the texts read."""
    chosen = select_layers(options.get("layers", "all"), shape.own_layers)
    bi = [number - shape.own_layers for number in chosen]
    cross = [*chosen, shape.own_layers] if options.get("pooler_output") else chosen
    return {"cross": [cross], "bi": [bi], "both": [cross, bi]}[options.get("encoding", "cross")]


def set_training_precision(precision: str, head: nn.Module) -> nn.Module:
    """Let a head learn with products of this precision, where it is bfloat16; it answers in float32 in any case."""
    for part in head.modules():
        if isinstance(part, Head):
            part.halved = precision == "bfloat16"
    return head


def training_dtype(models: Iterable[nn.Module]) -> torch.dtype:
    """The type of states that these heads learn from: float32 unless all of them round to bfloat16 anyway."""
    return torch.bfloat16 if all(model.halved for model in models) else torch.float32


def build_for(spec: str, shape: HeadShape, view: StateView) -> nn.Module:
    """Build a head that finds its layers in states which are a view of all of them."""
    return select_from_view(build_head(spec, shape), view, shape.own_layers)


def select_from_view(head: nn.Module, view: StateView, layers: int) -> nn.Module:
    """Let a head find its layers in states that are a view of a backbone with so many."""
    for part in head.modules():
        if isinstance(part, LayerSelect):
            part.through(view, layers)
    return head


def view_of(specs: Iterable[str], shape: HeadShape) -> StateView:
    """Return the part of the states that these heads, and BERT's own, read between them."""
    layers, pooled, first = {shape.own_layers - 1}, False, not shape.per_token
    for spec in specs:
        options = parse(spec)[1]
        layers |= {number for each in _readings(options, shape) for number in each if number < shape.own_layers}
        pooled |= options.get("pooler_output", False)
        with torch.device("meta"):
            first = first and bool(build_head(spec, shape).reads_first)
    return StateView(layers=tuple(sorted(layers)), pooled=pooled, first=first)


def count(spec: str, shape: HeadShape) -> tuple[int, int]:
    """Count the numbers a head holds at `shape`, and those it trains; batch norm keeps statistics beside."""
    with torch.device("meta"):
        head = build_head(spec, shape)
    trained = sum(p.numel() for p in head.parameters())
    kept = sum(b.numel() for name, b in head.named_buffers() if name.endswith(("running_mean", "running_var")))
    return trained + kept, trained
