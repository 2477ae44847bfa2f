"""What a study finds: plain rows, how to draw them, and what they say; one JSON file each."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.files import read_json, value_hash, write_json
from bertvision.lab.studies.context import StudyContext

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Figure:
    """How to draw rows: names of their columns."""

    title: str
    kind: str
    """line, bar or points."""
    x: str
    y: str
    color: str = ""
    low: str = ""
    """With `high`: the interval drawn around y."""
    high: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    """Rows to draw: those with these values."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished study."""

    study: str
    task: str
    encoder: str
    primary: str
    seeds: list[int]
    command: str
    columns: list[str]
    """Those of the table, in order; rows may hold more."""
    rows: list[dict[str, Any]]
    figures: list[Figure] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """What the numbers say, in sentences."""
    marks: list[str] = field(default_factory=list)
    """Where the protocol is not kept."""

    def save(self, path: Path) -> None:
        """Write it as one file."""
        write_json(path, {"format": FORMAT, **asdict(self)})


def load(path: Path) -> Result:
    """Read a saved result."""
    values = read_json(path, "result of a study")
    if values.pop("format", None) != FORMAT:
        raise BertVisionError(f"{path} is no result of this version's studies; run the study again.")
    values["figures"] = [Figure(**figure) for figure in values["figures"]]
    return Result(**values)


def place(context: StudyContext, study: str) -> Path:
    """Where the result of a study of this experiment is kept."""
    options = asdict(context.options)
    options.pop("studies")
    key = value_hash([context.experiment.to_dict(), options])
    return context.root / "studies" / f"{context.task.name}-{study}-{key}.json"


def find_results(root: Path) -> Iterator[Result]:
    """Yield every result below `root`."""
    for path in sorted(Path(root).rglob("studies/*.json")):
        yield load(path)
