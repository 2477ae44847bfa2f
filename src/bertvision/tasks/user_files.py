"""Data of a task in the user's own files."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.tasks.base import DataRequest, DataSplits, Task

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class UserFiles:
    """Paths of the user's own files. Without `dev`, the dev set is held out of `train`."""

    train: str
    dev: str = ""
    validation: str = ""
    skip_bad: bool = False
    """Whether rows that cannot be used are skipped instead of being an error."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources that have the data."""
        return ("own files",)

    def load(self, task: Task, request: DataRequest) -> DataSplits:
        """Read every file in the format of `task`."""
        if request.data_dir or request.source not in ("", "local"):
            raise BertVisionError(f"{task.name} reads its own files ({self.train}); it takes no other source.")
        train = task.read(Path(self.train), training=True)
        validation = task.read(Path(self.validation)) if self.validation else None
        source = f"files {self.train}"
        if self.dev:
            return DataSplits(train=train, dev=task.read(Path(self.dev)), validation=validation, source=source)
        remaining, dev = task.split_dev(train)
        logger.info(
            f"No dev file was given: {len(dev):,} of the {len(train):,} examples of {self.train} are held out as the "
            "dev set, the same ones in every run."
        )
        return DataSplits(train=remaining, dev=dev, validation=validation, source=source)


def arguments_from_dict(description: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the JSON of a task back into the arguments of its class: lists into tuples, "own" into `UserFiles`."""
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in description.items()
    }
    arguments.pop("kind", None)
    own = arguments.pop("own", None)
    return arguments | {"data_source": UserFiles(**own) if own else None}
