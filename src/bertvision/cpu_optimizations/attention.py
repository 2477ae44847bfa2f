"""Attention whose dropout is fast on a CPU, where no fused kernel supports dropout and random draws are slow."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertvision.cpu_optimizations import enabled
from bertvision.cpu_optimizations.dropout import drop

ATTENTION = "bertvision"
"""The name under which transformers knows this attention."""


def fast_dropout_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention with `drop` while training on a CPU, and call the attention of transformers otherwise.

    The signature is that of the attention functions of transformers. (B, heads, T, W) -> (B, T, heads, W)
    """
    # Position biases and grouped keys are left to transformers.
    special = options.get("position_bias") is not None or key.shape[1] != query.shape[1]
    if not dropout or special or query.device.type != "cpu" or not enabled():
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    return (drop(scores.softmax(dim=-1), dropout) @ value).transpose(1, 2).contiguous(), None


def replace_attention(model: Any) -> None:
    """Let a model that uses scaled dot-product attention use `fast_dropout_attention`."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(ATTENTION)


AttentionInterface.register(ATTENTION, fast_dropout_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
