"""Train the trials of a search on hidden states that are computed once. Optuna and dev are not used here."""

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import psutil
from torch import nn

from bertvision.convex import fit_models
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.errors import BertVisionError
from bertvision.files import file_lock
from bertvision.heads import HeadConfig, required_view
from bertvision.lab import cluster
from bertvision.lab.extraction import absolute, make_store
from bertvision.lab.searches.space import Space, TrialSettings, covering_heads
from bertvision.pipeline import (
    Checkpoint,
    CheckpointSet,
    ExperimentData,
    finetune,
    open_checkpoint,
    prepare,
)
from bertvision.pipeline.evaluation import validation_scores
from bertvision.pipeline.experiment import Experiment, merge
from bertvision.pipeline.finetuning import new_bert
from bertvision.pipeline.head_training import new_head
from bertvision.pipeline.state_requests import MEMORY
from bertvision.pipeline.states import state_request, states
from bertvision.training import FitOptions, ValidationScore, fit
from bertvision.types import Batches, HeadShape, StateView

PruningThresholds = Sequence[Sequence[float]]
"""For each trial, the score that it must reach after each epoch. Epochs beyond the list have no threshold."""

FAILURES = (BertVisionError, MemoryError, RuntimeError)  # PyTorch's "out of memory" is a RuntimeError


@dataclass
class TrialOutcome:
    """The outcome of a trial. All scores are validation scores."""

    validation_scores: list[ValidationScore] = field(default_factory=list)
    """Those of the best epoch, one for each seed."""
    by_epoch: list[float] = field(default_factory=list)
    """The best score up to each epoch, for the first seed."""
    pruned: bool = False
    failed: str = ""
    """The error message, if the trial failed."""
    seconds: float = 0.0

    @property
    def validation_score(self) -> ValidationScore:
        """The mean score and the mean loss over the seeds."""
        scores, losses = zip(*self.validation_scores, strict=True)
        return sum(scores) / len(scores), sum(losses) / len(losses)


@dataclass(frozen=True)
class _OpenStates:
    """The hidden states of a seed at a fraction, opened for training."""

    data: ExperimentData
    checkpoint: Checkpoint
    train: Batches
    validation: Batches


