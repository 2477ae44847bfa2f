"""Fine-tune only those rows of an embedding table whose words occur in the training data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class PartialEmbedding(nn.Module):
    """An embedding table of which only some rows are trained.

    Half of a small encoder's weights are embeddings, and most words do not occur in a few thousand texts. Their
    gradient is zero in every step, but a dense table would fill it, clip it, apply it and save it all the same.

    Args:
        table: The full embedding table.
        vocabulary: The ids of all tokens that training will meet. Any other token is an IndexError during training.
    """

    vocabulary: Tensor
    positions: Tensor

    def __init__(self, table: nn.Embedding, vocabulary: Tensor):
        super().__init__()
        self._table = [table]  # in a list, so that it is neither trained nor saved with this module
        self.rows: nn.Parameter = nn.Parameter(table.weight.detach()[vocabulary].clone())
        positions = torch.full((table.num_embeddings,), -1)
        positions[vocabulary] = torch.arange(len(vocabulary))
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.register_buffer("positions", positions, persistent=False)

    @property
    def table(self) -> nn.Embedding:
        """The full table. Its trained rows are out of date until `merge_rows` is called."""
        return self._table[0]

    def forward(self, tokens: Tensor) -> Tensor:
        """Look tokens up: in the trained rows during training, otherwise in the full table."""
        return functional.embedding(self.positions[tokens], self.rows) if self.training else self.table(tokens)

    @torch.no_grad()
    def merge_rows(self) -> nn.Embedding:
        """Copy the trained rows into the full table and return it."""
        self.table.weight[self.vocabulary] = self.rows
        return self.table

    def train(self, mode: bool = True) -> "PartialEmbedding":
        if not mode:
            self.merge_rows()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> "PartialEmbedding":
        self.table._apply(fn)  # to another device
        return super()._apply(fn, recurse)


def restrict_vocabulary(model: Any, vocabulary: Tensor) -> None:
    """Train only these rows of a model's word embeddings, unless they are frozen; a second call adds rows."""
    table = model.get_input_embeddings()
    if isinstance(table, PartialEmbedding):
        vocabulary, table = torch.cat([table.vocabulary, vocabulary]).unique(), table.merge_rows()
    if table.weight.requires_grad:
        model.set_input_embeddings(PartialEmbedding(table, vocabulary))


@contextmanager
def full_table(model: Any) -> Iterator[None]:
    """Put the full embedding table back inside a `with` block, so that the model can be saved as an ordinary one."""
    partial = model.get_input_embeddings()
    if not isinstance(partial, PartialEmbedding):
        yield
        return
    model.set_input_embeddings(partial.merge_rows())
    try:
        yield
    finally:
        model.set_input_embeddings(partial)
