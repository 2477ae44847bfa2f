"""The data sets of the benchmark of peers, and the rows that all methods are given."""

import csv
import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from bertvision import heads
from bertvision.encoders import load_encoder_info
from bertvision.errors import BertVisionError
from bertvision.inputs import read_rows
from bertvision.inputs.rows import examples_from_rows, task_from_rows
from bertvision.pipeline import ExperimentData, load_data
from bertvision.pipeline.config import resolve
from bertvision.pipeline.data import split_validation
from bertvision.pipeline.experiment import Experiment, make
from bertvision.tasks import TASKS, DataRequest, DataSplits, Example, TextTask

Labelled = tuple[list[str], list[str]]
"""Texts and labels."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A data set of the benchmark: a column of its table."""

    task: str
    """The name of a benchmark task, or of one of OTHER."""
    kind: str = "text"
    """"text" or "pair"."""
    metric: str = "accuracy"
    rows: int = 0
    """Training rows at most, validation included. 0: all."""
    scored_rows: int = 0
    """Scored rows at most. 0: all."""

    @property
    def is_regression(self) -> bool:
        """Whether a score is predicted instead of a class."""
        return self.metric == "pearson"


COLUMNS = {
    "mrpc": Column(task="mrpc", kind="pair"),
    "stsb": Column(task="stsb", kind="pair", metric="pearson"),
    "rotten-tomatoes": Column(task="rotten-tomatoes", rows=3000),
    "snli": Column(task="snli", kind="pair", rows=3000, scored_rows=3000),
    "banking77": Column(task="banking77"),
    "trec": Column(task="trec"),
    "ag_news": Column(task="ag_news", scored_rows=3000),
    "sst2": Column(task="sst2", rows=10_000),
    "mrpc-3000": Column(task="mrpc", kind="pair", rows=3000),
    "stsb-3000": Column(task="stsb", kind="pair", metric="pearson", rows=3000),
    "banking77-2000": Column(task="banking77", rows=2000),
    "banking77-500": Column(task="banking77", rows=500),
    "trec-500": Column(task="trec", rows=500),
}
"""All data sets by name. The first eight are those of the claims."""

CLAIMED = list(COLUMNS)[:8]


@dataclass(frozen=True, kw_only=True)
class Directories:
    """Where the data are."""

    glue: str = ""
    """The official GLUE files. Empty: the Hub, or the package registry."""
    other: str = ""
    """The directories banking77, trec and ag_news."""


@dataclass(frozen=True, kw_only=True)
class CellData:
    """The rows of a data set. Validation is split off as the pipeline does it, for all methods."""

    task: TextTask
    experiment: Experiment
    train: list[Example]
    validation: list[Example]
    scored: list[Example] = field(repr=False)

    def tokenized(self, experiment: Experiment | None = None) -> ExperimentData:
        """Tokenize training and validation rows. The scored rows are left out: seconds are those of training."""
        experiment = experiment or self.experiment
        config = resolve(experiment, self.task, load_encoder_info(experiment.encoder))
        return load_data(config, DataSplits(train=self.train, dev=[], validation=self.validation))


def load_rows(column: Column, directories: Directories, seed: int, encoder: str = "minilm") -> CellData:
    """Read the rows of a data set and split off validation."""
    task, splits = _read(column, directories)
    experiment = make(task=column.task, encoder=encoder, seed=seed, controls=False)
    settings = experiment.data
    train = task.sample(splits.train, column.rows, settings.split_seed)
    train, validation = split_validation(task, train, settings)
    scored = task.sample(splits.dev, column.scored_rows, settings.split_seed)
    return CellData(task=task, experiment=experiment, train=train, validation=validation, scored=scored)


def missing_data(column: Column, directories: Directories) -> str:
    """Return why the data of a column cannot be read, or an empty string."""
    try:
        _read(column, directories)
    except BertVisionError as error:
        return str(error)
    return ""


def _read(column: Column, directories: Directories) -> tuple[TextTask, DataSplits]:
    if column.task in OTHER:
        return _read_other(column.task, Path(directories.other))
    task = TASKS[column.task]
    assert isinstance(task, TextTask)
    has_registry = "registry" in task.sources
    data_dir = "" if has_registry and column.task != "stsb" else directories.glue
    return task, task.load(DataRequest(data_dir=data_dir))


def _read_other(name: str, root: Path) -> tuple[TextTask, DataSplits]:
    """Read a data set that is not a benchmark task of the package, as a user would read files of their own.

    Training rows whose text is also among the scored rows, but for case and punctuation, are dropped.
    """
    files, read = OTHER[name]
    paths = [root / name / file for file in files]
    if absent := [str(path) for path in paths if not path.is_file()]:
        raise BertVisionError(f"{name} needs the files {', '.join(files)} in a directory {name}; missing: {absent[0]}.")
    (train_texts, train_labels), (test_texts, test_labels) = map(read, paths)
    known = set(map(_normalized, test_texts))
    kept = [row for row, text in enumerate(train_texts) if _normalized(text) not in known]
    train = read_rows([train_texts[row] for row in kept], [train_labels[row] for row in kept])
    task = task_from_rows(train, kind="classification", name=name)
    test = read_rows(test_texts, test_labels)
    examples = [
        [replace(example, id=f"{split}-{example.id}") for example in examples_from_rows(rows, task)]
        for split, rows in (("train", train), ("test", test))
    ]
    return task, DataSplits(train=examples[0], dev=examples[1], source=str(root / name))


def _normalized(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


def _banking77(path: Path) -> Labelled:
    """Columns text and category; some texts span lines."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["category"] for row in rows]


def _trec(path: Path) -> Labelled:
    """COARSE:fine question. The coarse classes are predicted."""
    rows = [line.split(" ", 1) for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]
    return [text for _, text in rows], [label.partition(":")[0] for label, _ in rows]


def _ag_news(path: Path) -> Labelled:
    """The piece of train has the columns text and class - 1; the official test set has class, title and description."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row and row[-1] != "label"]
    if len(rows[0]) == 2:
        return [text for text, _ in rows], [label.strip() for _, label in rows]
    return [f"{title} {description}" for _, title, description in rows], [str(int(label) - 1) for label, _, _ in rows]


OTHER: dict[str, tuple[tuple[str, str], Callable[[Path], Labelled]]] = {
    "banking77": (("train.csv", "test.csv"), _banking77),
    "trec": (("TREC.train", "TREC.test"), _trec),
    "ag_news": (("subset_train.csv.gz", "official_test.csv.gz"), _ag_news),
}
"""The files (train, scored) and the readers of data sets that are not benchmark tasks of the package."""


@cache
def our_settings(column: Column) -> dict[str, object]:
    """Return all that our own method depends on: the defaults of the package for this kind of task."""
    kind, experiment = column.kind, make(task=column.task).to_dict()
    experiment.pop("cpu_optimizations")  # the environment sets it
    return {
        "experiment": experiment,
        "heads": [str(config) for config in heads.DEFAULT_HEADS[kind].values()],
        "auxiliary_head": str(heads.AUXILIARY_HEADS[kind]),
        "head_rate": heads.DEFAULT_LEARNING_RATES[kind],
    }
