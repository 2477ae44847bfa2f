"""Hidden states on disk: ragged, in a small number type, checked. docs/store-format.md describes every byte.

<store>/
    rows.safetensors        lengths, labels and ids of all rows
    00000.states, ...       shards: rows end to end, then a CRC-32 of each
    manifest.json           what the states are, and a checksum of everything; written last
    unfinished.json         instead of the manifest while the store is being written
"""

import hashlib
import json
import mmap
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from zlib_ng import zlib_ng  # the CRC-32 of zlib, three times as fast

from bertvision.activations.buffers import Buffers
from bertvision.activations.formats import FORMATS, Format
from bertvision.errors import BertVisionError, lookup
from bertvision.files import locked, write_error
from bertvision.types import View

NAME, VERSION = "bertvision-store", 1
ALIGN = 64  # rows begin at multiples of this many bytes
SHARD = 128 * 1024**2  # bytes of a shard, about
MOST_SHARDS = 256  # a reader keeps them all open and mapped
MANIFEST, UNFINISHED, ROWS = "manifest.json", "unfinished.json", "rows.safetensors"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What is known of every row before a state is computed."""

    lengths: np.ndarray
    """Tokens stored of each row. (N,)"""
    labels: np.ndarray
    ids: list[str]

    def to_bytes(self) -> bytes:
        """Return a safetensors file, the same each time."""
        ids = np.frombuffer(json.dumps(self.ids, ensure_ascii=False).encode(), dtype=np.uint8)
        arrays = {"lengths": self.lengths.astype(np.int64), "labels": self.labels, "ids": ids}
        return save({name: torch.from_numpy(np.ascontiguousarray(array).copy()) for name, array in arrays.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Rows":
        """Read what `to_bytes` gave."""
        found = {name: tensor.numpy() for name, tensor in load(data).items()}
        return cls(lengths=found["lengths"], labels=found["labels"], ids=json.loads(found["ids"].tobytes()))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where every byte of a store lies; nothing in it depends on the states' values."""

    type: str
    view: View
    width: int
    lengths: np.ndarray
    shard: int = SHARD
    starts: np.ndarray = field(init=False)
    """First byte of each row within its shard. (N,)"""
    sizes: np.ndarray = field(init=False)
    """Bytes of each row, with its share of alignment. (N,)"""
    bounds: list[tuple[int, int]] = field(init=False)
    """First row of each shard, and the one after its last."""

    def __post_init__(self) -> None:
        sizes = -(-self.lengths * self.view.channels * self.format.state_bytes(self.width) // ALIGN) * ALIGN
        ends = np.cumsum(sizes)
        # Any two neighbours together are larger than this, or they would be one: half of it would make twice as many.
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
        """How a state becomes bytes."""
        return lookup(FORMATS, self.type, "type of stored states")

    def shard_bytes(self, number: int) -> int:
        """Size of a shard's file."""
        first, last = self.bounds[number]
        return int(self.sizes[first:last].sum()) + 4 * (last - first)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return int(self.sizes.sum()) + 4 * len(self.sizes)

    def describe(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "type": self.type,
            "layers": list(self.view.layers),
            "pooled": self.view.pooled,
            "tokens": "first" if self.view.first else "all",
            "width": self.width,
            "align": ALIGN,
            "shard": self.shard,
        }


def shard_name(number: int) -> str:
    """Name a shard's file."""
    return f"{number:05}.states"


def canonical(value: Any) -> bytes:
    """Write JSON in the one way that a manifest is written."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def seal(manifest: dict[str, Any]) -> bytes:
    """Return a manifest with its own checksum."""
    return canonical(manifest | {"checksum": hashlib.sha256(canonical(manifest)).hexdigest()})


def differences(asked: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Word what differs, or return nothing."""
    keys = [key for key in asked if asked[key] != found.get(key)]
    return "; ".join(f"{key} is {_short(found.get(key))} instead of {_short(asked[key])}" for key in keys)


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        value = value[:8]
    if isinstance(value, list) and value == list(range(len(value))):
        value = f"0-{len(value) - 1}"
    return str(value)


def is_store(path: Path) -> bool:
    """Whether a finished store is there."""
    return _is_own(path, MANIFEST)


def is_begun(path: Path) -> bool:
    """Whether an unfinished store is there."""
    return _is_own(path, UNFINISHED)


def _is_own(path: Path, name: str) -> bool:
    """Whether a file is a store's, damaged or not: others call theirs manifest.json too."""
    file = Path(path) / name
    return file.is_file() and (file.with_name(ROWS).is_file() or NAME.encode() in file.read_bytes())


def leftovers(path: Path) -> list[Path]:
    """Return the temporary files of a writer that was killed."""
    return [file for name in (MANIFEST, UNFINISHED, ROWS, "*.states") for file in path.glob(f".{name}.*.tmp")]


class _Shard(NamedTuple):
    """An open shard."""

    file: int
    mapped: Tensor
    crcs: np.ndarray


class Store:
    """A finished store, open for reading; several threads and processes may read it at once."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.manifest = self._read_manifest()
        try:
            layout = self.manifest["layout"]
            self.identity: dict[str, Any] = self.manifest["identity"]
            self.view = View(layers=tuple(layout["layers"]), pooled=layout["pooled"], first=layout["tokens"] == "first")
            self.known = self._read_rows()
            self.layout = Layout(
                type=layout["type"],
                view=self.view,
                width=layout["width"],
                lengths=self.known.lengths,
                shard=layout["shard"],
            )
            self.checks = [shard["sha256"] for shard in self.manifest["shards"]]
        except (KeyError, TypeError) as error:
            raise self._error(f"its manifest lacks {error}") from error
        self.rows = len(self.known.ids)
        self._shards: dict[int, _Shard] = {}
        self._shard_of = np.repeat(np.arange(len(self.layout.bounds)), [b - a for a, b in self.layout.bounds])
        self._checked = np.zeros(self.rows, dtype=bool)
        self._lock = threading.Lock()
        self.buffers = Buffers()

    def _error(self, what: str) -> BertVisionError:
        return BertVisionError(
            f"The store at {self.path} cannot be used: {what}. Remove it (`bertvision store remove`) and extract again."
        )

    def _read_manifest(self) -> dict[str, Any]:
        try:
            if not is_store(self.path):
                raise BertVisionError(
                    f"The store at {self.path} is unfinished; the command that began it goes on where it stopped."
                    if is_begun(self.path)
                    else f"No activation store at {self.path}. `bertvision extract` makes one."
                )
            data = (self.path / MANIFEST).read_bytes()
        except OSError as error:
            raise BertVisionError(f"Cannot read {self.path / MANIFEST}: {error.strerror}.") from error
        try:
            found = json.loads(data)
            bare = {key: value for key, value in found.items() if key != "checksum"}
        except (ValueError, AttributeError):
            raise self._error(f"{MANIFEST} is damaged") from None
        if found.get("format") == NAME and found.get("version") != VERSION:
            raise BertVisionError(
                f"The store at {self.path} has version {found.get('version')} of the format; "
                f"this bertvision reads version {VERSION}."
            )
        if seal(bare) != data:
            raise self._error(f"{MANIFEST} is damaged")
        return found

    def _read_rows(self) -> Rows:
        try:
            data = (self.path / ROWS).read_bytes()
        except OSError as error:
            raise self._error(f"{ROWS} cannot be read ({error.strerror})") from error
        if hashlib.sha256(data).hexdigest() != self.manifest["rows"]["sha256"]:
            raise self._error(f"{ROWS} is damaged")
        try:
            return Rows.from_bytes(data)
        except (SafetensorError, ValueError) as error:
            raise self._error(f"{ROWS} is damaged ({error})") from error

    def lacks(self, identity: Mapping[str, Any], view: View) -> str:
        """Say why this store cannot serve these states, or nothing if it can."""
        wrong = [text] if (text := differences(identity, self.identity)) else []
        if missing := sorted(set(view.layers) - set(self.view.layers)):
            wrong.append(f"layers {_short(list(self.view.layers))} are there, {_short(missing)} are not")
        if self.view.first and not view.first:
            wrong.append("only the first token is there")
        if view.pooled and not self.view.pooled:
            wrong.append("the pooled [CLS] is not there")
        return "; ".join(wrong)

    def require(self, identity: Mapping[str, Any], view: View) -> "Store":
        """Refuse to serve states of anything but what is asked for."""
        if wrong := self.lacks(identity, view):
            raise BertVisionError(
                f"The store at {self.path} holds other states than asked for: {wrong}. Extract again, or name another."
            )
        return self

    def _open(self, number: int) -> "_Shard":
        """Map a shard once, and check the CRCs of its rows against the manifest."""
        with self._lock:
            if number not in self._shards:
                self._shards[number] = self._open_anew(number)
            return self._shards[number]

    def _open_anew(self, number: int) -> "_Shard":
        name, expected = shard_name(number), self.layout.shard_bytes(number)
        first, last = self.layout.bounds[number]
        try:
            file = os.open(self.path / name, os.O_RDONLY)
        except FileNotFoundError:
            raise self._error(f"shard {name} is missing") from None
        except OSError as error:
            raise self._error(f"shard {name} cannot be read ({error.strerror})") from error
        size = os.fstat(file).st_size
        if size != expected:
            os.close(file)
            raise self._error(f"shard {name} has {size:,} bytes instead of {expected:,}")
        table = os.pread(file, 4 * (last - first), expected - 4 * (last - first))
        if hashlib.sha256(table).hexdigest() != self.checks[number]:
            os.close(file)
            raise self._error(f"the checksums at the end of shard {name} are damaged")
        # Copy on write, and nobody writes: torch refuses memory that could not be written.
        mapped = torch.frombuffer(mmap.mmap(file, expected, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        return _Shard(file, mapped, np.frombuffer(table, dtype="<u4"))

    def close(self) -> None:
        """Give the files back; what is read later opens them again."""
        while self._shards:
            os.close(self._shards.popitem()[1].file)

    def __del__(self) -> None:
        if hasattr(self, "_shards"):
            self.close()

    def advise(self, rows: np.ndarray) -> None:
        """Let the disk begin to fetch these rows."""
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        rows = np.sort(rows)
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(self._shard_of[rows]) != 0)) + 1
        for run in np.split(rows, ends):  # neighbours in one shard
            file = self._open(int(self._shard_of[run[0]])).file
            start = int(self.layout.starts[run[0]])
            end = int(self.layout.starts[run[-1]] + self.layout.sizes[run[-1]])
            os.posix_fadvise(file, start, end - start, os.POSIX_FADV_WILLNEED)

    def bytes_of(self, rows: np.ndarray) -> list[Tensor]:
        """Return each row as stored, in mapped memory; check it the first time: it is the disk that may fail."""
        found = []
        for row in rows.tolist():
            number, start = int(self._shard_of[row]), int(self.layout.starts[row])
            shard = self._open(number)
            data = shard.mapped[start : start + int(self.layout.sizes[row])]
            if not self._checked[row]:
                if zlib_ng.crc32(data.numpy().data) != shard.crcs[row - self.layout.bounds[number][0]]:
                    raise self._error(f"row {row} ({self.known.ids[row]}) in shard {shard_name(number)} is damaged")
                self._checked[row] = True
            found.append(data)
        return found

    def decode(self, rows: np.ndarray, data: Sequence[Tensor], view: View) -> Tensor:
        """Turn what `bytes_of` returned into padded states, on the device it is on. -> (B, L, T, W)"""
        lengths = self.known.lengths[rows].tolist()
        channels, width, form = self.view.channels, self.layout.width, self.layout.format
        positions = [self.view.layers.index(layer) for layer in view.layers]
        positions += [channels - 1] if view.pooled else []
        longest = 1 if view.first else max(lengths)
        shape, device = (len(rows), view.channels, longest, width), data[0].device
        hidden = self.buffers.take(*shape) if device.type == "cpu" else torch.empty(shape, device=device)
        for here, row, tokens in zip(hidden, data, lengths, strict=True):
            parts, at, seen = [], 0, min(tokens, longest)
            for part in form.parts:
                wide = part.width(width)
                end = at + channels * tokens * wide * part.dtype.itemsize
                states = row[at:end].view(part.dtype).view(channels, tokens, wide)[:, :seen]
                parts.append(states if view.channels == channels else states[positions])
                at = end
            form.decode(parts, here[:, :seen])
            here[:, seen:] = 0
        return hidden

    def verify(self) -> Iterator[tuple[int, list[str]]]:
        """Read everything; yield the rows looked at, and what is wrong with them."""
        self._checked[:] = False
        for number, (first, last) in enumerate(self.layout.bounds):
            wrong = []
            try:
                self._open(number)
            except BertVisionError as error:
                yield last - first, [str(error)]
                continue
            for row in range(first, last):
                try:
                    self.bytes_of(np.array([row]))
                except BertVisionError as error:
                    wrong.append(str(error))
            yield last - first, wrong


def find_stores(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the stores under a directory: finished, unfinished."""
    finished = sorted(path.parent for path in Path(root).rglob(MANIFEST) if is_store(path.parent))
    unfinished = sorted(path.parent for path in Path(root).rglob(UNFINISHED) if is_begun(path.parent))
    return finished, [path for path in unfinished if path not in finished]


def remove_store(path: Path) -> int:
    """Delete a store's own files, and its directory if nothing else is in it; return the bytes freed."""
    path = Path(path).absolute()
    if not is_store(path) and not is_begun(path):
        raise BertVisionError(f"No activation store at {path}, so nothing is removed.")
    with locked(path, wait=False):
        own = [path / MANIFEST, path / UNFINISHED, path / ROWS, *path.glob("[0-9]*.states"), *leftovers(path)]
        try:
            own = [file for file in own if file.is_file()]
            freed = sum(file.stat().st_size for file in own)
            for file in own:  # the manifest first: half a store must not look whole
                file.unlink()
            if not any(path.iterdir()):
                path.rmdir()
        except OSError as error:
            raise write_error(path, error) from error
    path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    return freed
