"""Studies: every table and figure of the paper as one function. To add one: write it in one file, add one line here."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError, lookup
from bertvision.lab import cluster
from bertvision.lab.experiment import Experiment, merge
from bertvision.lab.extraction import absolute
from bertvision.lab.studies import analysis, comparisons, head_epochs, transfer
from bertvision.lab.studies.context import StudyContext, StudyOptions
from bertvision.lab.studies.result import Figure, Result, find_results, load, place
from bertvision.tasks import Task

logger = logging.getLogger(__name__)

__all__ = [
    "STUDIES",
    "Figure",
    "StudyContext",
    "StudyOptions",
    "Result",
    "find_results",
    "load",
    "run",
    "spread",
    "suited",
]


@dataclass(frozen=True)
class Study:
    """A row of the table."""

    run: Callable[[StudyContext], dict[str, Any]]
    summary: str
    paper: str = ""
    """Which tables and figures of the paper it gives."""
    on: str = "all"
    """all, squad2, pairs (and contexts) or sentences."""


# fmt: off
STUDIES: dict[str, Study] = {
    "curve": Study(comparisons.curve, "BERT by fraction, heads where they are read", "Figures A.1, A.2"),
    "zoo": Study(comparisons.zoo, "all heads, BERT and the controls", "Tables 3.1, 3.2, 3.4, A.1-A.3; Figure A.3"),
    "head-epochs": Study(head_epochs.head_epochs, "a head's score after each of its epochs", "Figures 3.4, A.4"),
    "ensemble": Study(comparisons.ensemble, "BERT and heads, together in every way", "Table 3.3"),
    "less-data": Study(comparisons.less_data, "a head from a share of the labels", "Figure 3.3; draft Table 3"),
    "cross-checkpoint": Study(comparisons.cross_checkpoint, "heads trained early, read later", "draft Table 1"),
    "longer": Study(comparisons.longer, "heads on two epochs and more", "Table 4.5"),
    "layer-weights": Study(analysis.layer_weights, "what learned pooling gives each layer"),
    "question-types": Study(analysis.question_types, "right with and without an answer", "Figure 4.5", "squad2"),
    "second-answer": Study(analysis.second_answer, "is the second answer right when the first is wrong?", "", "squad2"),
    "context-length": Study(analysis.context_length, "length of what models get right", "", "pairs"),
    "transfer": Study(transfer.transfer, "a head of one task used for another", "", "sentences"),
}
# fmt: on


def suited(task: Task, options: StudyOptions) -> list[str]:
    """Name the studies that make sense for a task."""
    pairs = task.per_token or len(task.to_dict().get("texts", ())) > 1
    fits = {"all": True, "squad2": task.per_token, "pairs": pairs, "sentences": not task.per_token and bool(options.to)}
    return [name for name, study in STUDIES.items() if fits[study.on]]


def run(
    experiment: Any,
    names: Sequence[str],
    *,
    options: StudyOptions | None = None,
    root: Path = Path("runs"),
    command: str = "",
) -> Iterator[Result]:
    """Run studies of an experiment, those that have a result excepted; "all" stands for those that suit its task."""
    context = StudyContext(experiment, options or StudyOptions(), Path(root))
    for name in _chosen(context, names):
        study = lookup(STUDIES, name, "study")
        path = place(context, name)
        if path.is_file():
            yield load(path)
            continue
        logger.info(f"{name} of {context.task.name}: {study.summary}.")
        result = Result(
            study=name,
            task=context.task.name,
            encoder=context.experiment.encoder,
            primary=context.task.primary,
            seeds=context.seeds,
            command=command or f"bertvision study {name} --task {context.task.name}",
            marks=context.marks(),
            **study.run(context),
        )
        result.save(path)
        yield result


def _chosen(context: StudyContext, names: Sequence[str]) -> list[str]:
    if not context.seeds or len(set(context.seeds)) != len(context.seeds):
        raise BertVisionError(f"Studies need one or more different seeds, got {context.seeds}.")
    found = [each for name in names for each in (suited(context.task, context.options) if name == "all" else [name])]
    for name in found:
        lookup(STUDIES, name, "study")
    return found


@dataclass(frozen=True)
class SeedJob:
    """One seed of an experiment, for a machine that has nothing but the shared directory and the data."""

    settings: dict[str, Any]
    options: dict[str, Any]
    studies: list[str]
    root: str


def spread(
    experiments: Sequence[tuple[Experiment, StudyOptions, Sequence[str]]],
    address: str,
    root: Path,
) -> None:
    """Make on a cluster the runs that studies need, a seed of an experiment each; `run` finds them and makes tables."""
    cluster.check_address(address)
    cells = []
    for experiment, options, names in experiments:
        context = StudyContext(experiment, options, Path(root))
        missing = [name for name in _chosen(context, names) if not place(context, name).is_file()]
        settings, there = absolute(experiment).to_dict(), str(Path(root).absolute())
        one = [asdict(replace(options, seeds=[seed])) for seed in options.seeds if missing]
        cells += [SeedJob(settings, each, missing, there) for each in one]
    cluster.connect(address, Path(root))
    cluster.map_over(run_seed, cells, "studies")


def run_seed(cell: SeedJob) -> None:
    """Make the runs of one seed; the tables of one seed are not kept."""
    experiment = merge(Experiment(), cell.settings)
    context = StudyContext(experiment, merge(StudyOptions(), cell.options), Path(cell.root))
    for name in cell.studies:
        STUDIES[name].run(context)
