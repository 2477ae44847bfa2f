"""Merge the tokens of a text or a pair of texts. (B, T, F), attention mask and text ids (B, T) -> (B, F)"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision import cpu_optimizations
from bertvision.cpu_optimizations import gradients
from bertvision.errors import lookup
from bertvision.types import HeadShape, call_head


class ClsPooling(nn.Module):
    """Keep the first token, [CLS], as BERT does."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return x[:, 0]


class MeanPooling(nn.Module):
    """Average over real tokens."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return _means(x, attention_mask.unsqueeze(1)).squeeze(1)


class MaxPooling(nn.Module):
    """Take the maximum of each feature over real tokens."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return masked_max(x, attention_mask)


class AttentionPooling(nn.Module):
    """Average real tokens with weights from a softmax over learned scores."""

    def __init__(self, features: int):
        super().__init__()
        self.score: nn.Linear = nn.Linear(features, 1, bias=False)  # a bias would cancel in the softmax

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        score = self.score(x).squeeze(-1).masked_fill(~attention_mask, torch.finfo(x.dtype).min)
        return torch.einsum("bt,btf->bf", score.softmax(dim=1), x)


class FlattenPooling(nn.Module):
    """Concatenate the tokens up to a fixed length; padding is zero."""

    def __init__(self, tokens: int):
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and x.shape[1] > self.tokens and attention_mask[:, self.tokens :].any():
            raise ValueError(f"a head with token_pooling=flatten was built for {self.tokens} tokens, got {x.shape[1]}")
        x = x * attention_mask.unsqueeze(-1)
        # Padded, then cut: batches may be longer or shorter, and an exported graph must not depend on it.
        return functional.pad(x, (0, 0, 0, self.tokens))[:, : self.tokens].flatten(start_dim=1)


class ComparePooling(nn.Module):
    """Comparison of two texts u and v: |u - v| and u * v of their maxima over tokens, and of their means.

    u and v are normalized to mean square 1 first, so that products have the scale of their factors. Features are zero
    where there is only one text.
    """

    def forward(self, x: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        texts = split_texts(attention_mask, text_ids)
        is_pair, features = texts[1].any(dim=1, keepdim=True), []
        maxima, means = [masked_max(x, text) for text in texts], _means(x, torch.stack(texts, dim=1)).unbind(dim=1)
        for vectors in (maxima, means):
            u, v = (normalize(torch.where(is_pair, vector, 0.0)) * x.shape[-1] ** 0.5 for vector in vectors)
            features += [(u - v).abs(), u * v]
        return torch.cat(features, dim=-1)


class AlignPooling(nn.Module):
    """Soft alignment: each token is compared with an attention-weighted mix of the tokens of the other text.

    The features are the maxima over the tokens of each text of |token - mix|, scaled as in `ComparePooling`. They are
    zero where there is only one text.
    """

    sharpness: float = 24.0
    """The factor of the similarities in the softmax. With 0, the mix would be the mean of the other text."""

    def forward(self, x: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        first, second = split_texts(attention_mask, text_ids)
        x = normalize(x)
        # Tokens of one text attend to those of the other; padding neither attends nor is attended to.
        others = (first.unsqueeze(1) & second.unsqueeze(2)) | (second.unsqueeze(1) & first.unsqueeze(2))
        differences = (x - self_attention(x, others, self.sharpness)).abs()
        features = torch.cat([masked_max(differences, text) for text in (first, second)], dim=-1)
        return torch.where(second.any(dim=1, keepdim=True), features, 0.0) * x.shape[-1] ** 0.5


class ConcatPooling(nn.Module):
    """Concatenate the results of several token poolings."""

    def __init__(self, *poolings: nn.Module):
        super().__init__()
        self.poolings: nn.ModuleList = nn.ModuleList(poolings)

    def forward(self, x: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        return torch.cat([call_head(pooling, x, attention_mask, text_ids) for pooling in self.poolings], dim=-1)


def split_texts(attention_mask: Tensor, text_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return which tokens are of the first and of the second text; without text ids all are of the first. (B, T)"""
    second = torch.zeros_like(attention_mask) if text_ids is None else attention_mask & (text_ids == 1)
    return attention_mask & ~second, second


def masked_max(x: Tensor, real: Tensor) -> Tensor:
    """Return the largest value of each feature over the real tokens. (B, T, F), (B, T) -> (B, F)"""
    # A sum, because its gradient is cheap; a masked copy of x would cost two more passes over it.
    bias = _mask_bias(real, x.dtype).unsqueeze(-1)
    return gradients.MaskedMax.apply(x, bias) if _written_out(x) else (x + bias).amax(dim=1)


def normalize(x: Tensor) -> Tensor:
    """Scale every vector to length 1. (..., F) -> (..., F)"""
    return gradients.Normalize.apply(x) if _written_out(x) else functional.normalize(x, dim=-1)


def self_attention(x: Tensor, allowed: Tensor, sharpness: float) -> Tensor:
    """Replace each token by a mix of its allowed tokens, weighted by similarity. (B, T, F), (B, T, T) -> (B, T, F)"""
    bias = _mask_bias(allowed, x.dtype)
    if _written_out(x):
        return gradients.SelfAttention.apply(x, bias, sharpness)
    return torch.bmm(torch.baddbmm(bias, x, x.transpose(1, 2), alpha=sharpness).softmax(dim=-1), x)


def _written_out(x: Tensor) -> bool:
    """Return whether to use the hand-written gradients of `cpu_optimizations`, which compute the same values."""
    return x.requires_grad and cpu_optimizations.enabled()


def _mask_bias(real: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a very negative number where a mask is False and 0 elsewhere, to be added to scores."""
    return (~real).to(dtype) * (torch.finfo(dtype).min / 2)


def _means(x: Tensor, real: Tensor) -> Tensor:
    """Return the mean of the tokens of each of N masks. (B, T, F), (B, N, T) -> (B, N, F)"""
    weight = real.to(x.dtype)
    return torch.bmm(weight, x) / weight.sum(dim=2, keepdim=True).clamp(min=1)


TOKEN_POOLINGS = {
    "cls": lambda shape, features: ClsPooling(),
    "mean": lambda shape, features: MeanPooling(),
    "max": lambda shape, features: MaxPooling(),
    "attention": lambda shape, features: AttentionPooling(features),
    "compare": lambda shape, features: ComparePooling(),
    "align": lambda shape, features: AlignPooling(),
    "flatten": lambda shape, features: FlattenPooling(shape.max_tokens),
}


def build_token_pooling(text: str, shape: HeadShape, features: int) -> nn.Module:
    """Build a token pooling such as "max", or several that are concatenated, such as "cls+max"."""
    poolings = [lookup(TOKEN_POOLINGS, name, "token_pooling")(shape, features) for name in text.split("+")]
    return poolings[0] if len(poolings) == 1 else ConcatPooling(*poolings)
