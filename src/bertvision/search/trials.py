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

from bertvision import cluster
from bertvision.activations import MEMORY
from bertvision.config import Experiment, merge
from bertvision.errors import BertVisionError
from bertvision.files import locked
from bertvision.heads import view_of
from bertvision.pipeline import Notify, Point, Prepared, Tuned, finetune, open_point, prepare
from bertvision.pipeline.finetuning import new_reader
from bertvision.pipeline.probing import new_head
from bertvision.pipeline.scoring import grades
from bertvision.pipeline.states import absolute, make_store, states, want
from bertvision.search.space import Setting, Space, reach
from bertvision.training import Grade, fit
from bertvision.types import Batches, Shape, View

Bars = Sequence[Sequence[float]]
"""For each trial the scores that it must reach, epoch by epoch; fewer than epochs: no more is asked."""

FAILURES = (BertVisionError, MemoryError, RuntimeError)  # PyTorch's "out of memory" is a RuntimeError


@dataclass
class Outcome:
    """What came of a trial; all of it on validation."""

    grades: list[Grade] = field(default_factory=list)
    """The best epoch's, one for each seed."""
    by_epoch: list[float] = field(default_factory=list)
    """The best score so far after each epoch of the first seed."""
    pruned: bool = False
    failed: str = ""
    seconds: float = 0.0

    @property
    def grade(self) -> Grade:
        """The mean over the seeds."""
        scores, losses = zip(*self.grades, strict=True)
        return sum(scores) / len(scores), sum(losses) / len(losses)


@dataclass(frozen=True)
class _Seat:
    """The states of a fraction, ready to train on."""

    prepared: Prepared
    point: Point
    train: Batches
    validation: Batches


