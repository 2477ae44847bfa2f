"""What is run: methods, lengths, settings, seeds, and how validation chooses among them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cells import Cells, Finished, MissingCell

from bertvision.files import value_hash
from peer.data import COLUMNS, our_settings

PROTOCOL = 3
"""Counts changes of the benchmark that concern every cell."""

SEEDS = [0, 1, 2]
EXCLUDED = ("read", "prepare", "tuning")
"""Stages that are not part of the seconds of a cell: reading files, what is prepared once for all data sets, and the
choice of settings, which is stated separately."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is tuned."""

    rate: float = 0.0
    """The learning rate; 0: the method's own default."""
    layer_decay: float = 1.0

    def __str__(self) -> str:
        return f"{self.rate:g}" + (f"-decay{self.layer_decay:g}" if self.layer_decay != 1 else "")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to get a model, and what is tried of it."""

    summary: str
    unit: str
    """What its lengths count."""
    lengths: tuple[float, ...]
    """Each length is its own run."""
    rates: tuple[float, ...] = (0.0,)
    """Learning rates, among which validation chooses with the first seed at the length `tuned_at`."""
    layer_decays: tuple[float, ...] = ()
    """Layer-wise rate decays that are tried at the chosen rate beside none."""
    tuned_at: float = 0.0
    random: bool = True
    """Whether seeds differ."""
    regression: bool = True
    """Whether it can predict scores."""
    package: str = ""
    """A package that must be installed."""
    version: int = 1
    """Counts changes of this method, after which its cells are run again."""
    ours: bool = False

    def suits(self, column: str) -> bool:
        """Whether it can be run on a data set."""
        return self.regression or not COLUMNS[column].is_regression


METHODS = {
    "tf-idf": Method(
        summary="TF-IDF (words, pairs of words, character n-grams), logistic or ridge regression",
        unit="share of rows",
        lengths=(0.1, 0.3, 1),
        random=False,
    ),
    "probe-cls": Method(
        summary="logistic or ridge regression on [CLS] of the frozen last layer",
        unit="share of rows",
        lengths=(0.1, 0.3, 1),
        random=False,
    ),
    "probe-mean": Method(
        summary="logistic or ridge regression on the mean of the frozen last layer",
        unit="share of rows",
        lengths=(0.1, 0.3, 1),
        random=False,
    ),
    "embedding": Method(
        summary="sentence embeddings (of pairs: u, v, |u - v|, u v), logistic or ridge regression",
        unit="share of rows",
        lengths=(0.1, 0.3, 1),
        random=False,
    ),
    "model2vec": Method(
        summary="static embeddings that model2vec distils from the same encoder, logistic or ridge regression",
        unit="share of rows",
        lengths=(0.1, 0.3, 1),
        random=False,
        package="model2vec",
    ),
    "model2vec-tuned": Method(
        summary="StaticModelForClassification of model2vec: static embeddings that are trained, too; texts of a pair "
        "are joined",
        unit="epochs at most",
        lengths=(3, 10, 30),
        rates=(1e-3, 3e-3, 1e-2),
        tuned_at=10,
        regression=False,
        package="model2vec",
    ),
    "bertvision": Method(
        summary="the pipeline's defaults, controls left out; heads are trained at 0.3 for pairs, at 1 for single texts",
        unit="epochs",
        lengths=(0, 0.3, 1),
        ours=True,
    ),
    "bertvision-decay": Method(
        summary="the same, but the rate of fine-tuning falls to zero at the length",
        unit="epochs",
        lengths=(1, 2, 3, 5),
        ours=True,
    ),
    "setfit": Method(
        summary="SetFit (package): contrastive pairs, then logistic regression on all rows; texts of a pair are joined",
        unit="steps of 16 pairs",
        lengths=(50, 150, 500),
        rates=(2e-5, 5e-5, 1e-4),
        tuned_at=150,
        regression=False,
        package="setfit",
    ),
    "bitfit": Method(
        summary="biases and the head",
        unit="epochs",
        lengths=(1, 2, 3, 5, 10),
        rates=(1e-3, 2e-3, 4e-3),
        tuned_at=5,
    ),
    "lora": Method(
        summary="LoRA (peft): rank 8, alpha 16, dropout 0.1, on query and value",
        unit="epochs",
        lengths=(1, 2, 3, 5, 10),
        rates=(1e-3, 2e-3, 4e-3),
        tuned_at=5,
        package="peft",
    ),
    "fine-tuning": Method(
        summary="all weights; validation also chooses layer-wise rate decay or none",
        unit="epochs",
        lengths=(0.3, 1, 2, 3, 5, 10),
        rates=(5e-5, 1e-4, 2e-4, 4e-4),
        layer_decays=(0.9, 0.75),
        tuned_at=5,
    ),
    "autogluon": Method(
        summary="AutoGluon MultiModalPredictor, the same encoder, within a time limit; in an environment of its own",
        unit="seconds given",
        lengths=(60, 300),
    ),
}
"""All methods, the cheapest first."""

OPTIONAL = ("autogluon",)
"""Methods that run only if they are named."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell: a method, a length, a setting, a data set and a seed."""

    method: str
    length: float
    column: str
    seed: int
    setting: Setting = field(default_factory=Setting)

    @property
    def key(self) -> str:
        """Its name among the finished cells."""
        return f"{self.column}/{self.method}/{self.length:g}/{self.setting}/{self.seed}"

    @property
    def version(self) -> str:
        """A hash of all that the result depends on beside the code. A cell with another one is run again."""
        method, column = METHODS[self.method], COLUMNS[self.column]
        ours = our_settings(column) if method.ours else {}
        return value_hash([PROTOCOL, method.version, asdict(column), ours])

    @property
    def labels_key(self) -> str:
        """The name of the cell that holds the labels of the scored rows."""
        return f"{self.column}/labels/{value_hash([PROTOCOL, asdict(COLUMNS[self.column])])}"


