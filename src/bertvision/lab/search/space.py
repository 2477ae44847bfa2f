"""What is searched: the settings of a head, or of BERT alone, and how one trial's are drawn."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from optuna.trial import Trial

from bertvision import heads
from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.lab.experiment import Experiment

CANDIDATES = {
    "span": ["learned", "adapter", "adapter:members=3", "adapter-skip"],
    "pair": ["learned", "adapter", "adapter:encoding=both,members=3,token_pooling=max+compare+align", "adapter-skip"],
    "text": ["learned", "adapter", "adapter:members=3", "adapter-skip"],
}
"""The heads tried when none are named, by the task's kind."""
OPTIONS = ("size", "token_pooling", "layers", "dropout")
PAIR_POOLINGS = {"pair": ["cls", "mean", "max", "max+compare", "max+compare+align"]}
"""What is tried where there are more ways than to look at one text."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Where to look for the settings of a head, beside which head and at which fraction."""

    learning_rate: list[float] = field(default_factory=lambda: [1e-4, 1e-2])
    """From, to; drawn on a logarithmic scale."""
    epochs: list[int] = field(default_factory=lambda: [3, 10])
    """From, to."""
    size: list[int] = field(default_factory=lambda: [8, 16, 32, 64, 128])
    token_pooling: list[str] = field(default_factory=list)
    """None: what suits the kind of task."""
    layers: list[str] = field(default_factory=lambda: ["all", "every2", "last4", "last"])
    dropout: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.5])


@dataclass(frozen=True, kw_only=True)
class BertSpace:
    """Where to look for the settings of BERT alone."""

    learning_rate: list[float] = field(default_factory=list)
    """From, to; none: from a quarter of the usual rate to four times as much."""
    epochs: list[int] = field(default_factory=lambda: [1, 4])


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one trial tries."""

    head: str
    """Empty: BERT alone."""
    fraction: float
    learning_rate: float
    epochs: int

    def experiment(self, base: Experiment) -> Experiment:
        """Return `base` with these settings."""
        at = [self.fraction]
        if not self.head:
            finetune = replace(base.finetune, learning_rate=self.learning_rate, schedule="linear")
            return replace(base, finetune=finetune, fractions=at, head_fractions=at)
        train = replace(base.train, learning_rate=self.learning_rate, epochs=float(self.epochs))
        return replace(base, heads=[self.head], train=train, extra_learning_rates=[], fractions=at, head_fractions=at)

    def describe(self) -> str:
        """Say it in a few words."""
        what = f"{self.head} at {self.fraction:g}" if self.head else "BERT"
        return f"{what}, rate {self.learning_rate:.2g}, {self.epochs} epochs"


def check(space: Space | BertSpace, *, usual_rate: float, kind: str) -> Space | BertSpace:
    """Refuse what cannot be drawn from; fill in the range of BERT's rate, and the gathers of a kind of task."""
    if isinstance(space, BertSpace) and not space.learning_rate:
        space = replace(space, learning_rate=[usual_rate / 4, usual_rate * 4])
    if isinstance(space, Space) and not space.token_pooling:
        space = replace(space, token_pooling=PAIR_POOLINGS.get(kind, ["cls", "mean", "max"]))
    for name in ("learning_rate", "epochs"):
        ends = getattr(space, name)
        if len(ends) != 2 or not 0 < ends[0] <= ends[1]:
            raise BertVisionError(f"The space of {name} is from, to, both above 0 and in this order; got {ends}.")
    empty = [name for name, values in vars(space).items() if not values]
    if empty:
        raise BertVisionError(f"The space of {empty[0]} is empty; name at least one value.")
    return space


def suggest(space: Space | BertSpace, trial: Trial, experiment: Experiment, *, per_token: bool) -> Setting:
    """Let the study suggest a setting; a head is asked for the options that it takes and that its name leaves open."""
    low, high = space.learning_rate
    rate = trial.suggest_float("learning_rate", low, high, log=True)
    epochs = trial.suggest_int("epochs", *space.epochs)
    if isinstance(space, BertSpace):
        return Setting(head="", fraction=float(epochs), learning_rate=rate, epochs=epochs)
    config = HeadConfig.parse(trial.suggest_categorical("head", experiment.heads))
    fraction = trial.suggest_categorical("fraction", experiment.head_fractions)
    chosen = {name: trial.suggest_categorical(name, getattr(space, name)) for name in _open(config, per_token)}
    return Setting(head=str(config.replace(**chosen)), fraction=fraction, learning_rate=rate, epochs=epochs)


def usual(space: Space | BertSpace, experiment: Experiment, *, usual_rate: float, kind: str) -> dict[str, Any]:
    """Return what is done unless told otherwise, as the parameters of a trial; nothing if the space lacks it."""
    if isinstance(space, BertSpace):
        found = {"learning_rate": usual_rate, "epochs": space.epochs[0]}
        return found if space.learning_rate[0] <= usual_rate <= space.learning_rate[1] else {}
    default = heads.default_head(kind)
    rate, epochs = experiment.train.learning_rate or heads.DEFAULT_LEARNING_RATES[kind], int(experiment.train.epochs)
    for spec in experiment.heads:
        tried = HeadConfig.parse(spec)
        if tried.name != default.name:
            continue
        opened = {option: default.options[option] for option in _open(tried, kind == "span")}
        if (
            all(default.options[o] == value for o, value in tried.options.items() if o not in opened)
            and all(value in getattr(space, option) for option, value in opened.items())
            and space.learning_rate[0] <= rate <= space.learning_rate[1]
            and space.epochs[0] <= epochs <= space.epochs[1]
        ):
            return {
                "learning_rate": rate,
                "epochs": epochs,
                "head": spec,
                "fraction": experiment.head_fractions[0],
            } | opened
    return {}


def reach(space: Space, configs: Iterable[HeadConfig], *, per_token: bool) -> Iterator[HeadConfig]:
    """Yield heads that between them read every part of the states that any head of the space reads."""
    for config in configs:
        names = [name for name in _open(config, per_token) if name in ("token_pooling", "layers")]
        for values in product(*(getattr(space, name) for name in names)):
            yield config.replace(**dict(zip(names, values, strict=True)))


def _open(config: HeadConfig, per_token: bool) -> list[str]:
    """Return the searched options that the head takes and that its specification leaves open."""
    fixed = dict(config.given)
    return [o for o in OPTIONS if o in config.options and o not in fixed and not (per_token and o == "token_pooling")]