class Bench:
    """Where trials are trained: data without dev, fine-tuned backbones, and their states."""

    def __init__(
        self, experiment: Experiment, space: Space | None, seeds: Sequence[int], root: Path, notify: Notify
    ) -> None:
        """`space`: which part of the states to compute; None: BERT alone is searched."""
        prepared = prepare(experiment, notify)
        # No trial can look at what it does not have.
        self.prepared = replace(prepared, dev=prepared.validation)
        self.space = space
        self.seeds = list(seeds)
        self.root = Path(root)
        self.notify = notify
        self.tuned: dict[int, Tuned] = {}
        self._seats: OrderedDict[tuple[int, float], _Seat] = OrderedDict()

    @property
    def per_token(self) -> bool:
        """Whether the task is about tokens."""
        return self.prepared.task.per_token

    def of(self, seed: int) -> Prepared:
        """The data as a seed sees them."""
        return replace(self.prepared, experiment=replace(self.prepared.experiment, seed=seed))

    def make(self, place: Path, *, spread: bool = False) -> None:
        """Fine-tune and compute the states, once for all trials and processes; the others wait.

        With `spread`, the machines of a cluster compute the states.
        """
        if self.space is None:
            return
        with locked(place / "states", wait=True):
            for seed in self.seeds:
                prepared = self.of(seed)
                self.tuned[seed] = finetune(prepared, self.root)
                if prepared.experiment.activations == "store":
                    for fraction in prepared.experiment.read_at:
                        point = open_point(prepared, self.tuned[seed], fraction)
                        view, _ = self._look(point)
                        for name in ("train", "validation"):
                            if not want(prepared, point, name, view).found():
                                make_store(prepared, self.tuned[seed], point, name, view, spread=spread)

    def _look(self, point: Point) -> tuple[View, Shape]:
        """What the heads of the space read between them."""
        assert self.space is not None
        specs = list(reach(self.space, self.prepared.experiment, per_token=self.per_token))
        shape = self.prepared.shape(point.backbone, specs)
        return view_of(specs, shape), shape

    def seat(self, seed: int, fraction: float) -> _Seat:
        """Open the states of a fraction; as many as memory allows stay open."""
        key = seed, fraction
        if key in self._seats:
            self._seats.move_to_end(key)
            return self._seats[key]
        while self._seats and psutil.virtual_memory().available < 3 * MEMORY:
            self._seats.popitem(last=False)
        prepared = self.of(seed)
        point = open_point(prepared, self.tuned[seed], fraction)
        view, _ = self._look(point)
        read = partial(states, prepared, point, view=view, notify=self.notify)
        validation = read("validation", tokens=prepared.ordered(prepared.validation))
        train = read("train", tokens=prepared.shuffled(prepared.heads))
        self._seats[key] = _Seat(prepared, point, train, validation)
        return self._seats[key]

    def train(self, settings: Sequence[Setting], bars: Bars) -> list[Outcome]:
        """Train every setting with every seed, those that share states in one pass, each as if alone.

        After epoch i of the first seed a trial whose best score so far is below its bars[i] is given up.
        """
        outcomes = [Outcome() for _ in settings]
        for turn, seed in enumerate(self.seeds):
            going = {i: each for i, each in enumerate(settings) if not (outcomes[i].pruned or outcomes[i].failed)}
            for fraction in sorted({each.fraction for each in going.values()}):
                group = {i: each for i, each in going.items() if each.fraction == fraction}
                self._attempt(seed, group, outcomes, None if turn else bars)
        return outcomes

    def train_elsewhere(self, settings: Sequence[Setting], bars: Bars) -> list[Outcome]:
        """The same on the cluster that was connected, every trial a task."""
        order = Order(
            settings=absolute(self.prepared.experiment).to_dict(),
            space=None if self.space is None else asdict(self.space),
            seeds=self.seeds,
            root=str(self.root.absolute()),
            tuned={seed: str(tuned.directory.absolute()) for seed, tuned in self.tuned.items()},
        )
        orders = [(order, setting, list(own)) for setting, own in zip(settings, bars, strict=True)]
        return cluster.map_over(train_there, orders, "train trials", lambda reason: Outcome(failed=reason))

    def _attempt(self, seed: int, group: Mapping[int, Setting], outcomes: list[Outcome], bars: Bars | None) -> None:
        """Train together; if that fails, each alone, so that only the culprit fails."""
        try:
            work = self._heads if self.space else self._bert
            work(seed, group, outcomes, bars)
        except FAILURES as error:
            if len(group) == 1:
                (i,) = group
                outcomes[i].failed = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                return
            for i, setting in group.items():
                if bars is not None:  # what it had reported is reported again
                    outcomes[i] = Outcome()
                self._attempt(seed, {i: setting}, outcomes, bars)

    def _heads(self, seed: int, group: Mapping[int, Setting], outcomes: list[Outcome], bars: Bars | None) -> None:
        fraction = next(iter(group.values())).fraction
        seat = self.seat(seed, fraction)
        view, shape = self._look(seat.point)
        models = {str(i): new_head(seat.prepared, each.head, shape, view) for i, each in group.items()}
        optims = {str(i): each.experiment(seat.prepared.experiment).train for i, each in group.items()}
        batch_size = seat.prepared.heads.batch_size
        optims = {name: replace(optim, batch_size=batch_size) for name, optim in optims.items()}

        def validate(students: dict[str, nn.Module]) -> dict[str, Grade]:
            found = grades(seat.prepared, seat.validation, students)
            if bars is None:
                return found
            for name, (score, _) in list(found.items()):
                outcome = outcomes[int(name)]
                outcome.by_epoch.append(max([score, *outcome.by_epoch[-1:]]))
                epoch, own = len(outcome.by_epoch) - 1, bars[int(name)]
                if epoch < len(own) and outcome.by_epoch[-1] < own[epoch]:
                    outcome.pruned = True
                    del found[name]
            return found

        students = fit(
            models,
            seat.train,
            seat.prepared.task.loss,
            optims,
            seed=seed,
            validate=validate,
            label=f"train {len(models)} trials" if len(models) > 1 else "train a trial",
        )
        for name, student in students.items():
            outcome = outcomes[int(name)]
            outcome.seconds += student.seconds
            outcome.failed = student.failed
            if not student.failed and not outcome.pruned:
                score, loss = student.grades[student.best_epoch - 1]
                outcome.grades.append((score, loss))

    def _bert(self, seed: int, group: Mapping[int, Setting], outcomes: list[Outcome], bars: Bars | None) -> None:
        prepared = self.of(seed)
        for i, setting in group.items():
            began = time.perf_counter()
            tried = setting.experiment(prepared.experiment).finetune
            optim = replace(tried, epochs=setting.fraction, batch_size=prepared.finetune.batch_size)
            reader = new_reader(prepared)
            (student,) = fit(
                {"bert": reader},
                prepared.shuffled(optim),
                prepared.task.loss,
                {"bert": optim},
                seed=seed,
                scaled=prepared.experiment.precision == "float16",
                label="fine-tune a trial",
            ).values()
            outcomes[i].failed = student.failed
            if not student.failed:
                batches = prepared.ordered(prepared.validation)
                outcomes[i].grades.append(grades(prepared, batches, {"bert": reader})["bert"])
            outcomes[i].seconds += time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a machine elsewhere needs to train a trial, beside its setting, the shared directory and the data."""

    settings: dict[str, Any]
    space: dict[str, Any] | None
    seeds: list[int]
    root: str
    tuned: dict[int, str]


def train_there(ordered: tuple[Order, Setting, list[float]]) -> Outcome:
    """Train one trial."""
    order, setting, bars = ordered
    bench = _bench(json.dumps([order.settings, order.space, order.seeds, order.root]))
    bench.tuned = {seed: Tuned(Path(place), []) for seed, place in order.tuned.items()}
    return bench.train([setting], [bars])[0]


@lru_cache(maxsize=1)
def _bench(order: str) -> Bench:
    """The bench of a process, with its states; used again for the next trial."""
    settings, space, seeds, root = json.loads(order)
    known = None if space is None else merge(Space(), space)
    return Bench(merge(Experiment(), settings), known, seeds, Path(root), lambda message: None)
