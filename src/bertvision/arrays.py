"""Files of arrays, written and read without pickles. Shapes are checked against the file before memory is allocated."""

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.types import Predictions

T = TypeVar("T")


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an .npy file."""
    with atomic_write(path) as file:
        np.save(file, array, allow_pickle=False)


def load_array(path: Path, what: str) -> np.ndarray:
    """Read an .npy file of numbers. `what` names it in error messages."""

    def read() -> np.ndarray:
        with open(path, "rb") as file:
            array = _read(file, path.stat().st_size)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"it holds values of type {array.dtype}")
        return array

    return _readable(path, what, read)


def save_predictions(path: Path, predictions: Predictions) -> None:
    """Write an .npz file."""
    arrays = {"ids": np.array(predictions.ids, dtype=np.str_), "logits": predictions.logits}
    if predictions.offsets is not None:
        arrays["offsets"] = predictions.offsets
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def load_predictions(path: Path) -> Predictions:
    """Read a file that `save_predictions` wrote."""

    def read() -> Predictions:
        with zipfile.ZipFile(path) as archive:
            arrays = {entry.filename: _read_entry(archive, entry) for entry in archive.infolist()}
        ids, logits, offsets = arrays["ids.npy"], arrays["logits.npy"], arrays.get("offsets.npy")
        if ids.dtype.kind != "U" or ids.ndim != 1 or logits.dtype.kind != "f" or logits.ndim != 2:
            raise ValueError("its arrays have other types or dimensions than predictions")
        if offsets is None:
            complete = len(ids) == len(logits)
        else:
            integers = offsets.dtype.kind in "iu" and offsets.shape == (len(ids) + 1,)
            complete = (
                integers and offsets[0] == 0 and offsets[-1] == len(logits) and bool((np.diff(offsets) > 0).all())
            )
        if not complete:
            raise ValueError("its arrays do not have the same rows")
        return Predictions(ids=ids.tolist(), logits=logits, offsets=offsets)

    return _readable(path, "predictions file", read)


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if entry.compress_type != zipfile.ZIP_STORED:  # NumPy writes none, and a small file could fill the memory
        raise ValueError("it is compressed")
    with archive.open(entry) as file:
        return _read(file, entry.file_size)


def _read(file: IO[bytes], size: int) -> np.ndarray:
    """Read an array from a file of `size` bytes. Arrays of Python objects are refused."""
    form = np.lib.format
    version = form.read_magic(file)
    shape, _, dtype = (form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    if file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"its size is not that of an array of shape {shape}")
    file.seek(0)
    return form.read_array(file, allow_pickle=False)


def _readable(path: Path, what: str, read: Callable[[], T]) -> T:
    """Turn all errors of reading a file into a BertVisionError. NumPy and zipfile raise many kinds."""
    try:
        return read()
    except FileNotFoundError:
        raise BertVisionError(f"There is no {what} at {path}. Only a finished run has one.") from None
    except Exception as error:
        raise BertVisionError(f"{path} is not a readable {what}: {error}.") from error
