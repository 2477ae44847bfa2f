"""Attention from every token to the question, on the states of all layers."""

from typing import Any

import torch
from torch import Tensor, nn

from bertvision.heads.adapters import Adapter
from bertvision.heads.head import Head
from bertvision.heads.layer_pooling import ConcatLayers
from bertvision.heads.token_pooling import split_texts
from bertvision.types import HeadShape


class QuestionMix(nn.Module):
    """Concatenate the layers of each token, and beside them a mix of the tokens of the question, the first text.

    A single text is its own question. (B, L, T, A), mask and text ids (B, T) -> (B, T, 2 x L x A)
    """

    mixes_tokens = True

    def __init__(self, features: int, size: int):
        super().__init__()
        self.concat: ConcatLayers = ConcatLayers()
        self.query: nn.Linear = nn.Linear(features, size)
        self.key: nn.Linear = nn.Linear(features, size, bias=False)  # a bias would cancel in the softmax
        # Adapters begin with small outputs. Without this, all tokens of the question would have equal weights at first.
        self.norm: nn.LayerNorm = nn.LayerNorm(features)

    def forward(self, x: Tensor, mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        x = self.concat(x, mask)
        question, _ = split_texts(mask, text_ids)
        normed = self.norm(x)
        scores = self.query(normed) @ self.key(normed).transpose(1, 2) * self.query.out_features**-0.5
        scores = scores.masked_fill(~question.unsqueeze(1), torch.finfo(scores.dtype).min)
        return torch.cat([x, scores.softmax(dim=-1) @ x], dim=-1)


def question_attention(shape: HeadShape, size: int, keys: int, **options: Any) -> Head:
    """Build a head with an adapter, attention to the question, and the last layer."""
    adapter = Adapter(shape.num_channels, shape.hidden_size, size)
    return Head(shape, QuestionMix(shape.num_channels * size, keys), adapter=adapter, skip=True, **options)
