"""The device that tensors live on, and the number types it computes in."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from bertvision import distributed
from bertvision.errors import BertVisionError

_NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # CPU capabilities, by torch's names


_chosen: ContextVar[torch.device | None] = ContextVar("device", default=None)


def manual_seed(seed: int) -> None:
    """Set the seed of PyTorch on all devices.

    Without a GPU, `torch.manual_seed` queues a call with a stack trace for each kind of device, which takes longer than
    a small training step.
    """
    if torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def device() -> torch.device:
    """Return the device that `use_device` selects here, or else the default device of this process."""
    return _chosen.get() or distributed.process_group().device


@contextmanager
def use_device(name: str | torch.device) -> Iterator[torch.device]:
    """Compute on a device within a `with` block: "cpu", "cuda", "cuda:1", "mps", ..., or "auto" for the default device.

    The choice applies to the calling thread, and to pools that it opens with `threads.thread_pool`.

    >>> with use_device("cpu"):
    ...     device()
    device(type='cpu')
    """
    token = _chosen.set(find_device(name))
    try:
        yield device()
    finally:
        _chosen.reset(token)


def find_device(name: str | torch.device) -> torch.device:
    """Return the device of this name. Raise an error if this machine does not have it."""
    default, available = distributed.process_group().device, _available_devices()
    try:
        wanted = default if name == "auto" else torch.device(name)
    except (RuntimeError, TypeError):
        raise BertVisionError(f"{name!r} is not a device. Use one of auto, {', '.join(available)}.") from None
    if distributed.num_processes() > 1:
        if wanted.type != default.type or wanted.index not in (None, default.index):
            raise BertVisionError(
                f"This process was started in a group, which computes on {default}, but the device {str(wanted)!r} was "
                "selected. Leave out the device, or select it in the launcher."
            )
        return default
    full_name = str(wanted)
    if wanted.type != "cpu" and wanted.index is None:  # tensors report the number of their device
        full_name += f":{torch.accelerator.current_device_index() if torch.accelerator.is_available() else 0}"
    if full_name not in available:
        raise BertVisionError(
            f"The device {str(wanted)!r} is not available here. Use one of auto, {', '.join(available)}."
        )
    return torch.device(full_name)


def _available_devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    numbers = range(torch.accelerator.device_count())  # none without an accelerator
    return ["cpu", *(f"{accelerator.type}:{number}" for number in numbers if accelerator)]


def resolve_precision(precision: str) -> str:
    """Return the number type that "auto" stands for on this machine; any other value is returned as it is."""
    if precision != "auto":
        return precision
    return "bfloat16" if "bfloat16" in _native_half_precisions() else "float32"


def check_precision(precision: str) -> None:
    """Refuse a half precision that this machine can only emulate, which would be slower than float32."""
    if precision not in ("float32", *_native_half_precisions()):
        raise BertVisionError(
            f"This machine has no native {precision} arithmetic, so {precision} would only be slower. "
            "Use precision auto or float32."
        )


def onednn_multiplies_bfloat16() -> bool:
    """Return whether oneDNN, which multiplies on a CPU, may use bfloat16. ONEDNN_MAX_CPU_ISA can forbid it."""
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _native_half_precisions() -> list[str]:
    if device().type == "cpu":
        native = any(torch.cpu.get_capabilities().get(name) for name in _NATIVE_BFLOAT16)
        return ["bfloat16"] if native and onednn_multiplies_bfloat16() else []
    if device().type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return ["float16"]
    return ["bfloat16", "float16"]
