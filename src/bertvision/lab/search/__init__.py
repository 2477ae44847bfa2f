"""Find settings by validation alone; score the best once on dev, at the end.

runs/<task>/<backbone>/search-<what>-<8 hex>/
    study.db        every trial (or any other storage that Optuna knows)
    best.toml       the best settings; `bertvision run best.toml` gives the result once more
    search.md       the history, and how much each setting mattered
    search.json     the same for programs, with the final score; written last
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertvision import distributed
from bertvision.encoders import load_encoder_info
from bertvision.errors import BertVisionError, lookup
from bertvision.files import atomic_write, file_lock, value_hash, write_json
from bertvision.heads import resolve_heads, select_layers
from bertvision.lab import cluster, pipeline
from bertvision.lab.experiment import Experiment, overlay
from bertvision.lab.experiment import check as check_settings
from bertvision.lab.pipeline import Comparison, find_task
from bertvision.lab.search import history
from bertvision.lab.search.space import CANDIDATES, BertSpace, Setting, Space, check, suggest, usual
from bertvision.lab.search.study import POLL, at_work, best, draw, open_study, others_at_work, tell
from bertvision.lab.search.trials import TrialRunner
from bertvision.runs import Run, slug

logger = logging.getLogger(__name__)

__all__ = ["BertSpace", "SearchResult", "Setting", "Space", "search"]

SHARDED = {"mnli": 0.1, "qnli": 0.1, "qqp": 0.1, "sst2": 0.1}
"""Tasks so large that a random tenth of them is enough to search on."""
SPACES = {"head": Space, "bert": BertSpace}
TOGETHER = 5
"""Trials that are drawn at once; local ones are trained in one pass over the states."""


@dataclass(frozen=True)
class SearchResult:
    """What a search comes to."""

    experiment: Experiment
    """The best settings, on all the data."""
    setting: Setting
    validation: float
    """Their score in the search: the mean over the seeds."""
    final: list[Comparison]
    """Scored on dev, once for each seed."""
    history: list[dict[str, Any]]
    importance: dict[str, float]
    directory: Path

    @property
    def runs(self) -> list[Run]:
        """What was searched for, scored on dev: one run for each seed."""
        return [_scored(comparison, self.setting) for comparison in self.final]

    @property
    def file(self) -> Path:
        """The experiment as TOML."""
        return self.directory / "best.toml"


def search(
    experiment: Experiment,
    *,
    what: str = "head",
    trials: int = 20,
    seeds: int = 1,
    space: Sequence[str] = (),
    shard: float = 0.0,
    storage: str = "",
    together: int = TOGETHER,
    address: str = "",
    root: str | Path = "runs",
) -> SearchResult:
    """Search for the settings of a head (or of BERT alone) that validation prefers, then score them on dev.

    `seeds` are repeated from experiment.seed on, not searched: a trial's score is their mean. `space` holds overrides
    such as "size=[8,16]". `shard`: the share of train to search on; 0: what suits the task. With the `address` of a
    cluster, its machines compute the states and train the trials.
    """
    if trials < 1 or seeds < 1 or together < 1:
        raise BertVisionError("A search needs at least one trial, one seed, and one trial drawn at once.")
    if distributed.num_processes() > 1:
        raise BertVisionError("A search shares its work by itself: start it several times, not in a group.")
    cluster.check_address(address)
    base = _base(experiment, what)
    tried = _sharded(base, shard)
    numbers = list(range(base.seed, base.seed + seeds))
    where: Space | BertSpace = overlay(lookup(SPACES, what, "model to search for")(), space)
    runner = TrialRunner(tried, where if isinstance(where, Space) else None, numbers, Path(root))
    known: Any = {"usual_rate": runner.data.finetune.learning_rate, "kind": runner.data.task.example_kind}
    where = check(where, **known)
    if isinstance(where, Space):
        runner.space = where
        for layers in where.layers:  # a mistake should not cost a fine-tuning
            select_layers(layers, load_encoder_info(base.encoder).num_layers)
    key = value_hash([replace(tried, seed=0).to_dict(), asdict(where), numbers])
    name = runner.data.task.name
    place = Path(root) / slug(name) / slug(Path(base.encoder).name) / f"search-{what}-{key}"
    place.mkdir(parents=True, exist_ok=True)
    with file_lock(place / "study", wait=True):  # tables are made once
        study = open_study(storage or f"sqlite:///{place.absolute()}/study.db", f"{name}-{what}-{key}")
        first = usual(where, tried, **known)
        if first and not study.get_trials(deepcopy=False):
            study.enqueue_trial(first)  # what is found is better than the default, or is the default
    if address:
        cluster.connect(address, place)
    runner.make(place, spread=bool(address))
    train = runner.train_elsewhere if address else runner.train
    while True:
        ask = partial(suggest, where, experiment=tried, per_token=runner.per_token)
        drawn = draw(study, ask, budget=trials, most=together, seed=base.seed)
        if not drawn:
            if not others_at_work(study):
                break
            time.sleep(POLL)
            continue
        with at_work(study, [each.trial for each in drawn]):
            outcomes = train([each.setting for each in drawn], [each.pruning_thresholds for each in drawn])
            for each, outcome in zip(drawn, outcomes, strict=True):
                tell(study, each.trial, each.setting, outcome)
        _report(study, trials)
    with file_lock(place / "final", wait=True):
        return _finish(study, base, numbers, place, Path(root))


def _base(experiment: Experiment, what: str) -> Experiment:
    """Settle what the trials have in common."""
    if what != "head":
        return experiment
    at = sorted(set(experiment.head_fractions or experiment.fractions))
    kind = find_task(experiment).example_kind
    heads = [str(config) for config in resolve_heads(experiment.heads or CANDIDATES[kind], kind)]
    # On disk the states outlive the process, are shared with others, and are the same for whoever runs best.toml.
    mode = "store" if experiment.states == "auto" else experiment.states
    return replace(experiment, heads=heads, fractions=at, head_fractions=at, extra_learning_rates=[], states=mode)


def _sharded(experiment: Experiment, shard: float) -> Experiment:
    """Search on a random part of a large task."""
    data = experiment.data
    if not shard and data.shard == 1 and not data.limit:
        shard = SHARDED.get(experiment.task, 0.0) if not data.train_file else 0.0
        if shard:
            logger.info(f"Searching on a random {shard:.0%} of {experiment.task}; --shard 1 takes all of it.")
    return check_settings(replace(experiment, data=replace(data, shard=shard))) if shard else experiment


def _report(study: Any, trials: int) -> None:
    done = history.rows(study)
    complete = [row for row in done if row["validation"] is not None]
    ended = sum(row["state"] not in ("running", "waiting") for row in done)
    if complete:
        top = best(study)
        said = Setting(**top.user_attrs["setting"]).describe()
        logger.info(f"{ended} of {trials} trials; best on validation {top.value:.2f}: {said}.")
    else:
        logger.info(f"{ended} of {trials} trials, none finished yet.")


def _finish(study: Any, base: Experiment, seeds: Sequence[int], place: Path, root: Path) -> SearchResult:
    """Fit the best settings on all the data, score them on dev, and write everything down."""
    top = best(study)
    setting = Setting(**top.user_attrs["setting"])
    chosen = setting.experiment(base)
    with atomic_write(place / "best.toml") as file:
        file.write(chosen.to_toml().encode())
    final = [pipeline.run(replace(chosen, seed=seed), root=root) for seed in seeds]
    found, shares = history.rows(study), history.importance(study)
    with atomic_write(place / "search.md") as file:
        file.write(history.page(f"Search: {study.study_name}", found, shares).encode())
    scored = [_scored(comparison, setting) for comparison in final]
    record = {
        "study": study.study_name,
        "best": {"number": top.number, "validation": top.value, **asdict(setting)},
        "final": [
            {
                "seed": seed,
                "score": run.metrics.scores,
                "validation": run.validation_score[0],
                "directory": str(run.directory),
            }
            for seed, run in zip(seeds, scored, strict=True)
        ],
        "importance": shares,
        "history": found,
    }
    write_json(place / "search.json", record)
    assert top.value is not None
    return SearchResult(chosen, setting, top.value, final, found, shares, place)


def _scored(comparison: Comparison, setting: Setting) -> Run:
    """The run that was searched for."""
    return comparison.best if setting.head else next(run for run in comparison.runs if run.kind == "bert")
