"""Train what trials ask for, on states that are computed once; nothing here knows of Optuna, or of dev."""

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

from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.errors import BertVisionError
from bertvision.files import file_lock
from bertvision.heads import HeadConfig, required_view
from bertvision.lab import cluster
from bertvision.lab.experiment import Experiment, merge
from bertvision.lab.extraction import absolute, make_store
from bertvision.lab.pipeline import (
    Checkpoint,
    CheckpointSet,
    ExperimentData,
    finetune,
    load_data,
    open_checkpoint,
)
from bertvision.lab.pipeline.evaluation import validation_scores
from bertvision.lab.pipeline.finetuning import new_bert
from bertvision.lab.pipeline.head_training import new_head
from bertvision.lab.pipeline.states import state_request, states
from bertvision.lab.search.space import Setting, Space, reach
from bertvision.states import MEMORY
from bertvision.training import FitOptions, ValidationScore, fit
from bertvision.types import Batches, HeadShape, StateView

PruningThresholds = Sequence[Sequence[float]]
"""For each trial the scores that it must reach, epoch by epoch; fewer than epochs: no more is asked."""

FAILURES = (BertVisionError, MemoryError, RuntimeError)  # PyTorch's "out of memory" is a RuntimeError


@dataclass
class Outcome:
    """What came of a trial; all of it on validation."""

    validation_scores: list[ValidationScore] = field(default_factory=list)
    """The best epoch's, one for each seed."""
    by_epoch: list[float] = field(default_factory=list)
    """The best score so far after each epoch of the first seed."""
    pruned: bool = False
    failed: str = ""
    seconds: float = 0.0

    @property
    def validation_score(self) -> ValidationScore:
        """The mean over the seeds."""
        scores, losses = zip(*self.validation_scores, strict=True)
        return sum(scores) / len(scores), sum(losses) / len(losses)


@dataclass(frozen=True)
class _OpenStates:
    """The states of a fraction, ready to train on."""

    data: ExperimentData
    checkpoint: Checkpoint
    train: Batches
    validation: Batches


