"""Device, precision and optimizer, and the processes that work together. The only file that imports accelerate.

`torchrun` and `accelerate launch` start several processes that all do the same; what they must share or agree on goes
through here. All of it does nothing in a process that is alone.
"""

import ctypes
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from accelerate import Accelerator

Given = TypeVar("Given")
Made = TypeVar("Made")
_NATIVE = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # of a CPU, by torch's names


@cache
def accelerator() -> "Accelerator":
    """Return the process's one Accelerator."""
    from accelerate import Accelerator  # takes seconds that a listing of runs need not wait for

    # Told so, it lets processes on CPUs work together too; without, each would think it is alone.
    return Accelerator(cpu=not torch.accelerator.is_available())


def processes() -> int:
    """How many work together."""
    return accelerator().num_processes


def rank() -> int:
    """Which of them this is."""
    return accelerator().process_index


def first() -> bool:
    """Whether this is the one that writes and prints."""
    return accelerator().is_main_process


def wait() -> None:
    """Wait until all have come here."""
    if processes() > 1:
        accelerator().wait_for_everyone()


def decide(flag: bool) -> bool:
    """Let the first process decide for all: the disk or the clock may look otherwise to another."""
    return bool(total(torch.tensor(int(flag and first())))) if processes() > 1 else flag


def total(tensor: Tensor) -> Tensor:
    """Add up over all processes, in place on a CPU."""
    if processes() == 1:
        return tensor
    here = tensor.to(device())
    distributed.all_reduce(here)
    return here.to(tensor.device)


def average(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, loss: float) -> float:
    """Average gradients and loss over the processes, each weighing as many examples as it had; return the loss."""
    if processes() == 1:
        return loss
    parameters = [p for p in model.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad * count for p in parameters]
    numbers = torch.tensor([loss * count, count], device=device())
    summed = total(torch.cat([*(part.flatten().float() for part in parts), numbers]))
    mean = summed[:-1] / summed[-1]
    for parameter, part in zip(parameters, mean[:-1].split([p.numel() for p in parameters]), strict=True):
        # One that no example reaches has no gradient; where a process had no examples, its history tells.
        if parameter.grad is not None or parameter in optimizer.state:
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
    return float(mean[-1])


def device() -> torch.device:
    """Where tensors live."""
    return accelerator().device


def find_precision(wanted: str) -> str:
    """Return the type that "auto" comes to on this machine; any other is what it says."""
    if wanted != "auto":
        return wanted
    return "bfloat16" if "bfloat16" in _halves() else "float32"


def require_precision(precision: str) -> None:
    """Refuse to compute in half precision where it only costs time."""
    if precision not in ("float32", *_halves()):
        raise BertVisionError(
            f"This machine has no {precision} arithmetic, which would only cost time. Use precision auto."
        )


def _halves() -> list[str]:
    """The half precisions that this machine computes in natively."""
    if device().type == "cpu":
        return ["bfloat16"] if any(torch.cpu.get_capabilities().get(name) for name in _NATIVE) else []
    if device().type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return ["float16"]
    return ["bfloat16", "float16"]


def scaler_for(scaled: bool) -> torch.amp.GradScaler:  # pyright: ignore[reportPrivateImportUsage]
    """Scale the loss where float16 would lose small gradients; elsewhere pass everything through."""
    return torch.amp.GradScaler(device().type, enabled=scaled)  # pyright: ignore[reportPrivateImportUsage]


def optimizer_for(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW without decay on biases and norms; fused: on a CPU several times faster for short batches.

    A model whose parts differ in how fast they learn says so with `paces`.
    """
    groups = []
    for part, pace in model.paces() if hasattr(model, "paces") else [(model, 1.0)]:  # pyright: ignore[reportCallIssue]
        trained = [p for p in part.parameters() if p.requires_grad]
        decayed, plain = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
        groups += [{"params": decayed, "weight_decay": weight_decay, "pace": pace}]
        groups += [{"params": plain, "weight_decay": 0.0, "pace": pace}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


def give_back() -> None:
    """Return freed memory to the system: the C library keeps what training took, and heads need less of it."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def cores() -> int:
    """How many cores torch works with here: 1 where the work is done elsewhere."""
    return torch.get_num_threads() if device().type == "cpu" else 1


def use_cores(number: int) -> None:
    """Let the thread that calls this work with so many cores."""
    torch.set_num_threads(max(1, number))


@contextmanager
def background(threads: int, each: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Yield threads for work beside the main one; what still waits when the caller leaves is dropped."""
    mine = torch.get_num_threads()
    # One core `each`, or few: a second team of torch threads would fight the first for the cores.
    pool = ThreadPoolExecutor(threads, "bertvision", initializer=torch.set_num_threads, initargs=(each,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(mine)  # it is also the default of threads to come


def in_order(
    pool: ThreadPoolExecutor, work: Callable[[Given], Made], items: Iterable[Given], ahead: int
) -> Iterator[Made]:
    """Yield what `work` makes of each item; up to `ahead` later ones are under way meanwhile."""
    waiting: deque[Future[Made]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
