"""Finished stores of hidden states, open for reading."""

import hashlib
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from zlib_ng import zlib_ng  # the CRC-32 of zlib, three times as fast

from bertvision.errors import BertVisionError
from bertvision.files import inside, parse_json
from bertvision.states.layout import (
    MANIFEST,
    NAME,
    ROWS,
    VERSION,
    Layout,
    RowTable,
    differences,
    is_store,
    is_unfinished,
    seal,
    shard_name,
    short,
    view_from_manifest,
)
from bertvision.types import StateView


class _OpenShard(NamedTuple):
    """An open shard."""

    file: int
    mapped: Tensor
    crcs: np.ndarray


class Store:
    """A finished store, open for reading, also by several threads and processes at once."""

    def __init__(self, path: Path, num_layers: int = 0):
        """`num_layers`: layers of the encoder, where known; see `view_from_manifest`."""
        self.path: Path = Path(path)
        self.manifest: dict[str, Any] = self._read_manifest()
        try:
            layout = self.manifest["layout"]
            self.identity: dict[str, Any] = dict(self.manifest["identity"])
            self.view: StateView = view_from_manifest(layout, num_layers)
            self.row_table: RowTable = self._read_rows()
            width, shard = layout["width"], layout["shard"]
            if type(width) is not int or type(shard) is not int or not 0 < width < 2**20 or not 0 < shard < 2**61:
                raise ValueError(f"a width of {width} and shards of {shard} bytes")
            lengths = self.row_table.lengths
            self.layout: Layout = Layout(type=layout["type"], view=self.view, width=width, lengths=lengths, shard=shard)
            self.checks: list[str] = [str(shard["sha256"]) for shard in self.manifest["shards"]]
            if not self.view.num_channels or self.layout.sizes.astype(np.float64).sum() > 2**62:
                raise ValueError(f"rows of {self.layout.sizes.max():,} bytes")
            if len(self.checks) != len(self.layout.bounds):
                raise ValueError(f"{len(self.checks)} shards instead of {len(self.layout.bounds)}")
        except BertVisionError:
            raise
        except KeyError as error:
            raise self._error(f"its manifest lacks {error}") from error
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise self._error(f"its manifest is damaged ({error})") from error
        self.rows: int = len(self.row_table.ids)
        self._shards: dict[int, _OpenShard] = {}
        self._shard_of = np.repeat(np.arange(len(self.layout.bounds)), [b - a for a, b in self.layout.bounds])
        self._checked = np.zeros(self.rows, dtype=bool)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Let worker processes open the store themselves."""
        return Store, (self.path, self.view.num_layers)

    def _error(self, what: str) -> BertVisionError:
        return BertVisionError(
            f"The store at {self.path} cannot be used: {what}. Remove it (`bertvision store remove`) and extract again."
        )

    def _read_manifest(self) -> dict[str, Any]:
        try:
            if not is_store(self.path):
                raise BertVisionError(
                    f"The store at {self.path} is unfinished. Run the command that began it again; it resumes."
                    if is_unfinished(self.path)
                    else f"There is no store of hidden states at {self.path}. `bertvision extract` writes one."
                )
            data = inside(self.path, MANIFEST).read_bytes()
        except OSError as error:
            raise BertVisionError(f"Cannot read {self.path / MANIFEST}: {error.strerror}.") from error
        try:
            manifest = parse_json(data)
            unsealed = {key: value for key, value in manifest.items() if key != "checksum"}
        except (ValueError, AttributeError):
            raise self._error(f"{MANIFEST} is damaged") from None
        if manifest.get("format") == NAME and manifest.get("version") != VERSION:
            raise BertVisionError(
                f"The store at {self.path} has version {manifest.get('version')} of the format; "
                f"this bertvision reads version {VERSION}."
            )
        if seal(unsealed) != data:
            raise self._error(f"{MANIFEST} is damaged")
        return manifest

    def _read_rows(self) -> RowTable:
        try:
            data = inside(self.path, ROWS).read_bytes()
        except OSError as error:
            raise self._error(f"{ROWS} cannot be read ({error.strerror})") from error
        if hashlib.sha256(data).hexdigest() != self.manifest["rows"]["sha256"]:
            raise self._error(f"{ROWS} is damaged")
        try:
            return RowTable.from_bytes(data)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._error(f"{ROWS} is damaged ({error})") from error

    def lacks(self, identity: Mapping[str, Any], view: StateView) -> str:
        """Return why this store does not hold these hidden states; empty if it does."""
        reasons = [text] if (text := differences(identity, self.identity)) else []
        for encoding, stored, asked in (
            ("bi", self.view.bi_layers, view.bi_layers),
            ("cross", self.view.cross_layers, view.cross_layers),
        ):
            if missing := sorted(set(asked) - set(stored)):
                held = short(list(stored)) if stored else "none"
                reasons.append(f"of the {encoding}-encoded layers it holds {held}, but not {short(missing)}")
        if self.view.first_token_only and not view.first_token_only:
            reasons.append("it holds only the first token")
        if view.pooler_output and not self.view.pooler_output:
            reasons.append("it does not hold the pooler output")
        return "; ".join(reasons)

    def require(self, identity: Mapping[str, Any], view: StateView) -> "Store":
        """Return the store; raise an error if it does not hold these hidden states."""
        if reason := self.lacks(identity, view):
            raise BertVisionError(
                f"The store at {self.path} holds other hidden states: {reason}. Extract them again, or use another "
                "store."
            )
        return self

    def _open(self, number: int) -> "_OpenShard":
        """Return a shard; the first time, map it and verify its table of CRCs."""
        with self._lock:
            if number not in self._shards:
                self._shards[number] = self._open_anew(number)
            return self._shards[number]

    def _open_anew(self, number: int) -> "_OpenShard":
        name, expected = shard_name(number), self.layout.shard_bytes(number)
        first, last = self.layout.bounds[number]
        try:
            file = os.open(inside(self.path, name), os.O_RDONLY)
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
        # Copy on write, since torch does not accept read-only memory. Nothing is written.
        mapped = torch.frombuffer(mmap.mmap(file, expected, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        return _OpenShard(file, mapped, np.frombuffer(table, dtype="<u4"))

    def close(self) -> None:
        """Close the files. Later reads open them again."""
        while self._shards:
            os.close(self._shards.popitem()[1].file)

    def __del__(self) -> None:
        if hasattr(self, "_shards"):
            self.close()

    def advise(self, rows: np.ndarray) -> None:
        """Advise the kernel to prefetch these rows."""
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
        """Return the bytes of each row in mapped memory. A row is verified the first time it is read."""
        row_bytes = []
        for row in rows.tolist():
            number, start = int(self._shard_of[row]), int(self.layout.starts[row])
            shard = self._open(number)
            data = shard.mapped[start : start + int(self.layout.sizes[row])]
            if not self._checked[row]:
                if zlib_ng.crc32(data.numpy().data) != shard.crcs[row - self.layout.bounds[number][0]]:
                    raise self._error(f"row {row} ({self.row_table.ids[row]}) in shard {shard_name(number)} is damaged")
                self._checked[row] = True
            row_bytes.append(data)
        return row_bytes

    def decode(self, rows: np.ndarray, data: Sequence[Tensor], view: StateView, hidden: Tensor) -> None:
        """Decode the bytes that `bytes_of` returned into `hidden` (B, L, T, W), with zeros as padding."""
        lengths = self.row_table.lengths[rows].tolist()
        channels, width, form = self.view.num_channels, self.layout.width, self.layout.format
        positions = self.view.positions(view)
        longest = hidden.shape[2]
        # Row by row, so that decoded states are still in the CPU cache when they are rounded.
        exact = None if hidden.dtype == torch.float32 else torch.empty(hidden.shape[1:], device=hidden.device)
        for target, row, tokens in zip(hidden, data, lengths, strict=True):
            parts, at, seen = [], 0, min(tokens, longest)
            for part in form.parts:
                wide = part.width(width)
                end = at + channels * tokens * wide * part.dtype.itemsize
                states = row[at:end].view(part.dtype).view(channels, tokens, wide)[:, :seen]
                parts.append(states if view.num_channels == channels else states[positions])
                at = end
            form.decode(parts, (target if exact is None else exact)[:, :seen])
            if exact is not None:
                target[:, :seen] = exact[:, :seen]
            target[:, seen:] = 0
