"""Build heads from their configurations, and determine which hidden states they read."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.config import HeadConfig
from bertvision.heads.head import Head, LayerSelect
from bertvision.heads.head_ensemble import HeadEnsemble
from bertvision.heads.input_spec import input_spec_of, shared_input_spec
from bertvision.heads.layer_selection import select_layers
from bertvision.heads.table import HEADS
from bertvision.types import HeadShape, StateView


def build_head(config: HeadConfig | str, shape: HeadShape) -> nn.Module:
    """Build a head for hidden states of `shape`. A specification such as "adapter:size=32" is parsed first."""
    if isinstance(config, str):
        config = HeadConfig.parse(config)
    if config.pooler_output and not shape.pooler_output:
        raise BertVisionError(f"Head {str(config)!r} reads BERT's pooled [CLS], which exists for sentence tasks only.")
    if config.uses_bi_encoding and not shape.bi_encoding:
        raise BertVisionError(f"Head {str(config)!r} reads bi-encoded pairs, but these hidden states hold none.")
    heads = []
    for selection in _selections(config, shape):
        num_layers = len(selection.cross_layers) + len(selection.bi_layers)
        own = replace(shape, num_layers=num_layers, pooler_output=config.pooler_output, bi_encoding=False)
        members = [HEADS[config.name].build(own, **config.builder_options()) for _ in range(config.members)]
        head = members[0] if len(members) == 1 else HeadEnsemble(members)
        heads.append(head if selection == shape.view else LayerSelect(head, selection, shape.view))
    return heads[0] if len(heads) == 1 else HeadEnsemble(heads)


def _selections(config: HeadConfig, shape: HeadShape) -> list[StateView]:
    """Return the hidden states that a head reads, for each of its encodings."""
    layers = tuple(select_layers(config.layers, shape.num_layers))
    cross, bi = StateView(cross_layers=layers, pooler_output=config.pooler_output), StateView(bi_layers=layers)
    return {"cross": [cross], "bi": [bi], "both": [cross, bi]}[config.encoding]


def set_training_precision(precision: str, head: nn.Module) -> nn.Module:
    """Let the built-in heads train in bfloat16 if that is the precision, else in float32. Logits stay float32."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    for part in head.modules():
        if isinstance(part, Head):
            part.input_spec = replace(part.input_spec, dtype=dtype)
    return head


def training_dtype(models: Iterable[nn.Module]) -> torch.dtype:
    """Return the type of hidden states that these heads are trained on together."""
    return shared_input_spec(models).dtype


def build_for_view(config: HeadConfig, shape: HeadShape, view: StateView) -> nn.Module:
    """Build a head for hidden states that hold only the channels of `view`."""
    return select_from_view(build_head(config, shape), view)


def select_from_view(head: nn.Module, view: StateView) -> nn.Module:
    """Adapt the layer selection of a head to hidden states that hold only the channels of `view`."""
    for part in head.modules():
        if isinstance(part, LayerSelect):
            part.select_from(view)
    return head


def required_view(configs: Iterable[HeadConfig], shape: HeadShape) -> StateView:
    """Return the part of the hidden states that these heads and BERT's own head read."""
    cross, bi = {shape.num_layers - 1}, set[int]()
    pooler_output, first = False, not shape.per_token
    for config in configs:
        for selection in _selections(config, shape):
            cross.update(selection.cross_layers)
            bi.update(selection.bi_layers)
        pooler_output |= config.pooler_output
        with torch.device("meta"):
            first = first and input_spec_of(build_head(config, shape)).tokens == "cls"
    return StateView(
        cross_layers=tuple(sorted(cross)),
        bi_layers=tuple(sorted(bi)),
        pooler_output=pooler_output,
        first_token_only=first,
        num_layers=shape.num_layers,
    )


def count_parameters(config: HeadConfig, shape: HeadShape) -> tuple[int, int]:
    """Return the number of values that a head holds, batch norm's statistics included, and of those it trains."""
    with torch.device("meta"):
        head = build_head(config, shape)
    trained = sum(p.numel() for p in head.parameters())
    kept = sum(b.numel() for name, b in head.named_buffers() if name.endswith(("running_mean", "running_var")))
    return trained + kept, trained
