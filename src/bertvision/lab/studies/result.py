"""Results of studies: the rows of a table, how to draw them, and findings in sentences. One JSON file per result."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bertvision.errors import BertVisionError
from bertvision.files import read_json, value_hash, write_json
from bertvision.lab.studies.context import StudyContext

FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Figure:
    """How to draw the rows of a table. `x`, `y`, `color`, `low` and `high` are names of columns."""

    title: str
    kind: Literal["line", "dot", "scatter"]
    """"line" and "scatter" have two numeric axes; "dot" is a dot plot with one name per line on the y axis."""
    x: str
    y: str
    color: str = ""
    low: str = ""
    """With `high`: the interval drawn around y (around x in a dot plot)."""
    high: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    """Draw only the rows that have these values."""


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """What the function of a study returns."""

    columns: list[str]
    """The columns of the table, in order; rows may have more."""
    rows: list[dict[str, Any]]
    """Rows without the first column are drawn in figures and left out of the table."""
    figures: list[Figure] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """The main results, in sentences."""


@dataclass(frozen=True, kw_only=True)
class StudyResult(StudyTable):
    """A table with the experiment that it was computed from."""

    study: str
    task: str
    encoder: str
    primary: str
    """The name of the metric in the column "score"."""
    seeds: list[int]
    command: str
    caveats: list[str] = field(default_factory=list)
    """Deviations from the evaluation protocol, such as fewer than three seeds."""

    def save(self, path: Path) -> None:
        """Write the result to a JSON file."""
        write_json(path, {"format": FORMAT, **asdict(self)})


def load_result(path: Path) -> StudyResult:
    """Load a saved result."""
    values = read_json(path, "result of a study")
    if values.pop("format", None) != FORMAT:
        raise BertVisionError(
            f"{path} was written by another version (expected format {FORMAT}). Delete it and run the study again; "
            "finished runs are reused."
        )
    values["figures"] = [Figure(**figure) for figure in values["figures"]]
    return StudyResult(**values)


def result_path(context: StudyContext, study: str) -> Path:
    """Return the file of a study's result; its name contains a hash of the experiment and the options."""
    options = asdict(context.options)
    options.pop("studies")
    key = value_hash([context.experiment.to_dict(), options])
    return context.root / "studies" / f"{context.task.name}-{study}-{key}.json"


def find_results(root: Path) -> Iterator[StudyResult]:
    """Yield every saved result below `root`."""
    for path in sorted(Path(root).rglob("studies/*.json")):
        yield load_result(path)
