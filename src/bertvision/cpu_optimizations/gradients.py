"""Steps of token pooling with hand-written gradients, where those of autograd take longer than the rest of the head."""

from typing import Any

import torch
from torch import Tensor


class MaskedMax(torch.autograd.Function):
    """`(x + bias).amax(dim=1)`. (B, T, F), (B, T, 1) -> (B, F)

    Equal values share the gradient, as with `amax`. The gradient of `amax` counts them as 64-bit integers, which is
    slow, and keeps the sum in memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        largest = (x + bias).amax(dim=1)
        ctx.save_for_backward(x, bias, largest)
        return largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, bias, largest = ctx.saved_tensors
        is_largest = (x + bias).sub_(largest.unsqueeze(1)).sign_().add_(1)  # 1 for the largest values, 0 for smaller
        return is_largest.mul_((gradients[0] / is_largest.sum(dim=1)).unsqueeze(1)), None


class Normalize(torch.autograd.Function):
    """`functional.normalize(x, dim=-1)`, whose gradient passes over x half as often as autograd's. (..., F)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=1e-12)
        unit = x / length
        ctx.save_for_backward(unit, length)
        return unit

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        unit, length = ctx.saved_tensors
        (gradient,) = gradients
        parallel = (gradient * unit).sum(dim=-1, keepdim=True)
        return torch.addcmul(gradient, unit, parallel, value=-1).div_(length)


class SelfAttention(torch.autograd.Function):
    """`softmax(bias + sharpness * x @ x.mT) @ x`. (B, T, F), (B, T, T), float -> (B, T, F)

    x is both query and key, so that one product computes the gradient of both.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, sharpness: float) -> Tensor:
        weights = torch.baddbmm(bias, x, x.transpose(1, 2), alpha=sharpness).softmax(dim=-1)
        ctx.save_for_backward(x, weights)
        ctx.sharpness = sharpness
        return torch.bmm(weights, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, weights = ctx.saved_tensors
        (gradient,) = gradients
        scores = torch.bmm(gradient, x.transpose(1, 2))
        scores = weights * (scores - (scores * weights).sum(dim=-1, keepdim=True))
        values = torch.bmm(weights.transpose(1, 2), gradient)
        return torch.baddbmm(values, scores + scores.transpose(1, 2), x, alpha=ctx.sharpness), None, None
