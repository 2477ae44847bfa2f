"""The format of a store on disk. docs/store-format.md specifies it completely.

<store>/
    rows.safetensors        lengths, labels and ids of all rows; for pairs, the starts of second texts
    00000.states, ...       shards: rows, then the CRC-32 of each row
    manifest.json           the identity of the states and all checksums; written last
    unfinished.json         instead of the manifest while the store is being written
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from bertvision.errors import lookup
from bertvision.files import parse_json
from bertvision.states.formats import FORMATS, Format
from bertvision.types import StateView

NAME, VERSION = "bertvision-store", 1
ALIGN = 64  # rows begin at multiples of this many bytes
SHARD = 128 * 1024**2  # approximate bytes of a shard
MAX_LAYERS = 1000
MAX_TOKENS = 2**24  # of a row
MOST_SHARDS = 256  # a reader keeps them all open and mapped
MANIFEST, UNFINISHED, ROWS = "manifest.json", "unfinished.json", "rows.safetensors"


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """Lengths, labels and ids of the rows of a store."""

    lengths: np.ndarray
    """The number of stored tokens of each row. (N,)"""
    labels: np.ndarray
    ids: list[str]
    second_text_starts: np.ndarray | None = None
    """(N,) the position of the first token of each pair's second text. None if the rows are single texts."""
    weights: np.ndarray | None = None
    """(N,) the weights of the rows in training. They are not stored."""

    def to_bytes(self) -> bytes:
        """Return the bytes of a safetensors file. They are deterministic."""
        ids = np.frombuffer(json.dumps(self.ids, ensure_ascii=False).encode(), dtype=np.uint8)
        arrays = {"lengths": self.lengths.astype(np.int64), "labels": self.labels, "ids": ids}
        if self.second_text_starts is not None:
            arrays["seconds"] = self.second_text_starts.astype(np.int64)
        return save({name: torch.from_numpy(np.ascontiguousarray(array).copy()) for name, array in arrays.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "RowTable":
        """Read the bytes that `to_bytes` returned. A ValueError says what is wrong with them."""
        arrays = {name: tensor.numpy() for name, tensor in load(data).items()}
        ids, lengths, labels = parse_json(arrays["ids"].tobytes()), arrays["lengths"], arrays["labels"]
        starts = arrays.get("seconds", lengths)
        if not isinstance(ids, list) or not ids or not all(isinstance(id, str) for id in ids):
            raise ValueError("its ids are not a list of strings")
        if lengths.dtype != np.int64 or starts.dtype != np.int64 or labels.dtype.kind not in "if":
            raise ValueError("its arrays are of other types")
        if not len(ids) == len(labels) or not lengths.shape == starts.shape == (len(ids),):
            raise ValueError("its arrays are not equally long")
        if lengths.min() < 1 or max(lengths.max(), starts.max()) > MAX_TOKENS or starts.min() < 0:
            raise ValueError("its rows have impossible lengths")
        return cls(lengths=lengths, labels=labels, ids=ids, second_text_starts=arrays.get("seconds"))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The position of every row in a store. It does not depend on the values of the states."""

    type: str
    view: StateView
    width: int
    lengths: np.ndarray
    shard: int = SHARD
    starts: np.ndarray = field(init=False)
    """The first byte of each row within its shard. (N,)"""
    sizes: np.ndarray = field(init=False)
    """The bytes of each row, alignment included. (N,)"""
    bounds: list[tuple[int, int]] = field(init=False)
    """The first row of each shard, and the one after its last."""

    def __post_init__(self) -> None:
        sizes = -(-self.lengths * self.view.num_channels * self.format.state_bytes(self.width) // ALIGN) * ALIGN
        ends = np.cumsum(sizes)
        # Two neighbouring shards together are larger than the target, so half the target could give twice as many.
        target = max(self.shard, -(-2 * int(ends[-1]) // MOST_SHARDS))
        bounds, first = [], 0
        while first < len(sizes):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + target, side="right")))
            bounds.append((first, last))
            first = last
        starts = np.concatenate([np.cumsum(sizes[a:b]) - sizes[a:b] for a, b in bounds])
        for name, value in (("sizes", sizes), ("bounds", bounds), ("starts", starts)):
            object.__setattr__(self, name, value)

    @property
    def format(self) -> Format:
        """The number format of the states."""
        return lookup(FORMATS, self.type, "type of stored states")

    def shard_bytes(self, number: int) -> int:
        """Return the bytes of a shard's file."""
        first, last = self.bounds[number]
        return int(self.sizes[first:last].sum()) + 4 * (last - first)

    @property
    def bytes(self) -> int:
        """The bytes of all shards."""
        return int(self.sizes.sum()) + 4 * len(self.sizes)

    def describe(self) -> dict[str, Any]:
        """Return the layout as JSON values."""
        return {
            "type": self.type,
            **view_to_manifest(self.view),
            "width": self.width,
            "align": ALIGN,
            "shard": self.shard,
        }


def view_to_manifest(view: StateView) -> dict[str, Any]:
    """Return a view as JSON for a manifest. Bi-encoded layers have negative numbers; the last layer has -1."""
    if view.bi_layers and view.num_layers <= view.bi_layers[-1]:
        raise ValueError("A view of bi-encoded layers can be stored only if its `num_layers` is set.")
    return {
        "layers": [*(layer - view.num_layers for layer in view.bi_layers), *view.cross_layers],
        "pooled": view.pooler_output,
        "tokens": "first" if view.first_token_only else "all",
    }


def view_from_manifest(layout: Mapping[str, Any], num_layers: int = 0) -> StateView:
    """Read what `view_to_manifest` returned.

    `num_layers` is the number of layers of the encoder. Without it, the smallest number that fits is assumed. This
    number is correct if the last cross-encoded or the first bi-encoded layer is stored. In every case,
    `view_to_manifest` returns the same JSON for the view that was read.
    """
    numbers = layout["layers"]
    if (
        not all(type(number) is int and abs(number) <= MAX_LAYERS for number in numbers)
        or sorted(set(numbers)) != numbers
    ):
        raise ValueError(f"the layers {short(numbers)[:40]}")
    cross_layers, bi_numbers = [n for n in numbers if n >= 0], [n for n in numbers if n < 0]
    num_layers = num_layers or max([0, *(n + 1 for n in cross_layers), *(-n for n in bi_numbers)])
    return StateView(
        cross_layers=tuple(cross_layers),
        bi_layers=tuple(n + num_layers for n in bi_numbers),
        pooler_output=layout["pooled"] is True,
        first_token_only=layout["tokens"] == "first",
        num_layers=num_layers,
    )


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"{number:05}.states"


def canonical(value: Any) -> bytes:
    """Return JSON in the format of manifests."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def seal(manifest: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest, with its own checksum added."""
    return canonical(manifest | {"checksum": hashlib.sha256(canonical(manifest)).hexdigest()})


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    """Return a description of the differences, empty if there are none."""
    keys = [key for key in expected if expected[key] != actual.get(key)]
    return "; ".join(f"{key} is {short(actual.get(key))} instead of {short(expected[key])}" for key in keys)


def short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        value = value[:8]
    if isinstance(value, list) and value == list(range(len(value))):
        value = f"0-{len(value) - 1}"
    return str(value)


def is_store(path: Path) -> bool:
    """Return whether `path` is a finished store."""
    return _is_own(path, MANIFEST)


def is_unfinished(path: Path) -> bool:
    """Return whether `path` is an unfinished store."""
    return _is_own(path, UNFINISHED)


def _is_own(path: Path, name: str) -> bool:
    """Return whether a file belongs to a store, damaged or not. Other programs also write a manifest.json."""
    file = Path(path) / name
    own = file.is_file() and not file.is_symlink()
    return own and (file.with_name(ROWS).is_file() or NAME.encode() in file.read_bytes())


def leftovers(path: Path) -> list[Path]:
    """Return the temporary files of interrupted writers."""
    return [file for name in (MANIFEST, UNFINISHED, ROWS, "*.states") for file in path.glob(f".{name}.*.tmp")]
