"""The settings of an experiment: frozen dataclasses, read from TOML files and from the command line."""

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
from bertvision.training import TrainingConfig
from bertvision.training.config import SCHEDULES

T = TypeVar("T")

FRACTION = "{fraction}"
SPLITS = {"texts": "rows that share text stay on one side", "rows": "row by row"}
PRECISIONS = ("auto", "float32", "bfloat16", "float16")


DEFAULT_FRACTIONS = {"text": [1.0], "pair": [0.3, 1.0], "span": [0.3, 1.0], "tokens": [2.0]}
"""Epochs of fine-tuning when none are named, by the kind of task (docs/decisions/0045)."""
DECAYING_RATE = 2.0
"""The peak of a rate that falls to zero, as a multiple of the constant default, so that their means are equal."""

PUBLISHED_FINETUNING = TrainingConfig(schedule="constant")
PUBLISHED_TRAINING = TrainingConfig(epochs=3.0, patience=2, batch_size=32)
"""How the heads of presets are trained, where a preset has no settings of its own."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which rows to use: those of a benchmark, or of the user's own files."""

    data_dir: str = ""
    """Directory with the official files of the task."""
    source: str = ""
    """"local", "hub" or "registry"; empty: the first of these that has the task."""
    limit: int = 0
    """The number of training rows, drawn at random. Validation is split off them. 0: all."""
    limit_dev: int = 0
    """The number of scored rows, drawn at random. 0: all."""
    train_fraction: float = 1.0
    """The fraction of the training rows to use, drawn at random, if there is no limit."""
    validation_fraction: float = 0.1
    """The fraction of the training rows that is held out as the validation split, if there is no validation file."""
    split: str = "texts"
    """How validation is split off: "texts": rows that share text, such as a sentence and its phrases, stay on one side.
    "rows": row by row; estimators keep rows with equal texts together."""
    split_seed: int = 0
    """The seed of validation and limits. It differs from `seed`, so that all seeds use the same split."""
    max_tokens: int = 0
    """The largest number of tokens of an input. 0: the default of the task."""
    long_texts: str = "truncate"
    """What is done with longer texts: "truncate", or "windows": they are read in overlapping windows of max_tokens."""
    train_file: str = ""
    dev_file: str = ""
    validation_file: str = ""
    text: str = "text"
    text_pair: str = ""
    label: str = "label"
    """The column of the labels; or several columns of 0 and 1: "toxic,insult"."""
    label_separator: str = ""
    """The text between several labels of a row, e.g. ","."""
    kind: str = "auto"
    """"classification", "multi-label", "regression" or "auto"."""
    skip_bad: bool = False
    """Whether rows without text or label are skipped. They are an error otherwise."""
    time: str = ""
    """A column of times. The newest rows are used for dev and validation, instead of random rows."""
    groups: str = ""
    """A column of groups, e.g. authors. All rows of a group are in the same split."""
    class_weight: str = ""
    """"balanced": training rows have weights, so that all classes have the same total weight. The classes of questions
    are those with and without an answer. Empty: all rows have the same weight."""


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """How and where hidden states are stored."""

    dtype: str = "int8"
    """float32, float16, bfloat16, int8 or int4."""
    directory: str = ""
    """The directory of stores. Empty: beside the encoder that computed the hidden states."""
    shard_megabytes: float = 128.0
    """The size of a shard. If writing is interrupted, unfinished shards are computed again."""


