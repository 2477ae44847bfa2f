"""An ensemble of heads."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bertvision import cpu_optimizations
from bertvision.cpu_optimizations.merged_heads import forward_members
from bertvision.heads.adapters import Adapter
from bertvision.heads.head import Head
from bertvision.heads.input_spec import InputSpec, shared_input_spec
from bertvision.heads.layer_pooling import ConcatLayers
from bertvision.heads.span_classifier import SpanClassifier
from bertvision.types import call_head


class HeadEnsemble(nn.Module):
    """An ensemble of independently initialised heads trained on the same hidden states.

    Predictions are the mean of their logits.
    """

    def __init__(self, heads: Sequence[nn.Module]):
        super().__init__()
        self.members: nn.ModuleList = nn.ModuleList(heads)
        self.can_merge: bool = all(isinstance(head, Head) and _can_merge(head) for head in heads)
        """Whether `cpu_optimizations` can compute all members in one wide product."""

    def forward(self, hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor | list[Tensor]:
        """Return the mean of the members' logits, or in training the logits of each, so that each has its own loss."""
        if self.can_merge and cpu_optimizations.enabled():
            logits = forward_members([*self.members], hidden, attention_mask, text_ids)
        else:
            if isinstance(first := self.members[0], Head) and self.input_spec.tokens == "all":
                hidden = first.take(hidden)  # converted once for all members
            logits = [call_head(member, hidden, attention_mask, text_ids) for member in self.members]
        return logits if self.training else torch.stack(logits).mean(dim=0)

    @property
    def input_spec(self) -> InputSpec:
        """The input specification that the members share."""
        return shared_input_spec(self.members)


def _can_merge(head: Head) -> bool:
    """Return whether a head is one adapter for all layers, a token pooling without weights and a classifier."""
    adapter, learns = head.adapter, any(True for _ in head.token_pooling.parameters())
    plain = isinstance(adapter, Adapter) and len(adapter.weight) == 1 and not adapter.norm and not learns
    return (
        plain
        and isinstance(head.layer_pooling, ConcatLayers)
        and not head.skip
        and not head.dropout.p
        and not isinstance(head.classifier, SpanClassifier)
        and head.input_spec.tokens == "all"
    )
