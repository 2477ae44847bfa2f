"""Atomic writes of files and directories, locks, hashes, and error messages about disks."""

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import FileLock, Timeout

from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from torch import Tensor

MAX_JSON = 64 * 1024**2  # bytes of the files of runs, models and stores
MAX_DEPTH = 100
MAX_DIGITS = 300  # a float has at most 309
HOST = platform.node() or "localhost"  # machines that share a disk may have processes with the same id


def temporary_name(path: Path) -> Path:
    """Return the name under which a file is written until it is complete."""
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}.tmp")


def rename_into_place(temporary: Path, path: Path) -> None:
    """Rename a synced file and sync its directory, so that the rename survives a power failure."""
    os.replace(temporary, path)
    sync_directory(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; sync and rename it over `path` on success, delete it on failure."""
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
        with suppress(OSError):  # the error that matters has been raised already
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
        if path.exists():  # incomplete, from an interrupted run; a rename cannot replace a directory that has files
            shutil.rmtree(path)
        rename_into_place(temporary, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def file_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Lock `path`, so that one process at a time writes it. Without `wait`, a lock that is held is an error.

    The lock is released when the process ends, however it ends.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=wait)
    except Timeout:
        raise BertVisionError(f"Another process is at work on {path}. Wait for it, or stop it.") from None
    except OSError as error:
        raise write_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power failure. Windows cannot open directories, and does not need this."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_error(path: Path, error: OSError) -> BertVisionError:
    """Return an error that says why `path` could not be written, and what would help."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BertVisionError(
            f"No space left on the disk while writing {path}. Free some space, or choose another directory. "
            "Finished files are kept."
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return BertVisionError(f"Cannot write {path}: {error.strerror}. Choose a directory you may write to.")
    return BertVisionError(f"Cannot write {path}: {error.strerror or error}.")


def require_space(path: Path, size: int, what: str) -> None:
    """Raise an error if the disk that holds `path` has less than `size` bytes free."""
    existing = next(directory for directory in (path, *path.absolute().parents) if directory.exists())
    free = shutil.disk_usage(existing).free
    if free < size:
        raise BertVisionError(
            f"{what} needs {size / 1e6:,.0f} MB at {path}, but the disk has {free / 1e6:,.0f} MB free. "
            "Free some space, or choose another directory."
        )


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path, what: str, max_bytes: int = MAX_JSON) -> Any:
    """Read a JSON file. `what` names it in error messages."""
    try:
        if (size := os.stat(path).st_size) > max_bytes:
            raise ValueError(f"it has {size:,} bytes, more than {max_bytes:,}")
        return parse_json(Path(path).read_bytes())
    except FileNotFoundError:
        raise BertVisionError(f"No {what} at {path}.") from None
    except ValueError as error:
        raise BertVisionError(f"{path} is not valid JSON, so it cannot be the {what}: {error}.") from error
    except OSError as error:
        raise BertVisionError(f"Cannot read {path}: {error.strerror}.") from error


def parse_json(content: str | bytes) -> Any:
    """Parse JSON of unknown origin. A ValueError says what the rest of the program could not process."""
    try:
        value = json.loads(content, parse_int=_parse_int)
        level, depth = [value], 0
        while level := [entry for group in level for entry in _entries(group)]:
            if (depth := depth + 1) > MAX_DEPTH:
                raise RecursionError
        text = content if isinstance(content, str) else content.decode("latin-1").replace("\0", "")  # UTF-16 holds \0
        if "\\u" in text or not text.isascii():  # json also reads surrogates that are encoded
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except UnicodeEncodeError:
        raise ValueError("it contains a lone surrogate, which is not valid Unicode") from None
    return value


def _entries(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it contains a number of {len(digits):,} digits")
    return int(digits)


def inside(root: Path, path: str | Path, directory: Path | None = None) -> Path:
    """Return a path that a received file names, relative to `directory` (default: `root`), if it stays in `root`.

    Other paths, symbolic links and special files are refused. Links inside the Hub's cache are followed.
    """
    root = Path(os.path.abspath(root))
    target = Path(os.path.normpath(Path(directory or root).absolute() / path))
    too_long = len(str(target)) > 4000 or any(len(part.encode("utf-8", "replace")) > 255 for part in target.parts)
    if too_long or "\0" in str(path) or Path(path).anchor or not target.is_relative_to(root):
        what = "too long a name" if too_long else "outside of it. Nothing outside of it is read"
        raise BertVisionError(f"{root} refers to {str(path)!r}, which is {what}.")
    blobs = root.resolve().parents[1] / "blobs" if root.parent.name == "snapshots" else None
    for part in (target, *target.parents[: len(target.parts) - len(root.parts)]):
        if part != root and part.is_symlink() and part.resolve().parent != blobs:
            raise BertVisionError(f"{part} is a symbolic link, which is not followed. Put a copy of the file there.")
    if target.exists() and not target.is_file() and not target.is_dir():
        raise BertVisionError(f"{target} is neither a file nor a directory.")
    return target


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_hash(value: Any) -> str:
    """Return 8 hex digits that identify a value that JSON can express."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()[:8]


def save_tensors(path: Path, tensors: dict[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file  # imports torch

    with atomic_write(path) as file:
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file.name, metadata)
        except SafetensorError as error:  # wraps errors of the operating system
            code = errno.ENOSPC if "No space left" in str(error) else errno.EIO
            raise OSError(code, str(error)) from error


def load_tensors(path: Path, what: str) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """Read a safetensors file and its metadata. `what` names it in error messages."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except FileNotFoundError:
        raise BertVisionError(f"No {what} at {path}.") from None
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise BertVisionError(f"{path} is not a readable {what}: {error}.") from error
