"""Device, precision and seeds. The only file that imports accelerate."""

from contextlib import AbstractContextManager
from functools import cache

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from bertvision.errors import BertVisionError

_PRECISIONS = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


@cache
def accelerator(precision: str = "float32") -> Accelerator:
    """Return the process's one Accelerator for this precision."""
    made = Accelerator(mixed_precision=_PRECISIONS[precision])
    if precision != "float32" and made.device.type == "cpu":
        raise BertVisionError(f"precision {precision!r} is for GPUs; on a CPU it is several times slower. Use float32.")
    return made


def device() -> torch.device:
    """Where tensors live."""
    return accelerator().device


def autocast(precision: str = "float32") -> AbstractContextManager[None]:
    """Compute in `precision` where that is safe."""
    return accelerator(precision).autocast()


def backward(loss: Tensor, precision: str = "float32") -> None:
    """Back-propagate, scaled where float16 needs it."""
    accelerator(precision).backward(loss)


def optimizer_for(
    model: nn.Module, learning_rate: float, weight_decay: float, precision: str = "float32"
) -> torch.optim.Optimizer:
    """AdamW without decay on biases and norms; fused: on a CPU several times faster for short batches."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    if precision == "float16":  # only float16 needs the wrapper: it holds the gradient scaler
        return accelerator(precision).prepare_optimizer(optimizer)
    return optimizer


def clip(model: nn.Module, norm: float, precision: str = "float32") -> None:
    """Limit the norm of one model's gradient."""
    accelerator(precision).clip_grad_norm_(model.parameters(), norm)
