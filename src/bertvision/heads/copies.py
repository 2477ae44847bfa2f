"""Several copies of a head."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bertvision.heads.head import Head


class Copies(nn.Module):
    """Heads that begin apart and learn apart, on the same states; their mean answers."""

    def __init__(self, heads: Sequence[nn.Module]):
        super().__init__()
        self.copies = nn.ModuleList(heads)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor | list[Tensor]:
        """In training every copy answers for itself, so that each has a loss of its own."""
        if isinstance(first := self.copies[0], Head) and not self.reads_first:
            hidden = first.take(hidden)  # once for all
        found = [copy(hidden, mask) for copy in self.copies]
        return found if self.training else torch.stack(found).mean(dim=0)

    @property
    def reads_first(self) -> bool:
        """Whether [CLS] is all that they look at."""
        return all(bool(copy.reads_first) for copy in self.copies)
