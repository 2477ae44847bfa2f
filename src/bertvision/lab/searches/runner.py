"""Run a search: choose settings by validation score, then score the best ones once on dev.

runs/<task>/<encoder>/search-<target>-<8 hex>/
    study.db        every trial (unless another Optuna storage is given)
    best.toml       the best settings; `bertvision run best.toml` reproduces the result
    search.md       the history of trials and the importance of each setting
    search.json     the same for programs, with the final scores; written last
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from optuna import Study

from bertvision import distributed, pipeline
from bertvision.encoders import load_encoder_info
from bertvision.errors import BertVisionError, lookup
from bertvision.files import atomic_write, file_lock, value_hash, write_json
from bertvision.heads import resolve_heads, select_layers
from bertvision.lab import cluster
from bertvision.lab.experiment_files import to_toml
from bertvision.lab.searches import optuna_study
from bertvision.lab.searches.history import history_markdown, history_rows, parameter_importance
from bertvision.lab.searches.space import (
    CANDIDATES,
    BertSpace,
    Space,
    TrialSettings,
    check_space,
    default_trial,
    suggest_settings,
)
from bertvision.lab.searches.trials import TrialRunner
from bertvision.pipeline import ExperimentResult, find_task
from bertvision.pipeline.experiment import Experiment, check, overlay, resolve_fractions
from bertvision.runs import Run, slug

logger: logging.Logger = logging.getLogger(__name__)

SHARDED = {"mnli": 0.1, "qnli": 0.1, "qqp": 0.1, "sst2": 0.1}
"""Large tasks, and the random share of their training data that is searched on by default."""
SPACES: dict[str, type[Space] | type[BertSpace]] = {"head": Space, "bert": BertSpace}
BATCH_TRIALS = 5
"""Trials that are drawn at once. Those on this machine are trained in one pass over the hidden states."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    experiment: Experiment
    """The best settings, on all the data."""
    settings: TrialSettings
    validation: float
    """Their validation score in the search, the mean over seeds."""
    final: list[ExperimentResult]
    """The runs of the best settings, scored on dev, one for each seed."""
    history: list[dict[str, Any]]
    importance: dict[str, float]
    directory: Path

    @property
    def runs(self) -> list[Run]:
        """The run of the best head (or of BERT) for each seed."""
        return [_searched_run(comparison, self.settings) for comparison in self.final]

    @property
    def file(self) -> Path:
        """The experiment file of the best settings."""
        return self.directory / "best.toml"


@dataclass(frozen=True)
class _Search:
    """What the steps of a search share."""

    base: Experiment
    """The experiment on all the data."""
    tried: Experiment
    """The experiment that trials train, on a share of a large task."""
    space: Space | BertSpace
    seeds: list[int]
    study: Study
    runner: TrialRunner
    directory: Path


def run_search(
    experiment: Experiment,
    *,
    target: str = "head",
    trials: int = 20,
    seeds: int = 1,
    space: Sequence[str] = (),
    shard: float = 0.0,
    storage: str = "",
    trials_per_batch: int = BATCH_TRIALS,
    address: str = "",
    root: str | Path = "runs",
) -> SearchResult:
    """Search for the settings with the best validation score, then score them on dev.

    The default settings, or the closest ones in the space, are tried first. A search that is started again resumes;
    several processes that start the same search share its trials.

    Args:
        experiment: The task, the encoder and, optionally, the heads and fractions to choose from.
        target: "head", or "bert" to tune BERT alone.
        trials: Number of trials, over all processes.
        seeds: Number of seeds, counted from `experiment.seed`. The score of a trial is the mean over the seeds.
        space: Changes of the search space, such as "size=[8,16]".
        shard: Share of the training data to search on; 0: all, or a tenth for large tasks.
        storage: Optuna storage URL; empty: a SQLite file in the directory of the search.
        trials_per_batch: Number of trials that are drawn at once.
        address: Address of a Ray cluster whose machines compute the hidden states and train the trials.
        root: Directory of runs.
    """
    if trials < 1 or seeds < 1 or trials_per_batch < 1:
        raise BertVisionError(
            f"A search needs at least one trial, one seed and one trial per batch; got {trials}, {seeds} and "
            f"{trials_per_batch}."
        )
    if distributed.num_processes() > 1:
        raise BertVisionError(
            "A search cannot run in a distributed process group. Start the same command several times instead; the "
            "processes share the trials."
        )
    cluster.check_address(address)
    search = _open_search(experiment, target, seeds, space, shard, storage, Path(root))
    if address:
        cluster.connect(address, search.directory)
    search.runner.prepare(search.directory, on_cluster=bool(address))
    train = search.runner.train_on_cluster if address else search.runner.train
    _run_trials(search, train, trials, trials_per_batch)
    with file_lock(search.directory / "final", wait=True):
        return _score_best(search, Path(root))


