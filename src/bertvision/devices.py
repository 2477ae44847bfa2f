"""The device that tensors live on, and the number types it computes in."""

import torch

from bertvision import distributed
from bertvision.errors import BertVisionError

_NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")  # CPU capabilities, by torch's names


def device() -> torch.device:
    """Return the device of this process."""
    return distributed.accelerator().device


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
