"""Device, precision and optimizer. The only file that imports accelerate."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bertvision.errors import BertVisionError

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@cache
def accelerator() -> Accelerator:
    """Return the process's one Accelerator."""
    return Accelerator()


def device() -> torch.device:
    """Where tensors live."""
    return accelerator().device


def require_precision(precision: str) -> None:
    """Refuse half precision where it only costs time."""
    if precision != "float32" and device().type == "cpu":
        raise BertVisionError(f"precision {precision!r} is for GPUs; on a CPU it is several times slower. Use float32.")


def autocast(precision: str = "float32") -> AbstractContextManager[Any]:
    """Compute in `precision` where that is safe."""
    return nullcontext() if precision == "float32" else torch.autocast(device().type, _TYPES[precision])


def scaler_for(precision: str) -> torch.amp.GradScaler:  # pyright: ignore[reportPrivateImportUsage]
    """Scale the loss where float16 would lose small gradients; elsewhere pass everything through."""
    return torch.amp.GradScaler(device().type, enabled=precision == "float16")  # pyright: ignore[reportPrivateImportUsage]


def optimizer_for(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW without decay on biases and norms; fused: on a CPU several times faster for short batches."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


@contextmanager
def background(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Yield threads for work beside the main one; what still waits when the caller leaves is dropped."""
    mine = torch.get_num_threads()
    # One core each: a second team of torch threads would fight the first for the cores.
    pool = ThreadPoolExecutor(threads, "bertvision", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(mine)  # it is also the default of threads to come
