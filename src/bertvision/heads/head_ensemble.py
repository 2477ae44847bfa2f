"""Several copies of a head."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from bertvision.heads.adapters import Adapter, project
from bertvision.heads.head import Head
from bertvision.heads.layer_pooling import ConcatLayers
from bertvision.types import call_head


class HeadEnsemble(nn.Module):
    """Heads that begin apart and learn apart, on the same states; their mean answers."""

    def __init__(self, heads: Sequence[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(heads)
        self.merges = all(isinstance(head, Head) and _merges(head) for head in heads)

    def forward(self, hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor | list[Tensor]:
        """In training every copy answers for itself, so that each has a loss of its own."""
        if self.merges:
            found = self._merged([cast(Head, member) for member in self.members], hidden, attention_mask, text_ids)
        else:
            if isinstance(first := self.members[0], Head) and not self.reads_first:
                hidden = first.take(hidden)  # once for all
            found = [call_head(member, hidden, attention_mask, text_ids) for member in self.members]
        return found if self.training else torch.stack(found).mean(dim=0)

    def _merged(
        self, heads: list[Head], hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None
    ) -> list[Tensor]:
        """What the copies would find one by one, in wide products and few steps: small ones are mostly overhead."""
        first, adapters = heads[0], [cast(Adapter, head.adapter) for head in heads]
        hidden = first.take(hidden)
        with first.products(hidden):
            weight = torch.cat([each.weight[0] for each in adapters], dim=1)
            bias = torch.cat([each.bias[0] for each in adapters], dim=1)
            wide = project(hidden, weight, bias)
        # (B, L, T, copies x A) -> (copies x B, T, L x A): a copy is as good as more rows to whatever gathers tokens.
        x = wide.unflatten(-1, (len(heads), -1)).permute(3, 0, 2, 1, 4).flatten(0, 1).flatten(2)
        x = first.pool_tokens(
            x.to(first.classifier.weight.dtype),
            attention_mask.repeat(len(heads), 1),
            None if text_ids is None else text_ids.repeat(len(heads), 1),
        )
        return [head.classifier(part) for head, part in zip(heads, x.unflatten(0, (len(heads), -1)), strict=True)]

    @property
    def reads_first(self) -> bool:
        """Whether [CLS] is all that they look at."""
        return all(bool(member.reads_first) for member in self.members)

    @property
    def halved(self) -> bool:
        """Whether training multiplies in bfloat16 whatever they are shown."""
        return all(bool(member.halved) for member in self.members)


def _merges(head: Head) -> bool:
    """Whether a head is an adapter for all layers and a gather that learns nothing."""
    adapter, learns = head.adapter, any(True for _ in head.token_pooling.parameters())
    plain = isinstance(adapter, Adapter) and len(adapter.weight) == 1 and not adapter.norm and not learns
    return (
        plain
        and isinstance(head.layer_pooling, ConcatLayers)
        and not head.skip
        and not head.dropout.p
        and not head.reads_first
    )
