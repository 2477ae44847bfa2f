"""Number formats of stored states, encoded and decoded with torch on the device of the states.

A state is W numbers: one token in one layer. Encoded, it is one or two parts, each of a fixed width, so that the size
of every row is known before anything is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bertvision.errors import BertVisionError

GROUP = 32  # numbers that share a scale in int4


@dataclass(frozen=True)
class FormatPart:
    """One array of an encoded row: (L, T, width(W)) of a type."""

    dtype: torch.dtype
    width: Callable[[int], int]


@dataclass(frozen=True)
class Format:
    """Encoding and decoding of a number format."""

    parts: tuple[FormatPart, ...]
    encode: Callable[[Tensor], tuple[Tensor, ...]]
    """float32 (..., W) -> parts (..., width(W))"""
    decode: Callable[[Sequence[Tensor], Tensor], None]
    """parts, and the float32 (..., W) that receives them"""
    summary: str

    def state_bytes(self, width: int) -> int:
        """Return the bytes of one token in one layer."""
        return sum(part.width(width) * part.dtype.itemsize for part in self.parts)


def _plain(dtype: torch.dtype, summary: str) -> Format:
    def encode(x: Tensor) -> tuple[Tensor, ...]:
        rounded = x.to(dtype)
        if not torch.isfinite(rounded).all():
            raise BertVisionError(
                f"A hidden state is too large for {str(dtype).removeprefix('torch.')}, or not a number: the largest is "
                f"{x.abs().max():g}. Use bfloat16, int8 or float32, unless the encoder is damaged."
            )
        return (rounded,)

    def decode(parts: Sequence[Tensor], out: Tensor) -> None:
        out.copy_(parts[0])

    return Format((FormatPart(dtype, lambda width: width),), encode, decode, summary)


def _require_finite(scale: Tensor) -> None:
    if not torch.isfinite(scale).all():
        raise BertVisionError("A hidden state is not a number, or too large to store. The encoder may be damaged.")


def _encode_int8(x: Tensor) -> tuple[Tensor, ...]:
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    _require_finite(scale * 127)  # the largest value after decoding
    codes = torch.round(x / scale.masked_fill(scale == 0, 1)).clamp_(-127, 127)
    return scale, codes.to(torch.int8)


def _decode_int8(parts: Sequence[Tensor], out: Tensor) -> None:
    scale, codes = parts
    out.copy_(codes).mul_(scale)  # twice as fast as one multiplication of mixed types


def _groups(width: int) -> int:
    return -(-width // GROUP)


def _encode_int4(x: Tensor) -> tuple[Tensor, ...]:
    groups = _groups(x.shape[-1])
    x = functional.pad(x, (0, groups * GROUP - x.shape[-1])).unflatten(-1, (groups, GROUP))
    # The value of largest magnitude is mapped to -8, so that all sixteen codes are used.
    largest = x.gather(-1, x.abs().argmax(dim=-1, keepdim=True)) / -8
    scale = largest.to(torch.float16)
    _require_finite(scale)
    used = scale.float()
    codes = torch.round(x / used.masked_fill(used == 0, 1)).clamp_(-8, 7).add_(8).to(torch.uint8)
    half = GROUP // 2
    packed = codes[..., :half] | (codes[..., half:] << 4)
    return scale.squeeze(-1), packed.flatten(-2)


def _decode_int4(parts: Sequence[Tensor], out: Tensor) -> None:
    scale, packed = parts
    groups, half = scale.shape[-1], GROUP // 2
    packed = packed.unflatten(-1, (groups, half))
    whole = out.shape[-1] == groups * GROUP and out.stride(-1) == 1
    wide = out.unflatten(-1, (groups, GROUP)) if whole else out.new_empty(*packed.shape[:-1], GROUP)
    wide[..., :half] = packed & 15
    wide[..., half:] = packed >> 4
    wide.sub_(8).mul_(scale.float().unsqueeze(-1))
    if not whole:
        out.copy_(wide.flatten(-2)[..., : out.shape[-1]])


FORMATS: dict[str, Format] = {
    "float32": _plain(torch.float32, "exact"),
    "float16": _plain(torch.float16, "10 bits of mantissa, up to 65,504"),
    "bfloat16": _plain(torch.bfloat16, "7 bits of mantissa, any size"),
    "int8": Format(
        (FormatPart(torch.float32, lambda width: 1), FormatPart(torch.int8, lambda width: width)),
        _encode_int8,
        _decode_int8,
        "one scale per token and layer",
    ),
    "int4": Format(
        (FormatPart(torch.float16, _groups), FormatPart(torch.uint8, lambda width: _groups(width) * GROUP // 2)),
        _encode_int4,
        _decode_int4,
        f"one scale per {GROUP} numbers",
    ),
}
