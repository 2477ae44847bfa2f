"""The members of a head ensemble computed in few wide matrix products, since small ones are mostly overhead."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def forward_members(
    heads: Sequence[Any], hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None
) -> list[Tensor]:
    """Return the logits of every member. (B, L, T, W) -> one (B, C) or (B, T, C) each

    Args:
        heads: Heads of equal structure: an adapter that all layers share, layers side by side, a token pooling without
            weights, a linear classifier. `HeadEnsemble.can_merge` says whether heads are of this kind.
        hidden: The hidden states.
        attention_mask: Which tokens are real, (B, T).
        text_ids: Which text of a pair each token belongs to, (B, T), if they are pairs.
    """
    first, members = heads[0], len(heads)
    hidden = first.take(hidden)
    with first.products(hidden):
        weight = torch.cat([head.adapter.weight[0] for head in heads], dim=1)
        bias = torch.cat([head.adapter.bias[0] for head in heads], dim=1)
        wide = functional.gelu(hidden @ weight + bias)
    # (B, L, T, members x A) -> (members x B, T, L x A): to token pooling, members are more rows of a batch.
    x = wide.unflatten(-1, (members, -1)).permute(3, 0, 2, 1, 4).flatten(0, 1).flatten(2)
    x = first.pool_tokens(
        x.to(first.classifier.weight.dtype),
        attention_mask.repeat(members, 1),
        None if text_ids is None else text_ids.repeat(members, 1),
    )
    return [head.classifier(part) for head, part in zip(heads, x.unflatten(0, (members, -1)), strict=True)]
