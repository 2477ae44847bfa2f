"""Processes that train together, as `torchrun` or `accelerate launch` start them. Only this module imports accelerate.

All processes run the same program and share results and decisions. In a single process the functions do nothing.
"""

import atexit
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import torch
import torch.distributed as torch_distributed
from torch import Tensor, nn


@dataclass(frozen=True)
class ProcessGroup:
    """The group that this process belongs to, and its place in it."""

    device: torch.device
    """The default device of this process."""
    num_processes: int
    process_index: int


@cache
def process_group() -> ProcessGroup:
    """Return the group of this process. The first call joins it."""
    if torch_distributed.is_available():  # imported later, its default arguments would keep the group and its threads
        import_module("torch.distributed.nn")
    from accelerate import Accelerator  # the import takes seconds that a listing of runs does not need

    # With `cpu=True` processes on CPUs form a group, too; without it, each of them would train alone.
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    atexit.register(_leave_group)
    # `transformers.TrainingArguments` resets the state of all Accelerators, so their values are kept.
    return ProcessGroup(accelerator.device, accelerator.num_processes, accelerator.process_index)


def _leave_group() -> None:
    """Leave the group, which ends its threads. Threads that outlive the interpreter would abort the process."""
    if torch_distributed.is_available() and torch_distributed.is_initialized():
        torch_distributed.destroy_process_group()


def num_processes() -> int:
    """Return the number of processes in the group."""
    return process_group().num_processes


def process_index() -> int:
    """Return the index of this process in the group."""
    return process_group().process_index


def is_main_process() -> bool:
    """Return whether this process writes files and prints."""
    return process_index() == 0


def barrier() -> None:
    """Wait until all processes have reached this call."""
    all_reduce_sum(torch.zeros(1))


def broadcast_decision(flag: bool) -> bool:
    """Return the main process's `flag` in every process: disk and clock may look different to the others."""
    return bool(all_reduce_sum(torch.tensor(int(flag and is_main_process())))) if num_processes() > 1 else flag


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place on a CPU."""
    if num_processes() == 1:
        return tensor
    local = tensor.to(process_group().device)
    torch_distributed.all_reduce(local)
    return local.to(tensor.device)


def average_gradients(model: nn.Module, count: float, loss: float) -> float:
    """Average gradients and loss over the processes, weighted by `count`; return the mean loss.

    `count` is the number of examples of this process, or the sum of their weights. If all are 0, so is the loss.
    """
    if num_processes() == 1:
        return loss
    parameters = [p for p in model.parameters() if p.requires_grad]
    weighted = [torch.zeros_like(p) if p.grad is None else p.grad * count for p in parameters]
    reached = [p.grad is not None for p in parameters]
    numbers = torch.tensor([*reached, loss * count, count], dtype=torch.float32, device=process_group().device)
    summed = all_reduce_sum(torch.cat([*(gradient.flatten().float() for gradient in weighted), numbers]))
    if not summed[-1]:
        return 0.0
    *gradients, reached, loss_sum, total = summed.split([*(p.numel() for p in parameters), len(parameters), 1, 1])
    for parameter, gradient, is_reached in zip(parameters, gradients, reached.tolist(), strict=True):
        if is_reached:  # a parameter that no example of any process reaches has no gradient
            parameter.grad = (gradient / total).view_as(parameter).to(parameter.dtype)
    return float(loss_sum / total)
