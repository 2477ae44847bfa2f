"""Find, verify and remove stores of hidden states."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.files import file_lock, write_error
from bertvision.states import Store, is_store
from bertvision.states.layout import MANIFEST, ROWS, UNFINISHED, is_unfinished, leftovers


def find_stores(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the stores under a directory: finished, unfinished."""
    finished = sorted(path.parent for path in Path(root).rglob(MANIFEST) if is_store(path.parent))
    unfinished = sorted(path.parent for path in Path(root).rglob(UNFINISHED) if is_unfinished(path.parent))
    return finished, [path for path in unfinished if path not in finished]


def verify_store(store: Store) -> Iterator[tuple[int, list[str]]]:
    """Verify all rows of a store; yield numbers of verified rows with the errors in them."""
    store = Store(store.path)  # which has not verified any row yet
    for first, last in store.layout.bounds:
        errors = []
        for row in range(first, last):
            try:
                store.bytes_of(np.array([row]))
            except BertVisionError as error:
                errors.append(str(error))
        yield last - first, list(dict.fromkeys(errors))  # an unreadable shard is reported once


def remove_store(path: Path) -> int:
    """Delete a store's own files, and its directory if nothing else is in it; return the bytes freed."""
    path = Path(path).absolute()
    if not is_store(path) and not is_unfinished(path):
        raise BertVisionError(f"There is no store of hidden states at {path}, so nothing is removed.")
    with file_lock(path, wait=False):
        own = [path / MANIFEST, path / UNFINISHED, path / ROWS, *path.glob("[0-9]*.states"), *leftovers(path)]
        try:
            own = [file for file in own if file.is_file()]
            freed = sum(file.stat().st_size for file in own)
            for file in own:  # the manifest first, so that the rest does not look like a finished store
                file.unlink()
            if not any(path.iterdir()):
                path.rmdir()
        except OSError as error:
            raise write_error(path, error) from error
    path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    return freed
