"""Steps of the gathers with gradients written out, where autograd's own take longer than the rest of the head."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def largest(x: Tensor, away: Tensor) -> Tensor:
    """Each feature's largest value, where `away` is not. (B, T, F), (B, T, 1) -> (B, F)"""
    return _Largest.apply(x, away) if x.requires_grad else (x + away).amax(dim=1)


def unit(x: Tensor) -> Tensor:
    """Bring every vector to length 1. (..., F) -> (..., F)"""
    return _Unit.apply(x) if x.requires_grad else functional.normalize(x, dim=-1)


def mix(x: Tensor, away: Tensor, sharpness: float) -> Tensor:
    """A mix of the tokens for each, by likeness; `away` is added to it. (B, T, F), (B, T, T) -> (B, T, F)"""
    return _Mix.apply(x, away, sharpness) if x.requires_grad else torch.bmm(_weights(x, away, sharpness), x)


class _Largest(torch.autograd.Function):
    """Equals share a gradient, as with `amax`; that counts them as whole numbers, which is slow, and keeps the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, away: Tensor) -> Tensor:
        found = (x + away).amax(dim=1)
        ctx.save_for_backward(x, away, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, away, found = ctx.saved_tensors
        here = (x + away).sub_(found.unsqueeze(1)).sign_().add_(1)  # 1 where it stands, 0 where less does
        return here.mul_((gradients[0] / here.sum(dim=1)).unsqueeze(1)), None


class _Unit(torch.autograd.Function):
    """Half as many passes over x as the gradients of a division and a norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        found = x / length.clamp_(min=1e-12)
        ctx.save_for_backward(found, length)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        found, length = ctx.saved_tensors
        (given,) = gradients
        along = (given * found).sum(dim=-1, keepdim=True)
        return torch.addcmul(given, found, along, value=-1).div_(length)


class _Mix(torch.autograd.Function):
    """x is on both sides of its products: one for both instead of one each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, away: Tensor, sharpness: float) -> Tensor:
        weights = _weights(x, away, sharpness)
        ctx.save_for_backward(x, weights)
        ctx.sharpness = sharpness
        return torch.bmm(weights, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, weights = ctx.saved_tensors
        (given,) = gradients
        likeness = torch.bmm(given, x.transpose(1, 2))
        likeness = weights * (likeness - (likeness * weights).sum(dim=-1, keepdim=True))
        direct = torch.bmm(weights.transpose(1, 2), given)
        return torch.baddbmm(direct, likeness + likeness.transpose(1, 2), x, alpha=ctx.sharpness), None, None


def _weights(x: Tensor, away: Tensor, sharpness: float) -> Tensor:
    return torch.baddbmm(away, x, x.transpose(1, 2), alpha=sharpness).softmax(dim=-1)
