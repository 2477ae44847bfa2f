"""Embeddings of the words that occur, trained apart from the rest of the table."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class PartialEmbedding(nn.Module):
    """An embedding table of which only some rows are trained.

    Half of a small encoder's weights are embeddings, and most words do not occur in a few thousand texts: their
    gradient is zero in every step, and yet it would be filled, clipped, descended and saved.
    """

    vocabulary: Tensor
    places: Tensor

    def __init__(self, table: nn.Embedding, vocabulary: Tensor):
        """`words`: every token that training will meet."""
        super().__init__()
        self._table = [table]  # in a list: neither trained nor saved with this module
        self.rows = nn.Parameter(table.weight.detach()[vocabulary].clone())
        places = torch.full((table.num_embeddings,), -1)
        places[vocabulary] = torch.arange(len(vocabulary))
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.register_buffer("places", places, persistent=False)

    @property
    def table(self) -> nn.Embedding:
        """The whole table; as it was before training until `fold` brings it up to date."""
        return self._table[0]

    def forward(self, tokens: Tensor) -> Tensor:
        """Look words up: in training those that occur there, otherwise all."""
        return functional.embedding(self.places[tokens], self.rows) if self.training else self.table(tokens)

    @torch.no_grad()
    def merge_rows(self) -> nn.Embedding:
        """Lay the trained rows into the table."""
        self.table.weight[self.vocabulary] = self.rows
        return self.table

    def train(self, mode: bool = True) -> "PartialEmbedding":
        if not mode:
            self.merge_rows()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> "PartialEmbedding":
        self.table._apply(fn)  # to another device
        return super()._apply(fn, recurse)