@dataclass(frozen=True)
class Results:
    """Finished cells of the current version."""

    cells: Cells

    def find(self, job: Job) -> Finished | None:
        """Return a finished cell; None if it is missing or stale."""
        try:
            found = self.cells.read(job.key)
        except MissingCell:
            return None
        return found if found.record.get("version") == job.version else None

    def record(self, job: Job) -> dict[str, Any] | None:
        """Return the record of a finished cell."""
        found = self.find(job)
        return found.record if found else None

    def trials(self, method: str, column: str) -> list[Job]:
        """Return the cells that choose the setting: first the rates, then layer-wise decays at the chosen rate."""
        plan = METHODS[method]
        if len(plan.rates) == 1 and not plan.layer_decays:
            return []
        length, seed = plan.tuned_at or plan.lengths[-1], SEEDS[0]
        rates = [Setting(rate=rate) for rate in plan.rates]
        jobs = [Job(method=method, length=length, column=column, seed=seed, setting=each) for each in rates]
        if best := self.best(jobs):
            decayed = [Setting(rate=best.setting.rate, layer_decay=decay) for decay in plan.layer_decays]
            jobs += [Job(method=method, length=length, column=column, seed=seed, setting=each) for each in decayed]
        return jobs

    def best(self, jobs: Sequence[Job]) -> Job | None:
        """Return the job that validation prefers, the first of equal ones; None if one is missing."""
        records = [self.record(job) for job in jobs]
        if not jobs or any(record is None for record in records):
            return None
        grades = [record["grade"] for record in records if record]
        return jobs[max(range(len(jobs)), key=lambda index: grades[index])]

    def chosen_setting(self, method: str, column: str) -> Setting | None:
        """Return the setting that validation prefers; None if it has not been tried out."""
        trials = self.trials(method, column)
        if not trials:
            return Setting(rate=METHODS[method].rates[0])
        best = self.best(trials)
        return best.setting if best else None

    def lengths(self, method: str, column: str, seed: int) -> list[Job]:
        """Return a job for every length with the chosen setting; none if that has not been chosen."""
        setting = self.chosen_setting(method, column)
        if setting is None:
            return []
        lengths = METHODS[method].lengths
        return [Job(method=method, length=each, column=column, seed=seed, setting=setting) for each in lengths]

    def chosen_length(self, method: str, column: str) -> Job | None:
        """Return the run of the first seed that validation prefers."""
        return self.best(self.lengths(method, column, SEEDS[0]))


def plan(
    results: Results, columns: Sequence[str], seeds: Sequence[int], methods: Sequence[str], *, every_length: bool
) -> Iterator[Job]:
    """Yield all cells in the order in which they are needed: the first seed before the others, cheap methods first.

    With the first seed, settings are tried and every length is run. With the others, the chosen length, or every one.
    """
    for seed, method, column in itertools.product(seeds, methods, columns):
        if not METHODS[method].suits(column) or (seed != SEEDS[0] and not METHODS[method].random):
            continue
        if seed == SEEDS[0]:
            yield from _tried(results, method, column)
        jobs = results.lengths(method, column, seed)
        best = results.chosen_length(method, column)
        yield from (
            jobs
            if every_length or seed == SEEDS[0] or METHODS[method].ours
            else [job for job in jobs if best and job.length == best.length]
        )


def _tried(results: Results, method: str, column: str) -> Iterator[Job]:
    """Yield the trials of settings. The later ones are known only when the earlier ones have been run."""
    yielded: set[Job] = set()
    while new := [job for job in results.trials(method, column) if job not in yielded]:
        yield from new
        yielded.update(new)
        if results.best(list(yielded)) is None:  # a cell is still missing: nothing can be chosen
            return
