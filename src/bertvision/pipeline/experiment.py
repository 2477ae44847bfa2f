"""What an experiment is: TOML in, frozen dataclass out."""

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from bertvision.cpu_optimizations import enabled
from bertvision.errors import BertVisionError, lookup
from bertvision.legacy import upgrade_settings
from bertvision.training.config import SCHEDULES, TrainingConfig

T = TypeVar("T")

FRACTION = "{fraction}"
PRECISIONS = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which rows; the user's own files are named here too."""

    data_dir: str = ""
    """Directory with the task's official files."""
    source: str = ""
    """"local", "hub" or "registry"; empty: the first of these that has the task."""
    limit: int = 0
    """Use this many rows of train, validation carved out of them, drawn at random; 0: all."""
    limit_dev: int = 0
    shard: float = 1.0
    """Use this share of train, drawn at random, where there is no limit."""
    validation: float = 0.1
    """Share of train that is held out to choose on, where no validation file is given."""
    split_seed: int = 0
    """Draws validation and limits; kept apart from `seed`, so that all seeds see the same split."""
    max_tokens: int = 0
    """Longest input; 0: the task's."""
    train_file: str = ""
    dev_file: str = ""
    validation_file: str = ""
    text: str = "text"
    text_pair: str = ""
    label: str = "label"
    kind: str = "auto"
    """"classification", "regression" or "auto"."""


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """How hidden states are stored, where they are."""

    dtype: str = "int8"
    """float32, float16, bfloat16, int8 or int4."""
    directory: str = ""
    """Where stores are; empty: with the backbone they were made from."""
    shard_megabytes: float = 128.0
    """Megabytes that are written, and lost in a crash, as one."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A task, a backbone, how far to fine-tune it, and the heads to train on its states."""

    task: str = ""
    """A name of `bertvision tasks`; any name with data.train_file set: the user's own data."""
    encoder: str = "minilm"
    """An alias, a Hub name or a directory; "DIR/{fraction}": checkpoints fine-tuned elsewhere, used as they are."""
    fractions: list[float] = field(default_factory=lambda: [0.3, 1.0])
    """Epochs of fine-tuning after which to save and score the backbone; 0 means as loaded."""
    auxiliary_head: str = ""
    """The auxiliary head that is fine-tuned along with BERT's own, so that every layer it reads is tuned for it.
    "bert-head": BERT's own head alone, as published. Empty: the one that suits the kind of task."""
    frozen: int = 0
    """How many of the lowest layers, embeddings first, fine-tuning leaves as they are."""
    head_fractions: list[float] = field(default_factory=list)
    """The fractions at which heads are trained; none: the smallest."""
    heads: list[str] = field(default_factory=list)
    """Which to train; none: those that suit the kind of task."""
    extra_learning_rates: list[float] = field(default_factory=list)
    """Learning rates to try for each head beside train.learning_rate; the best on validation is kept."""
    labels: float = 1.0
    """Share of train whose labels heads learn from, in the data's proportions; a smaller one is part of a larger."""
    controls: bool = True
    """Also train BERT's kind of head anew, and each head on the last layer only."""
    ensembles: list[str] = field(default_factory=lambda: ["max"])
    """How to combine BERT with the chosen head: max, mean, product."""
    states: str = "auto"
    """"memory" computes hidden states once, "store" too and keeps them on disk, "stream" anew each epoch; "auto": the
    first if they are few, else whichever of the others a short trial finds faster."""
    store: StoreConfig = StoreConfig()
    seed: int = 0
    precision: str = "auto"
    """Of the backbone's products: "auto" is bfloat16 where the machine computes in it natively, else float32."""
    cpu_optimizations: bool = field(default_factory=enabled)
    """Whether to use the optimizations for CPUs, such as fast dropout; false: the plain code of PyTorch."""
    data: DataConfig = DataConfig()
    finetune: TrainingConfig = TrainingConfig(schedule="constant")
    train: TrainingConfig = TrainingConfig(epochs=3.0, patience=2, batch_size=32)

    @property
    def given(self) -> bool:
        """Whether the backbone of every fraction is already there."""
        return FRACTION in self.encoder

    def encoder_at(self, fraction: float) -> str:
        """Where the backbone of a fraction is, if it is given; else where fine-tuning starts."""
        return self.encoder.replace(FRACTION, f"{fraction:g}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return the published settings by name, each laid over the defaults by `preset`."""
    return tomllib.loads((Path(__file__).with_name("presets.toml")).read_text(encoding="utf-8"))


def preset(name: str) -> Experiment:
    """Return the experiment that published settings make; no name: the defaults."""
    if not name:
        return Experiment()
    return merge(
        Experiment(auxiliary_head="bert-head"), lookup(presets(), name, "preset")
    )  # nothing else has been published


def make(**settings: Any) -> Experiment:
    """Return an experiment; settings of `data` may be given flat: make(task="mrpc", limit=500).

    With `preset`, they are laid over published settings.
    """
    settings = upgrade_settings(settings, announce=True)
    inner = {name: value for name, value in settings.items() if name in vars(DataConfig())}
    outer = {name: value for name, value in settings.items() if name not in inner}
    for name in outer:
        lookup({"preset": ""} | vars(DataConfig()) | vars(Experiment()), name, "setting")
    experiment = merge(preset(outer.pop("preset", "")), outer)
    return check(replace(experiment, data=merge(experiment.data, inner)))


def load(path: Path | None = None, overrides: Sequence[str] = (), name: str = "") -> Experiment:
    """Read `path`, over the preset `name` or the one it names, then apply overrides: "train.learning_rate=3e-4"."""
    values = read_toml(path) if path else {}
    if "experiments" in values:
        raise BertVisionError(f"{path} holds several experiments, which `bertvision study all {path}` runs.")
    values.pop("study", None)  # settings of studies, if they are to be made of it
    named = values.pop("preset", "")
    return apply(merge(preset(name or named), values), overrides)


def load_several(path: Path | None, name: str = "") -> list[tuple[Experiment, dict[str, Any]]]:
    """Read every experiment of a file, with its settings of [study]; what stands above them holds for all."""
    values = read_toml(path) if path else {}
    shared, each = values.pop("study", {}), values.pop("experiments", [{}])
    found = []
    for own in each:
        study = shared | own.pop("study", {})
        named = own.pop("preset", values.get("preset", ""))
        common = {key: value for key, value in values.items() if key != "preset"}
        found.append((check(merge(merge(preset(name or named), common), own)), study))
    return found


def resolve_fractions(experiment: Experiment) -> Experiment:
    """Fill in the fractions at which heads are trained (default: the smallest); fine-tuning reaches them, too."""
    head_fractions = experiment.head_fractions or [min(experiment.fractions)]
    fractions = sorted({*experiment.fractions, *head_fractions})
    return replace(experiment, head_fractions=head_fractions, fractions=fractions)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BertVisionError(f"No experiment file at {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BertVisionError(f"{path} is not valid TOML: {error}.") from error


def apply(experiment: Experiment, overrides: Sequence[str]) -> Experiment:
    """Lay "key=value" settings over an experiment, and check the result."""
    return check(overlay(experiment, overrides))


def overlay(default: T, overrides: Sequence[str]) -> T:
    """Lay "key=value" settings over a dataclass."""
    for override in overrides:
        key, _, value = override.partition("=")
        if not value:
            raise BertVisionError(f"Setting {override!r} is not of the form key=value.")
        # Strings need no quotes on the command line, so what is not TOML is tried as one.
        for text in (override, f"{key} = {json.dumps(value.strip())}"):
            try:
                values = tomllib.loads(text)
                break
            except tomllib.TOMLDecodeError:
                continue
        else:
            raise BertVisionError(f"Setting {override!r} is not of the form key=value.")
        default = merge(default, values)
    return default


def merge(default: T, values: dict[str, Any], where: str = "") -> T:
    """Return `default` with `values` laid over it; refuse a key or a type it does not know."""
    if isinstance(default, Experiment):
        values = upgrade_settings(values, announce=True)
    changes = {}
    for key, value in values.items():
        old = lookup(vars(default), key, f"setting of {where[:-1]}" if where else "setting")
        name = f"{where}{key}"
        if is_dataclass(old):
            if not isinstance(value, dict):
                raise BertVisionError(f"{name} must be a table of settings, got {value!r}.")
            value = merge(old, value, f"{name}.")
        elif isinstance(old, float) and type(value) is int:
            value = float(value)
        elif isinstance(old, list):
            value = _list_of(get_args(get_type_hints(type(default))[key])[0], value, name)
        elif type(value) is not type(old):
            raise BertVisionError(f"{name} must be {type(old).__name__}, got {value!r}.")
        changes[key] = value
    return replace(default, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _list_of(kind: type, value: Any, name: str) -> list[Any]:
    """Accept a list of `kind`, or one value for a list of one."""
    values = value if isinstance(value, list) else [value]
    values = [float(each) if kind is float and type(each) is int else each for each in values]
    for each in values:
        if type(each) is not kind:
            raise BertVisionError(f"{name} must be a list of {kind.__name__}, got {each!r} in it.")
    return values


def check(experiment: Experiment) -> Experiment:
    """Refuse values no step could use; contradictions are found where the values meet."""
    for name, optim in (("finetune", experiment.finetune), ("train", experiment.train)):
        lookup(dict.fromkeys(SCHEDULES), optim.schedule, f"{name}.schedule")
        if (
            optim.epochs <= 0
            or optim.gradient_accumulation_steps < 1
            or optim.batch_size < 0
            or optim.learning_rate < 0
        ):
            raise BertVisionError(f"[{name}] needs epochs > 0, accumulate >= 1, batch_size >= 0, learning_rate >= 0.")
    lookup(dict.fromkeys(PRECISIONS), experiment.precision, "precision")
    epochs = experiment.fractions + experiment.head_fractions
    if not experiment.fractions or not all(0 <= fraction < math.inf for fraction in epochs):
        raise BertVisionError(f"fractions must be epochs, 0 or more, got {experiment.fractions}.")
    if not 0 < experiment.data.validation < 1:
        raise BertVisionError(f"data.validation must lie between 0 and 1, got {experiment.data.validation}.")
    if experiment.store.shard_megabytes <= 0:
        raise BertVisionError(
            f"store.shard_megabytes must be megabytes, more than 0, got {experiment.store.shard_megabytes}."
        )
    if not 0 < experiment.data.shard <= 1:
        raise BertVisionError(f"data.shard must lie above 0 and be at most 1, got {experiment.data.shard}.")
    return experiment