@dataclass(frozen=True, kw_only=True)
class SpanConfig:
    """How answers to questions are predicted."""

    answerability_weight: float = 0.0
    """The weight of an extra output in the loss, e.g. 0.5. The output predicts whether a question has no answer. BERT's
    own head and all other heads have it. 0: no such output."""
    end_given_start: bool = False
    """Whether the end logits of BERT's own head depend on the start. Other heads have an option of this name."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A task, an encoder, how long to fine-tune it, and the heads to train on its hidden states."""

    task: str = ""
    """A name of `bertvision tasks`, or any name for the user's own data (data.train_file)."""
    encoder: str = "minilm"
    """A name of `bertvision encoders`, a Hub name or a directory. "DIR/{fraction}": given checkpoints."""
    fractions: list[float] = field(default_factory=list)
    """Epochs of fine-tuning after which the encoder is saved and scored. 0: the encoder as it is loaded. Empty: the
    default of the kind of task (`DEFAULT_FRACTIONS`)."""
    auxiliary_head: str = ""
    """The head that is fine-tuned along with BERT's own, so that every layer it reads is tuned. Heads with a solver
    (`ridge`, `logistic`) are fitted before. "bert-head": BERT's own head alone, as published. Empty: the default of the
    kind of task."""
    frozen: int = 0
    """The number of lowest layers, embeddings first, that are not fine-tuned."""
    head_fractions: list[float] = field(default_factory=list)
    """The fractions at which heads are trained. Empty: the smallest of `fractions`; for entities, the largest."""
    heads: list[str] = field(default_factory=list)
    """The heads to train. Empty: the default head of the kind of task."""
    extra_learning_rates: list[float] = field(default_factory=list)
    """Learning rates to try for each head beside train.learning_rate. Validation chooses among them."""
    label_fraction: float = 1.0
    """The fraction of the training rows that heads are trained on, stratified. A smaller one is nested in a larger."""
    controls: bool = True
    """Also train two controls: BERT's own kind of head, and each head on the last layer only."""
    ensembles: list[str] = field(default_factory=lambda: ["max"])
    """How the predictions of BERT and the chosen head are combined: max, mean, product."""
    combine_heads: bool = True
    """Whether the heads of a checkpoint are combined, as long as that improves the validation score."""
    states: str = "auto"
    """Where hidden states come from: computed once and held in "memory", or in a "store" on disk, or computed in every
    epoch ("stream"). "auto": in memory if they are few, else whichever of the others is faster in a short trial."""
    store: StoreConfig = StoreConfig()
    metric: str = ""
    """The metric by which epochs and heads are chosen, e.g. "macro_f1". Empty: the primary metric of the task."""
    seed: int = 0
    """The seed of the initial weights, the order of the rows and dropout. With another number of threads
    (OMP_NUM_THREADS) sums are rounded differently, so the same seed gives slightly different results."""
    precision: str = "auto"
    """The number type of the encoder's matrix products. "auto": bfloat16 if the machine supports it, else float32."""
    cpu_optimizations: bool = field(default_factory=enabled)
    """Whether to use the optimizations for CPUs, such as fast dropout. False: plain PyTorch."""
    data: DataConfig = DataConfig()
    span: SpanConfig = SpanConfig()
    finetune: TrainingConfig = TrainingConfig(schedule="")
    """How the encoder is fine-tuned. No schedule: single texts at one fraction have a rate that falls to zero there, at
    twice the usual peak; everything else has a constant rate."""
    train: TrainingConfig = TrainingConfig(epochs=0.0, patience=3, batch_size=32)
    """How heads are trained. 0 epochs: as many as the number of rows needs (`head_epochs`)."""

    @property
    def checkpoints_given(self) -> bool:
        """Whether `encoder` names checkpoints of all fractions that were fine-tuned elsewhere."""
        return FRACTION in self.encoder

    def encoder_at(self, fraction: float) -> str:
        """Return the encoder of a fraction, if checkpoints are given, else the one that fine-tuning starts from."""
        return self.encoder.replace(FRACTION, f"{fraction:g}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return the published settings by name. `preset` adds the defaults."""
    return tomllib.loads((Path(__file__).with_name("presets.toml")).read_text(encoding="utf-8"))


def preset(name: str) -> Experiment:
    """Return the experiment with published settings. No name: the defaults."""
    if not name:
        return Experiment()
    if not isinstance(name, str):
        raise BertVisionError(f"preset is the name of published settings, got {name!r}.")
    # The paper fine-tunes without an auxiliary head.
    published = Experiment(
        fractions=[0.3, 1.0],
        auxiliary_head="bert-head",
        data=DataConfig(split="rows"),
        finetune=PUBLISHED_FINETUNING,
        train=PUBLISHED_TRAINING,
    )
    return merge(published, lookup(presets(), name, "preset"))


def make(**settings: Any) -> Experiment:
    """Return an experiment. Settings of `data` are given like the others: make(task="mrpc", limit=500).

    With `preset`, the settings override published ones.
    """
    settings = upgrade_settings(settings, announce=True)
    inner = {name: value for name, value in settings.items() if name in vars(DataConfig())}
    outer = {name: value for name, value in settings.items() if name not in inner}
    for name in outer:
        lookup({"preset": ""} | vars(DataConfig()) | vars(Experiment()), name, "setting")
    experiment = merge(preset(outer.pop("preset", "")), outer)
    return check(replace(experiment, data=merge(experiment.data, inner)))


def load(path: Path | None = None, overrides: Sequence[str] = (), name: str = "") -> Experiment:
    """Read an experiment file; its values override those of the preset `name` or of the preset it names.

    `overrides` are applied last: "train.learning_rate=3e-4".
    """
    values = read_toml(path) if path else {}
    if "experiments" in values:
        raise BertVisionError(f"{path} holds several experiments, which `bertvision study all {path}` runs.")
    values.pop("study", None)  # settings of studies, if they are to be made of it
    named = values.pop("preset", "")
    return apply(merge(preset(name or named), values), overrides)


def load_several(path: Path | None, name: str = "") -> list[tuple[Experiment, dict[str, Any]]]:
    """Read every experiment of a file with its [study] settings. Settings at the top of the file are shared."""
    values = read_toml(path) if path else {}
    shared, experiments = values.pop("study", {}), values.pop("experiments", [{}])
    tables = [shared, *experiments] if isinstance(experiments, list) else [experiments]
    tables += [own.get("study", {}) for own in tables if isinstance(own, dict)]
    if not isinstance(experiments, list) or not all(isinstance(table, dict) for table in tables):
        raise BertVisionError(f"{path}: `study` is a table, and `experiments` a list of tables ([[experiments]]).")
    loaded = []
    for own in experiments:
        study = shared | own.pop("study", {})
        named = own.pop("preset", values.get("preset", ""))
        common = {key: value for key, value in values.items() if key != "preset"}
        loaded.append((check(merge(merge(preset(name or named), common), own)), study))
    return loaded


def resolve_fractions(experiment: Experiment, kind: str) -> Experiment:
    """Fill in the fractions at which heads are trained, and add them to those of fine-tuning. `kind` is the task's."""
    default = max if kind == "tokens" else min  # entities need more fine-tuning than classes of whole texts
    given = experiment.fractions or experiment.head_fractions or DEFAULT_FRACTIONS[kind]
    head_fractions = experiment.head_fractions or [default(given)]
    fractions = sorted({*given, *head_fractions})
    return replace(experiment, head_fractions=head_fractions, fractions=fractions)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file of settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BertVisionError(f"No experiment file at {path}.") from None
    except OSError as error:
        raise BertVisionError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise BertVisionError(f"{path} is not valid TOML: {error}.") from error


def apply(experiment: Experiment, overrides: Sequence[str]) -> Experiment:
    """Apply "key=value" settings to an experiment, and check the result."""
    return check(overlay(experiment, overrides))


def overlay(default: T, overrides: Sequence[str]) -> T:
    """Apply "key=value" settings to a dataclass."""
    for override in overrides:
        key, _, value = override.partition("=")
        if not value:
            raise BertVisionError(f"Setting {override!r} is not of the form key=value.")
        # Strings need no quotes on the command line, so what is not TOML is tried as one.
        for text in (override, f"{key} = {json.dumps(value.strip())}"):
            try:
                values = tomllib.loads(text)
                break
            except (ValueError, RecursionError):
                continue
        else:
            raise BertVisionError(f"Setting {override!r} is not of the form key=value.")
        default = merge(default, values)
    return default


def merge(default: T, values: dict[str, Any], where: str = "") -> T:
    """Return a copy of a dataclass with other values. An unknown key or a value of another type is an error."""
    if isinstance(default, Experiment):
        values = upgrade_settings(values, announce=True)
    changes = {}
    for key, value in values.items():
        old = lookup(vars(default), key, f"setting of {where[:-1]}" if where else "setting")
        name = f"{where}{key}"
        numbers = value if isinstance(value, list) else [value]
        if any(type(number) is int and not -(2**63) <= number < 2**63 for number in numbers):
            raise BertVisionError(f"{name} must lie between -2**63 and 2**63 - 1.")
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
    """Return a list of `kind`; a single value becomes a list."""
    values = value if isinstance(value, list) else [value]
    values = [float(entry) if kind is float and type(entry) is int else entry for entry in values]
    for entry in values:
        if type(entry) is not kind:
            raise BertVisionError(f"{name} must be a list of {kind.__name__}, got {entry!r} in it.")
    return values


def check(experiment: Experiment) -> Experiment:
    """Raise an error for values that no step can use. Contradictions between values are found by the steps."""
    for name, optim in (("finetune", experiment.finetune), ("train", experiment.train)):
        if optim.schedule or name == "train":
            lookup(dict.fromkeys(SCHEDULES), optim.schedule, f"{name}.schedule")
        too_short = optim.epochs < 0 or (optim.epochs == 0 and name == "finetune")
        if too_short or optim.gradient_accumulation_steps < 1 or optim.batch_size < 0 or optim.learning_rate < 0:
            least = "epochs > 0" if name == "finetune" else "epochs >= 0"
            raise BertVisionError(
                f"[{name}] needs {least}, gradient_accumulation_steps >= 1, batch_size >= 0, learning_rate >= 0."
            )
    if not 0 < experiment.finetune.layer_decay <= 1 or experiment.train.layer_decay != 1:
        raise BertVisionError(
            "finetune.layer_decay must be above 0 and at most 1, and heads have none; got "
            f"{experiment.finetune.layer_decay:g} and train.layer_decay={experiment.train.layer_decay:g}."
        )
    lookup(dict.fromkeys(PRECISIONS), experiment.precision, "precision")
    for name, seed in (("seed", experiment.seed), ("data.split_seed", experiment.data.split_seed)):
        if not 0 <= seed < 2**32:
            raise BertVisionError(f"{name} must lie between 0 and 2**32 - 1, got {seed}.")
    epochs = experiment.fractions + experiment.head_fractions
    if not all(0 <= fraction < math.inf for fraction in epochs):
        raise BertVisionError(f"fractions must be epochs, 0 or more, got {experiment.fractions}.")
    if not 0 < experiment.data.validation_fraction < 1:
        raise BertVisionError(
            f"data.validation_fraction must lie between 0 and 1, got {experiment.data.validation_fraction}."
        )
    lookup({"": "", "balanced": ""}, experiment.data.class_weight, "data.class_weight")
    if not 0 <= experiment.span.answerability_weight < math.inf:
        raise BertVisionError(
            f"span.answerability_weight must be 0 or more, got {experiment.span.answerability_weight}."
        )
    if experiment.store.shard_megabytes <= 0:
        raise BertVisionError(
            f"store.shard_megabytes must be megabytes, more than 0, got {experiment.store.shard_megabytes}."
        )
    for name, fraction in [
        ("data.train_fraction", experiment.data.train_fraction),
        ("label_fraction", experiment.label_fraction),
    ]:
        if not 0 < fraction <= 1:
            raise BertVisionError(f"{name} must be above 0 and at most 1, got {fraction:g}.")
    return experiment