class TrialRunner:
    """Where trials are trained: data without dev, fine-tuned backbones, and their states."""

    def __init__(self, experiment: Experiment, space: Space | None, seeds: Sequence[int], root: Path) -> None:
        """`space`: which part of the states to compute; None: BERT alone is searched."""
        data = load_data(experiment)
        # No trial can look at what it does not have.
        self.data = replace(data, dev=data.validation)
        self.space = space
        self.seeds = list(seeds)
        self.root = Path(root)
        self.checkpoints: dict[int, CheckpointSet] = {}
        self._open_states: OrderedDict[tuple[int, float], _OpenStates] = OrderedDict()

    @property
    def per_token(self) -> bool:
        """Whether the task is about tokens."""
        return self.data.task.per_token

    def of(self, seed: int) -> ExperimentData:
        """The data as a seed sees them."""
        return replace(self.data, experiment=replace(self.data.experiment, seed=seed))

    def make(self, place: Path, *, spread: bool = False) -> None:
        """Fine-tune and compute the states, once for all trials and processes; the others wait.

        With `spread`, the machines of a cluster compute the states.
        """
        if self.space is None:
            return
        with file_lock(place / "states", wait=True):
            for seed in self.seeds:
                data = self.of(seed)
                self.checkpoints[seed] = finetune(data, self.root)
                if data.experiment.states == "store":
                    for fraction in data.experiment.head_fractions:
                        checkpoint = open_checkpoint(data, self.checkpoints[seed], fraction)
                        view, _ = self._look(checkpoint)
                        for name in ("train", "validation"):
                            if not state_request(data, checkpoint, name, view).found():
                                make_store(data, self.checkpoints[seed], checkpoint, name, view, spread=spread)

    def _look(self, checkpoint: Checkpoint) -> tuple[StateView, HeadShape]:
        """What the heads of the space read between them."""
        assert self.space is not None
        configs = list(reach(self.space, self.data.head_configs, per_token=self.per_token))
        shape = self.data.shape(checkpoint.encoder, configs)
        return required_view(configs, shape), shape

    def open_states(self, seed: int, fraction: float) -> _OpenStates:
        """Open the states of a fraction; as many as memory allows stay open."""
        key = seed, fraction
        if key in self._open_states:
            self._open_states.move_to_end(key)
            return self._open_states[key]
        while self._open_states and psutil.virtual_memory().available < 3 * MEMORY:
            self._open_states.popitem(last=False)
        data = self.of(seed)
        checkpoint = open_checkpoint(data, self.checkpoints[seed], fraction)
        view, _ = self._look(checkpoint)
        read = partial(states, data, checkpoint, view=view)
        validation = read("validation", tokens=data.ordered(data.validation))
        train = read("train", tokens=data.shuffled(data.heads))
        self._open_states[key] = _OpenStates(data, checkpoint, train, validation)
        return self._open_states[key]

    def train(self, settings: Sequence[Setting], pruning_thresholds: PruningThresholds) -> list[Outcome]:
        """Train every setting with every seed, those that share states in one pass, each as if alone.

        After epoch i of the first seed a trial whose best score so far is below its bars[i] is given up.
        """
        outcomes = [Outcome() for _ in settings]
        for turn, seed in enumerate(self.seeds):
            going = {i: each for i, each in enumerate(settings) if not (outcomes[i].pruned or outcomes[i].failed)}
            for fraction in sorted({each.fraction for each in going.values()}):
                group = {i: each for i, each in going.items() if each.fraction == fraction}
                with use_cpu_optimizations(self.data.experiment.cpu_optimizations):
                    self._attempt(seed, group, outcomes, None if turn else pruning_thresholds)
        return outcomes

    def train_elsewhere(self, settings: Sequence[Setting], pruning_thresholds: PruningThresholds) -> list[Outcome]:
        """The same on the cluster that was connected, every trial a task."""
        order = TrialJob(
            settings=absolute(self.data.experiment).to_dict(),
            space=None if self.space is None else asdict(self.space),
            seeds=self.seeds,
            root=str(self.root.absolute()),
            checkpoints={seed: str(checkpoints.directory.absolute()) for seed, checkpoints in self.checkpoints.items()},
        )
        orders = [(order, setting, list(own)) for setting, own in zip(settings, pruning_thresholds, strict=True)]
        return cluster.map_over(train_there, orders, "train trials", lambda reason: Outcome(failed=reason))

    def _attempt(
        self,
        seed: int,
        group: Mapping[int, Setting],
        outcomes: list[Outcome],
        pruning_thresholds: PruningThresholds | None,
    ) -> None:
        """Train together; if that fails, each alone, so that only the culprit fails."""
        try:
            work = self._heads if self.space else self._bert
            work(seed, group, outcomes, pruning_thresholds)
        except FAILURES as error:
            if len(group) == 1:
                (i,) = group
                outcomes[i].failed = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                return
            for i, setting in group.items():
                if pruning_thresholds is not None:  # what it had reported is reported again
                    outcomes[i] = Outcome()
                self._attempt(seed, {i: setting}, outcomes, pruning_thresholds)

    def _heads(
        self,
        seed: int,
        group: Mapping[int, Setting],
        outcomes: list[Outcome],
        pruning_thresholds: PruningThresholds | None,
    ) -> None:
        fraction = next(iter(group.values())).fraction
        open_states = self.open_states(seed, fraction)
        view, shape = self._look(open_states.checkpoint)
        models = {
            str(i): new_head(open_states.data, HeadConfig.parse(each.head), shape, view) for i, each in group.items()
        }
        configs = {str(i): each.experiment(open_states.data.experiment).train for i, each in group.items()}
        batch_size = open_states.data.heads.batch_size
        configs = {name: replace(optim, batch_size=batch_size) for name, optim in configs.items()}

        def validate(train_states: dict[str, nn.Module]) -> dict[str, ValidationScore]:
            found = validation_scores(open_states.data, open_states.validation, train_states)
            if pruning_thresholds is None:
                return found
            for name, (score, _) in list(found.items()):
                outcome = outcomes[int(name)]
                outcome.by_epoch.append(max([score, *outcome.by_epoch[-1:]]))
                epoch, own = len(outcome.by_epoch) - 1, pruning_thresholds[int(name)]
                if epoch < len(own) and outcome.by_epoch[-1] < own[epoch]:
                    outcome.pruned = True
                    del found[name]
            return found

        train_states = fit(
            models,
            open_states.train,
            open_states.data.task.loss,
            configs,
            FitOptions(
                seed=seed,
                validate=validate,
                label=f"train {len(models)} trials" if len(models) > 1 else "train a trial",
            ),
        )
        for name, train_state in train_states.items():
            outcome = outcomes[int(name)]
            outcome.seconds += train_state.seconds
            outcome.failed = train_state.failed
            if not train_state.failed and not outcome.pruned:
                score, loss = train_state.validation_scores[train_state.best_epoch - 1]
                outcome.validation_scores.append((score, loss))

    def _bert(
        self,
        seed: int,
        group: Mapping[int, Setting],
        outcomes: list[Outcome],
        pruning_thresholds: PruningThresholds | None,
    ) -> None:
        data = self.of(seed)
        for i, setting in group.items():
            began = time.perf_counter()
            tried = setting.experiment(data.experiment).finetune
            optim = replace(tried, epochs=setting.fraction, batch_size=data.finetune.batch_size)
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
    """What a machine elsewhere needs to train a trial, beside its setting, the shared directory and the data."""

    settings: dict[str, Any]
    space: dict[str, Any] | None
    seeds: list[int]
    root: str
    checkpoints: dict[int, str]


def train_there(ordered: tuple[TrialJob, Setting, list[float]]) -> Outcome:
    """Train one trial."""
    order, setting, pruning_thresholds = ordered
    runner = _runner(json.dumps([order.settings, order.space, order.seeds, order.root]))
    runner.checkpoints = {seed: CheckpointSet(Path(place), []) for seed, place in order.checkpoints.items()}
    return runner.train([setting], [pruning_thresholds])[0]


@lru_cache(maxsize=1)
def _runner(order: str) -> TrialRunner:
    """The bench of a process, with its states; used again for the next trial."""
    settings, space, seeds, root = json.loads(order)
    known = None if space is None else merge(Space(), space)
    return TrialRunner(merge(Experiment(), settings), known, seeds, Path(root))
