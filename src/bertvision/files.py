"""Write files so that a crash never leaves half of one, and a full disk says so."""

import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertvision.errors import BertVisionError

HOST = platform.node() or "here"  # machines that share a disk may have processes of the same number


def temporary_name(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}.tmp")


def rename_into_place(temporary: Path, path: Path) -> None:
    """Give a synced file its name, for good."""
    os.replace(temporary, path)
    sync_directory(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; sync and rename it over `path` on success, drop it on failure."""
    path = Path(path)
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename_into_place(temporary, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):  # whatever is wrong there has been said
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; sync it and rename it to `path` on success."""
    path = Path(path)
    temporary = temporary_name(path)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        sync_directory(temporary)
        if path.exists():  # a leftover without its completion mark; rename cannot replace a full directory
            shutil.rmtree(path)
        rename_into_place(temporary, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def file_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Let one process at a time make `path`; the others wait, or are refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_name(f".{path.name}.lock"), "w")
    except OSError as error:
        raise write_error(path, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BertVisionError(f"Another process is at work on {path}. Wait for it, or stop it.") from None
        yield


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_error(path: Path, error: OSError) -> BertVisionError:
    """Say in one sentence why `path` could not be written, and what would help."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BertVisionError(
            f"No space left on the disk while writing {path}. Free some space, or choose another place; "
            "what was finished before is kept."
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return BertVisionError(f"Cannot write {path}: {error.strerror}. Choose a directory you may write to.")
    return BertVisionError(f"Cannot write {path}: {error.strerror or error}.")


def require_space(path: Path, size: int, what: str) -> None:
    """Refuse early when the disk that holds `path` cannot take `size` more bytes."""
    there = path
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < size:
        raise BertVisionError(
            f"{what} needs {size / 1e6:,.0f} MB at {path}, but the disk has {free / 1e6:,.0f} MB free. "
            "Free some space, or choose another place."
        )


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file, or say in one sentence why it cannot be read."""
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise BertVisionError(f"No {what} at {path}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BertVisionError(f"{path} is not valid JSON, so it cannot be the {what}: {error}.") from error
    except OSError as error:
        raise BertVisionError(f"Cannot read {path}: {error.strerror}.") from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_hash(value: Any) -> str:
    """Return 8 hex digits that name a JSON-able value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, atomically."""
    with atomic_write(path) as file:
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file.name, metadata)
        except SafetensorError as error:  # it wraps the operating system's errors in its own
            code = errno.ENOSPC if "No space left" in str(error) else errno.EIO
            raise OSError(code, str(error)) from error


def load_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file and its metadata, or say in one sentence why it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except FileNotFoundError:
        raise BertVisionError(f"No {what} at {path}.") from None
    except (SafetensorError, OSError) as error:
        raise BertVisionError(f"{path} is not a readable {what}: {error}.") from error
