"""Run studies of an experiment, on this machine or with their runs computed on a cluster."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError, lookup
from bertvision.lab import cluster
from bertvision.lab.extraction import absolute
from bertvision.lab.studies.context import StudyContext, StudyOptions
from bertvision.lab.studies.result import StudyResult, load_result, result_path
from bertvision.lab.studies.table import STUDIES, studies_for
from bertvision.pipeline.experiment import Experiment, merge

logger: logging.Logger = logging.getLogger(__name__)


def run_study(
    experiment: Experiment,
    name: str,
    *,
    options: StudyOptions | None = None,
    root: str | Path = "runs",
    command: str = "",
) -> StudyResult:
    """Run one study of an experiment, or load its saved result.

    Args:
        experiment: The experiment to repeat over the seeds of `options`.
        name: A key of `STUDIES`.
        options: Seeds and the settings of single studies.
        root: Directory of runs. Runs that are already there are reused.
        command: The command line to record with the result.
    """
    lookup(STUDIES, name, "study")
    [result] = run_studies(experiment, [name], options=options, root=root, command=command)
    return result


def run_studies(
    experiment: Experiment,
    names: Sequence[str],
    *,
    options: StudyOptions | None = None,
    root: str | Path = "runs",
    command: str = "",
) -> Iterator[StudyResult]:
    """Run studies of an experiment and yield their results; saved results are loaded instead.

    The arguments are those of `run_study`. The name "all" stands for the studies that apply to the task.
    """
    context = StudyContext(experiment, options or StudyOptions(), Path(root))
    for name in _study_names(context, names):
        path = result_path(context, name)
        if path.is_file():
            yield load_result(path)
            continue
        study = STUDIES[name]
        logger.info(f"{name} of {context.task.name}: {study.summary}.")
        result = StudyResult(
            study=name,
            task=context.task.name,
            encoder=context.experiment.encoder,
            primary=context.task.primary,
            seeds=context.seeds,
            command=command or f"bertvision study {name} --task {context.task.name}",
            caveats=context.caveats(),
            **vars(study.run(context)),
        )
        result.save(path)
        yield result


def _study_names(context: StudyContext, names: Sequence[str]) -> list[str]:
    """Expand "all" and check names and seeds."""
    if not context.seeds or len(set(context.seeds)) != len(context.seeds):
        raise BertVisionError(f"Studies need one or more different seeds, got {context.seeds}.")
    expanded: list[str] = []
    for name in names:
        expanded += studies_for(context.task, context.options) if name == "all" else [name]
    for name in expanded:
        lookup(STUDIES, name, "study")
    return expanded


@dataclass(frozen=True)
class SeedJob:
    """One seed of an experiment, for a worker that has only the shared directory and the data."""

    settings: dict[str, Any]
    options: dict[str, Any]
    studies: list[str]
    root: str


def run_studies_on_cluster(
    experiments: Sequence[tuple[Experiment, StudyOptions, Sequence[str]]], address: str, root: Path
) -> None:
    """Compute the runs that studies need on a cluster, one job per seed of an experiment.

    `run_studies` then finds these runs and only makes the tables.
    """
    cluster.check_address(address)
    jobs = []
    for experiment, options, names in experiments:
        context = StudyContext(experiment, options, Path(root))
        missing = [name for name in _study_names(context, names) if not result_path(context, name).is_file()]
        if not missing:
            continue
        settings, shared_root = absolute(experiment).to_dict(), str(Path(root).absolute())
        for seed in options.seeds:
            jobs.append(SeedJob(settings, asdict(replace(options, seeds=[seed])), missing, shared_root))
    cluster.connect(address, Path(root))
    cluster.map_on_cluster(run_seed, jobs, "studies")


def run_seed(job: SeedJob) -> None:
    """Compute the runs of one seed; its tables are discarded."""
    experiment = merge(Experiment(), job.settings)
    context = StudyContext(experiment, merge(StudyOptions(), job.options), Path(job.root))
    for name in job.studies:
        STUDIES[name].run(context)
