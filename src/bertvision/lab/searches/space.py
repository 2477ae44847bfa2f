"""Search spaces of heads and of BERT, and how the settings of a trial are drawn from them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from optuna.trial import Trial

from bertvision import heads
from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.pipeline.experiment import Experiment

CANDIDATES = {
    "span": ["learned", "adapter", "adapter:members=3", "adapter-skip"],
    "pair": ["learned", "adapter", "adapter:encoding=bi,members=3,token_pooling=max+compare+align", "adapter-skip"],
    "text": ["learned", "adapter", "adapter:members=3", "adapter-skip"],
}
"""The heads that are searched if the experiment names none, by kind of task."""
OPTIONS = ("size", "token_pooling", "layers", "dropout")
"""The options of heads that are searched, unless the name of a head fixes them."""
TEXT_POOLINGS = ["cls", "mean", "max"]
PAIR_POOLINGS = ["cls", "mean", "max", "max+compare", "max+compare+align"]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The search space of heads. Which head and which fraction are searched too; the experiment names them."""

    learning_rate: list[float] = field(default_factory=lambda: [1e-4, 1e-2])
    """Lowest and highest value, drawn on a logarithmic scale."""
    epochs: list[int] = field(default_factory=lambda: [3, 10])
    """Lowest and highest value."""
    size: list[int] = field(default_factory=lambda: [8, 16, 32, 64, 128])
    token_pooling: list[str] = field(default_factory=list)
    """Empty: the poolings that suit the kind of task."""
    layers: list[str] = field(default_factory=lambda: ["all", "every2", "last4", "last"])
    dropout: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.5])


@dataclass(frozen=True, kw_only=True)
class BertSpace:
    """The search space of BERT without a head of ours."""

    learning_rate: list[float] = field(default_factory=list)
    """Lowest and highest value; empty: from a quarter of the default learning rate to four times as much."""
    epochs: list[int] = field(default_factory=lambda: [1, 4])


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """The settings that one trial evaluates."""

    head: str
    """Empty: BERT alone."""
    fraction: float
    learning_rate: float
    epochs: int

    def experiment(self, base: Experiment) -> Experiment:
        """Return `base` with these settings."""
        fractions = [self.fraction]
        if not self.head:
            finetune = replace(base.finetune, learning_rate=self.learning_rate, schedule="linear")
            return replace(base, finetune=finetune, fractions=fractions, head_fractions=fractions)
        train = replace(base.train, learning_rate=self.learning_rate, epochs=float(self.epochs))
        base = replace(base, fractions=fractions, head_fractions=fractions)
        return replace(base, heads=[self.head], train=train, extra_learning_rates=[])

    def describe(self) -> str:
        """Return the settings as a short text for messages."""
        model = f"{self.head} after {self.fraction:g} epochs of fine-tuning" if self.head else "BERT"
        return f"{model}, learning rate {self.learning_rate:.2g}, {self.epochs} epochs"


def check_space(space: Space | BertSpace, *, default_rate: float, kind: str) -> Space | BertSpace:
    """Check a space and fill in what depends on the task.

    Args:
        space: The space to check.
        default_rate: The default learning rate of fine-tuning.
        kind: The kind of task.
    """
    if isinstance(space, BertSpace) and not space.learning_rate:
        space = replace(space, learning_rate=[default_rate / 4, default_rate * 4])
    if isinstance(space, Space) and not space.token_pooling:
        space = replace(space, token_pooling=PAIR_POOLINGS if kind == "pair" else TEXT_POOLINGS)
    for name in ("learning_rate", "epochs"):
        ends = getattr(space, name)
        if len(ends) != 2 or not 0 < ends[0] <= ends[1]:
            raise BertVisionError(
                f"The space of {name} must be [lowest, highest], both above 0 and in this order; got {ends}."
            )
    empty = [name for name, values in vars(space).items() if not values]
    if empty:
        raise BertVisionError(f"The space of {empty[0]} is empty; name at least one value.")
    return space


def suggest_settings(
    space: Space | BertSpace, trial: Trial, experiment: Experiment, *, per_token: bool
) -> TrialSettings:
    """Draw the settings of a trial. The options of a head that its name leaves open are drawn too."""
    low, high = space.learning_rate
    rate = trial.suggest_float("learning_rate", low, high, log=True)
    epochs = trial.suggest_int("epochs", *space.epochs)
    if isinstance(space, BertSpace):
        return TrialSettings(head="", fraction=float(epochs), learning_rate=rate, epochs=epochs)
    config = HeadConfig.parse(trial.suggest_categorical("head", experiment.heads))
    fraction = trial.suggest_categorical("fraction", experiment.head_fractions)
    options = {name: trial.suggest_categorical(name, getattr(space, name)) for name in _open_options(config, per_token)}
    return TrialSettings(head=str(config.replace(**options)), fraction=fraction, learning_rate=rate, epochs=epochs)


def default_trial(
    space: Space | BertSpace, experiment: Experiment, *, default_rate: float, default_epochs: float, kind: str
) -> dict[str, Any]:
    """Return the parameters of the first trial: the default settings, or the closest ones that the space has.

    Where the space lacks a default value, the nearest number of the space is taken, or its first name. Where the
    default head of the kind of task is not among the heads of the experiment, the head that shares most options with
    it is taken. The other arguments are those of `check_space`, and the default epochs of heads.
    """
    if isinstance(space, BertSpace):
        return {"learning_rate": _clip(default_rate, space.learning_rate), "epochs": space.epochs[0]}
    default = heads.default_head(kind)

    def agreement(spec: str) -> tuple[bool, bool, int]:
        """Whether a head is of the default class, whether it can have its options, and how many it shares."""
        config = HeadConfig.parse(spec)
        opened = _open_options(config, kind == "span")
        agree = [default.options.get(key) == value for key, value in config.options.items() if key not in opened]
        return config.name == default.name, all(agree), sum(agree)

    config = HeadConfig.parse(spec := max(experiment.heads, key=agreement))
    options = default.options if config.name == default.name else config.options
    rate = experiment.train.learning_rate or heads.DEFAULT_LEARNING_RATES[kind]
    return {
        "learning_rate": _clip(rate, space.learning_rate),
        "epochs": _clip(int(default_epochs), space.epochs),
        "head": spec,
        "fraction": experiment.head_fractions[0],
    } | {name: _nearest(options[name], getattr(space, name)) for name in _open_options(config, kind == "span")}


def _clip(value: Any, ends: Sequence[Any]) -> Any:
    return min(max(value, ends[0]), ends[1])


def _nearest(value: Any, choices: Sequence[Any]) -> Any:
    """Return `value` if it is among the choices, else the nearest number or the first name."""
    if value in choices or isinstance(value, str):
        return value if value in choices else choices[0]
    return min(choices, key=lambda choice: abs(choice - value))


def covering_heads(space: Space, configs: Iterable[HeadConfig], *, per_token: bool) -> Iterator[HeadConfig]:
    """Yield heads that together read all hidden states that any head of the space reads."""
    for config in configs:
        names = [name for name in _open_options(config, per_token) if name in ("token_pooling", "layers")]
        for values in product(*(getattr(space, name) for name in names)):
            yield config.replace(**dict(zip(names, values, strict=True)))


def _open_options(config: HeadConfig, per_token: bool) -> list[str]:
    """Return the options that are searched for a head: those it has and its specification does not fix."""
    fixed = dict(config.given)
    opened = [name for name in OPTIONS if name in config.options and name not in fixed]
    return [name for name in opened if not (per_token and name == "token_pooling")]