def _open_search(
    experiment: Experiment, target: str, seeds: int, overrides: Sequence[str], shard: float, storage: str, root: Path
) -> _Search:
    """Check all settings, load the data and open the study. No encoder is fine-tuned yet."""
    base = _base_experiment(experiment, target)
    tried = _on_shard(base, shard)
    seed_list = list(range(base.seed, base.seed + seeds))
    space: Space | BertSpace = overlay(lookup(SPACES, target, "search target")(), overrides)
    runner = TrialRunner(tried, space if isinstance(space, Space) else None, seed_list, root)
    defaults: Any = {"default_rate": runner.data.config.finetuning.learning_rate, "kind": runner.data.task.example_kind}
    space = check_space(space, **defaults)
    if isinstance(space, Space):
        runner.space = space
        for layers in space.layers:  # an error is reported before the encoder is fine-tuned
            select_layers(layers, load_encoder_info(base.encoder).num_layers)
    key = value_hash([replace(tried, seed=0).to_dict(), asdict(space), seed_list])
    name = runner.data.task.name
    directory = root / slug(name) / slug(Path(base.encoder).name) / f"search-{target}-{key}"
    directory.mkdir(parents=True, exist_ok=True)
    with file_lock(directory / "study", wait=True):  # only one process may create the tables
        url = storage or f"sqlite:///{directory.absolute()}/study.db"
        study = optuna_study.open_study(url, f"{name}-{target}-{key}")
        if not study.get_trials(deepcopy=False):
            epochs = runner.data.head_training.epochs
            study.enqueue_trial(default_trial(space, tried, default_epochs=epochs, **defaults))
    return _Search(base, tried, space, seed_list, study, runner, directory)


def _run_trials(search: _Search, train: Any, trials: int, trials_per_batch: int) -> None:
    """Draw and train trials until the budget is spent, here or by other processes."""
    study = search.study
    per_token = search.runner.per_token
    suggest = partial(suggest_settings, search.space, experiment=search.tried, per_token=per_token)
    while True:
        drawn = optuna_study.draw_trials(
            study, suggest, budget=trials, batch_size=trials_per_batch, seed=search.base.seed
        )
        if not drawn:
            if not optuna_study.has_unfinished_trials(study):
                return
            time.sleep(optuna_study.POLL_SECONDS)
            continue
        with optuna_study.heartbeat(study, [trial.trial for trial in drawn]):
            outcomes = train([trial.settings for trial in drawn], [trial.pruning_thresholds for trial in drawn])
            for trial, outcome in zip(drawn, outcomes, strict=True):
                optuna_study.record_outcome(study, trial.trial, trial.settings, outcome)
        _log_progress(study, trials)


def _base_experiment(experiment: Experiment, target: str) -> Experiment:
    """Return the experiment with the settings that all trials share."""
    if target != "head":
        return experiment
    kind = find_task(experiment).example_kind
    fractions = sorted(set(experiment.head_fractions or resolve_fractions(experiment, kind).fractions))
    specs = [str(config) for config in resolve_heads(experiment.heads or CANDIDATES[kind], kind)]
    # Stored hidden states are shared by all processes, and are the ones that best.toml uses.
    mode = "store" if experiment.states == "auto" else experiment.states
    changes: dict[str, Any] = {"heads": specs, "extra_learning_rates": [], "states": mode}
    return replace(experiment, fractions=fractions, head_fractions=fractions, **changes)


def _on_shard(experiment: Experiment, shard: float) -> Experiment:
    """Return the experiment on a random share of the training data, if it is large or a share is given."""
    data = experiment.data
    if not shard and data.train_fraction == 1 and not data.limit and not data.train_file:
        shard = SHARDED.get(experiment.task, 0.0)
        if shard:
            logger.info(f"Searching on a random {shard:.0%} of {experiment.task}; --shard 1 uses all of it.")
    return check(replace(experiment, data=replace(data, train_fraction=shard))) if shard else experiment


def _log_progress(study: Study, trials: int) -> None:
    rows = history_rows(study)
    ended = sum(row["state"] not in ("running", "waiting") for row in rows)
    if any(row["validation"] is not None for row in rows):
        best = optuna_study.best_trial(study)
        settings = TrialSettings(**best.user_attrs[optuna_study.SETTINGS])
        logger.info(f"{ended} of {trials} trials; best validation score {best.value:.2f}: {settings.describe()}.")
    else:
        logger.info(f"{ended} of {trials} trials, none complete yet.")


def _score_best(search: _Search, root: Path) -> SearchResult:
    """Train the best settings on all the data, score them on dev, and write the files of the search."""
    best = optuna_study.best_trial(search.study)
    settings = TrialSettings(**best.user_attrs[optuna_study.SETTINGS])
    experiment = settings.experiment(search.base)
    with atomic_write(search.directory / "best.toml") as file:
        file.write(to_toml(experiment).encode())
    final = [pipeline.run(replace(experiment, seed=seed), root=root) for seed in search.seeds]
    rows, importance = history_rows(search.study), parameter_importance(search.study)
    name = search.study.study_name
    with atomic_write(search.directory / "search.md") as file:
        file.write(history_markdown(f"Search: {name}", rows, importance).encode())
    runs = [_searched_run(comparison, settings) for comparison in final]
    final_scores = [
        {
            "seed": seed,
            "score": run.metrics.scores,
            "validation": run.validation_score[0],
            "directory": str(run.directory),
        }
        for seed, run in zip(search.seeds, runs, strict=True)
    ]
    record = {
        "study": name,
        "best": {"number": best.number, "validation": best.value, **asdict(settings)},
        "final": final_scores,
        "importance": importance,
        "history": rows,
    }
    write_json(search.directory / "search.json", record)
    assert best.value is not None
    return SearchResult(experiment, settings, best.value, final, rows, importance, search.directory)


def _searched_run(comparison: ExperimentResult, settings: TrialSettings) -> Run:
    """Return the run of the best head, or of BERT if BERT was tuned."""
    return comparison.best if settings.head else next(run for run in comparison.runs if run.kind == "bert")
