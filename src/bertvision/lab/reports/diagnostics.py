"""GLUE's diagnostic set (AX): the Matthews correlation of an mnli model, overall and by linguistic phenomenon."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import matthews_corrcoef

from bertvision.errors import BertVisionError
from bertvision.runs import open_run
from bertvision.tasks.reading import Table, read_tsv
from bertvision.trained_model import TrainedModel

ROWS = 1104
"""The number of rows of the official file."""
LABELLED_FILE = "diagnostic-full.tsv"
GROUPS = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge")
"""Columns that name the phenomena of a row, with semicolons between them."""
TEXTS = ("Premise", "Hypothesis")
CLASSES = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class Phenomenon:
    """The score of a model on the rows with a phenomenon."""

    group: str
    """One of GROUPS, or "all"."""
    name: str
    """The phenomenon; empty: all rows of the group."""
    rows: int
    matthews: float
    """The Matthews correlation of the three classes (R3), times 100."""


def read_diagnostics(path: Path) -> Table:
    """Read the labelled diagnostic file, diagnostic-full.tsv."""
    table = read_tsv(path)
    list(table.pick((*GROUPS, *TEXTS, "Label")))  # a missing column is an error
    for line, (label,) in table.pick(["Label"]):
        if label not in CLASSES:
            table.refuse(line, f"the label is {label!r}, which is not one of {', '.join(CLASSES)}.")
    return table


def diagnose(run: Path, path: Path) -> list[Phenomenon]:
    """Score an mnli model on the diagnostic set."""
    model = TrainedModel(open_run(run))
    classes = getattr(model.task, "classes", ())
    if set(classes) != set(CLASSES) or len(model.task.text_names) != 2:
        raise BertVisionError(
            f"The diagnostic set has the classes of mnli ({', '.join(CLASSES)}) and pairs of texts; the model of "
            f"{model.task.name} does not. Train one: bertvision run --task mnli."
        )
    table = read_diagnostics(path)
    answers = model.predict([texts for _, texts in table.pick(TEXTS)])
    return score_phenomena(table, [answer["label"] for answer in answers])


def score_phenomena(table: Table, predicted: list[str]) -> list[Phenomenon]:
    """Return the score of all rows, then of each group and of its phenomena."""
    gold = np.array([label for _, (label,) in table.pick(["Label"])])
    given = np.array(predicted)

    def score(group: str, name: str, rows: np.ndarray) -> Phenomenon:
        varied = min(len(set(gold[rows])), len(set(given[rows]))) > 1  # else the correlation is 0 by convention
        value = float(matthews_corrcoef(gold[rows], given[rows])) if varied else 0.0
        return Phenomenon(group, name, int(rows.sum()), 100.0 * value)

    scores = [score("all", "", np.ones(len(gold), dtype=bool))]
    for group in GROUPS:
        tags = [set(_tags(cell)) for _, (cell,) in table.pick([group])]
        scores.append(score(group, "", np.array([bool(each) for each in tags])))
        names = sorted(set().union(*tags))
        scores += [score(group, name, np.array([name in each for each in tags])) for name in names]
    return scores


def _tags(cell: str) -> Iterator[str]:
    return filter(None, (part.strip() for part in cell.split(";")))