class TrialRunner:
    """Trains trials. It holds the data without dev, the fine-tuning checkpoints, and their hidden states."""

    def __init__(self, experiment: Experiment, space: Space | None, seeds: Sequence[int], root: Path) -> None:
        """Load the data. `space` determines which hidden states are computed; None: BERT alone is tuned."""
        data = prepare(experiment)
        # Trials cannot use dev, because they do not have it.
        self.data: ExperimentData = replace(data, dev=data.validation)
        self.space = space
        self.seeds: list[int] = list(seeds)
        self.root: Path = Path(root)
        self.checkpoints: dict[int, CheckpointSet] = {}
        self._open_states: OrderedDict[tuple[int, float], _OpenStates] = OrderedDict()

    @property
    def per_token(self) -> bool:
        """Whether the task predicts a value for each token."""
        return self.data.task.per_token

    def data_for(self, seed: int) -> ExperimentData:
        """Return the data with the settings of a seed."""
        return self.data.change(seed=seed)

    def prepare(self, directory: Path, *, on_cluster: bool = False) -> None:
        """Fine-tune the encoder and compute the hidden states once for all trials; other processes wait.

        With `on_cluster`, the machines of the connected cluster compute the hidden states.
        """
        if self.space is None:
            return
        with file_lock(directory / "states", wait=True):
            for seed in self.seeds:
                data = self.data_for(seed)
                self.checkpoints[seed] = finetune(data, self.root)
                if data.experiment.states == "store":
                    self._store_states(data, self.checkpoints[seed], on_cluster)

    def _store_states(self, data: ExperimentData, checkpoints: CheckpointSet, on_cluster: bool) -> None:
        for fraction in data.experiment.head_fractions:
            checkpoint = open_checkpoint(data, checkpoints, fraction)
            view, _ = self._required_view(checkpoint)
            for name in ("train", "validation"):
                if not state_request(data, checkpoint, name, view).find_store():
                    make_store(data, checkpoints, checkpoint, name, view, on_cluster=on_cluster)

    def _required_view(self, checkpoint: Checkpoint) -> tuple[StateView, HeadShape]:
        """Return the part of the hidden states that the heads of the space read, and their input shape."""
        assert self.space is not None
        configs = list(covering_heads(self.space, self.data.config.heads, per_token=self.per_token))
        shape = self.data.shape(checkpoint.encoder, configs)
        return required_view(configs, shape), shape

    def open_states(self, seed: int, fraction: float) -> _OpenStates:
        """Open the hidden states of a seed at a fraction. As many as memory allows stay open."""
        key = seed, fraction
        if key in self._open_states:
            self._open_states.move_to_end(key)
            return self._open_states[key]
        while self._open_states and psutil.virtual_memory().available < 3 * MEMORY:
            self._open_states.popitem(last=False)
        data = self.data_for(seed)
        checkpoint = open_checkpoint(data, self.checkpoints[seed], fraction)
        view, _ = self._required_view(checkpoint)
        open_split = partial(states, data, checkpoint, view=view)
        validation = open_split("validation", tokens=data.ordered(data.validation))
        train = open_split("train", tokens=data.shuffled(data.head_training))
        self._open_states[key] = _OpenStates(data, checkpoint, train, validation)
        return self._open_states[key]

    def train(self, settings: Sequence[TrialSettings], pruning_thresholds: PruningThresholds) -> list[TrialOutcome]:
        """Train all trials with all seeds. Trials that share hidden states are trained in one pass, independently.

        After epoch i of the first seed, a trial whose best score so far is below its threshold i is pruned.
        """
        outcomes = [TrialOutcome() for _ in settings]
        for seed_index, seed in enumerate(self.seeds):
            active = {i: each for i, each in enumerate(settings) if not (outcomes[i].pruned or outcomes[i].failed)}
            for fraction in sorted({each.fraction for each in active.values()}):
                group = {i: each for i, each in active.items() if each.fraction == fraction}
                with use_cpu_optimizations(self.data.experiment.cpu_optimizations):
                    self._train_group(seed, group, outcomes, None if seed_index else pruning_thresholds)
        return outcomes

    def train_on_cluster(
        self, settings: Sequence[TrialSettings], pruning_thresholds: PruningThresholds
    ) -> list[TrialOutcome]:
        """Train all trials on the connected cluster, one job per trial."""
        job = TrialJob(
            settings=absolute(self.data.experiment).to_dict(),
            space=None if self.space is None else asdict(self.space),
            seeds=self.seeds,
            root=str(self.root.absolute()),
            checkpoints={seed: str(checkpoints.directory.absolute()) for seed, checkpoints in self.checkpoints.items()},
        )
        jobs = [(job, each, list(own)) for each, own in zip(settings, pruning_thresholds, strict=True)]
        return cluster.map_on_cluster(train_trial, jobs, "train trials", lambda reason: TrialOutcome(failed=reason))

    def _train_group(
        self,
        seed: int,
        group: Mapping[int, TrialSettings],
        outcomes: list[TrialOutcome],
        pruning_thresholds: PruningThresholds | None,
    ) -> None:
        """Train trials in one pass. If that fails, train each alone, so that only the failing ones are lost."""
        try:
            train = self._train_heads if self.space else self._finetune_bert
            train(seed, group, outcomes, pruning_thresholds)
        except FAILURES as error:
            if len(group) == 1:
                (i,) = group
                outcomes[i].failed = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                return
            for i, setting in group.items():
                if pruning_thresholds is not None:  # the scores of the first attempt would be reported twice
                    outcomes[i] = TrialOutcome()
                self._train_group(seed, {i: setting}, outcomes, pruning_thresholds)

    def _train_heads(
        self,
        seed: int,
        group: Mapping[int, TrialSettings],
        outcomes: list[TrialOutcome],
        pruning_thresholds: PruningThresholds | None,
    ) -> None:
        fraction = next(iter(group.values())).fraction
        open_states = self.open_states(seed, fraction)
        view, shape = self._required_view(open_states.checkpoint)
        models = {
            str(i): new_head(open_states.data, HeadConfig.parse(each.head), shape, view) for i, each in group.items()
        }
        configs = {str(i): each.experiment(open_states.data.experiment).train for i, each in group.items()}
        batch_size = open_states.data.head_training.batch_size
        configs = {name: replace(optim, batch_size=batch_size) for name, optim in configs.items()}

        def validate(models: dict[str, nn.Module]) -> dict[str, ValidationScore]:
            scores = validation_scores(open_states.data, open_states.validation, models)
            if pruning_thresholds is None:
                return scores
            for name, (score, _) in list(scores.items()):
                outcome = outcomes[int(name)]
                outcome.by_epoch.append(max([score, *outcome.by_epoch[-1:]]))
                epoch, own = len(outcome.by_epoch) - 1, pruning_thresholds[int(name)]
                if epoch < len(own) and outcome.by_epoch[-1] < own[epoch]:
                    outcome.pruned = True
                    del scores[name]  # `fit` stops training models without a score
            return scores

        train_states = fit_models(
            models,
            open_states.train,
            open_states.data.task.loss,
            configs,
            FitOptions(
                seed=seed,
                validate=validate,
                label=f"train {len(models)} trials" if len(models) > 1 else "train a trial",
            ),
            validation=open_states.validation,
        )
        for name, train_state in train_states.items():
            outcome = outcomes[int(name)]
            outcome.seconds += train_state.seconds
            outcome.failed = train_state.failed
            if not train_state.failed and not outcome.pruned:
                score, loss = train_state.validation_scores[train_state.best_epoch - 1]
                outcome.validation_scores.append((score, loss))

    def _finetune_bert(
        self,
        seed: int,
        group: Mapping[int, TrialSettings],
        outcomes: list[TrialOutcome],
        pruning_thresholds: PruningThresholds | None,
    ) -> None:
        data = self.data_for(seed)
        for i, setting in group.items():
            began = time.perf_counter()
            tried = setting.experiment(data.experiment).finetune
            optim = replace(tried, epochs=setting.fraction, batch_size=data.config.finetuning.batch_size)
            bert = new_bert(data)
            (train_state,) = fit(
                {"bert": bert},
                data.shuffled(optim),
                data.task.loss,
                {"bert": optim},
                FitOptions(seed=seed, scale_loss=data.experiment.precision == "float16", label="fine-tune a trial"),
            ).values()
            outcomes[i].failed = train_state.failed
            if not train_state.failed:
                batches = data.ordered(data.validation)
                outcomes[i].validation_scores.append(validation_scores(data, batches, {"bert": bert})["bert"])
            outcomes[i].seconds += time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """What a worker needs to train a trial, in addition to its settings, the shared directory and the data."""

    settings: dict[str, Any]
    space: dict[str, Any] | None
    seeds: list[int]
    root: str
    checkpoints: dict[int, str]


def train_trial(item: tuple[TrialJob, TrialSettings, list[float]]) -> TrialOutcome:
    """Train one trial on a worker."""
    job, settings, pruning_thresholds = item
    runner = _runner(json.dumps([job.settings, job.space, job.seeds, job.root]))
    runner.checkpoints = {seed: CheckpointSet(Path(directory), []) for seed, directory in job.checkpoints.items()}
    return runner.train([settings], [pruning_thresholds])[0]


@lru_cache(maxsize=1)
def _runner(job: str) -> TrialRunner:
    """Return the trial runner of a worker process. It is kept for the next trial, with its hidden states."""
    settings, values, seeds, root = json.loads(job)
    space = None if values is None else merge(Space(), values)
    return TrialRunner(merge(Experiment(), settings), space, seeds, Path(root))
