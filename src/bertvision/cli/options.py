"""The flags that describe an experiment, defined once for all commands that take them."""

import fnmatch
import inspect
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo

from bertvision.errors import BertVisionError
from bertvision.stage_view import loading

if TYPE_CHECKING:
    from bertvision.pipeline.experiment import Experiment

# Flag -> (setting, type, help). A flag that is not given leaves the value of the file, or the default.
FLAGS: dict[str, tuple[str, type, str]] = {
    "task": ("task", str, "Task of `bertvision tasks`; several: a,b,c. With --train-file: a name for your task."),
    "data_dir": ("data.data_dir", str, "Directory with the official files of the task."),
    "source": (
        "data.source",
        str,
        "Source of the task: local, hub or registry (default: the first that has it).",
    ),
    "train_file": ("data.train_file", str, "Your own training file: CSV, TSV, JSONL, Parquet, SQuAD JSON or CoNLL."),
    "dev_file": ("data.dev_file", str, "Your own file to score on (default: a part of the training file)."),
    "validation_file": ("data.validation_file", str, "Your own file to choose settings on (default: a part of train)."),
    "text": ("data.text", str, "Column of the text (default: text)."),
    "text_pair": ("data.text_pair", str, "Column of the second text, if texts are pairs."),
    "label": ("data.label", str, "Column of the label (default: label); several columns of 0 and 1: a,b,c."),
    "label_separator": ("data.label_separator", str, "Text between several labels of a row, e.g. ','."),
    "kind": (
        "data.kind",
        str,
        "What the labels are: classification, multi-label, regression, tokens (entities), tokens-iob1, or auto "
        "(default: auto).",
    ),
    "skip_bad": ("data.skip_bad", bool, "Skip rows without text or label, which are an error otherwise."),
    "class_weight": ("data.class_weight", str, "balanced: weight classes inversely to their frequency."),
    "time": ("data.time", str, "Column of times: the newest rows become dev and validation (default: random rows)."),
    "groups": ("data.groups", str, "Column of groups, e.g. authors: the rows of a group stay in one split."),
    "limit": ("data.limit", int, "Train on this many rows drawn at random (default: all)."),
    "limit_dev": ("data.limit_dev", int, "Score this many rows drawn at random (default: all)."),
    "max_tokens": ("data.max_tokens", int, "Tokens after which texts are cut (default: depends on the task)."),
    "long_texts": (
        "data.long_texts",
        str,
        "Longer texts: truncate (with a notice), or windows: overlapping windows of max_tokens, pooled by the head.",
    ),
    "encoder": ("encoder", str, "Short name of `bertvision encoders`, Hub name, or directory (default: minilm)."),
    "fractions": ("fractions", str, "Epochs of fine-tuning after which the encoder is scored (default: by task)."),
    "heads": (
        "heads",
        str,
        "Heads to train: 'learned,adapter:size=64', 'adapter*' or all (default: depends on the task).",
    ),
    "at": (
        "head_fractions",
        str,
        "Fractions after which heads are trained (default: the smallest; entities: the largest).",
    ),
    "auxiliary_head": (
        "auxiliary_head",
        str,
        "Head that is fine-tuned together with BERT's own; bert-head: none (default: depends on the task).",
    ),
    "metric": ("metric", str, "Metric to choose by: macro_f1, balanced_accuracy, ... (default: the task's first)."),
    "frozen": ("frozen", int, "Number of lowest layers, embeddings first, that are not fine-tuned (default: 0)."),
    "seed": ("seed", int, "Seed of fine-tuning and of heads (default: 0). Results also depend on OMP_NUM_THREADS."),
    "states": ("states", str, "Where hidden states are kept: auto, memory, stream (nowhere) or store (on disk)."),
    "store_dtype": ("store.dtype", str, "Number type of stores: float32, float16, bfloat16, int8 or int4."),
    "store_dir": ("store.directory", str, "Directory of stores (default: beside the encoder)."),
}
PANELS = {"task": "Data", "encoder": "Training", "states": "Hidden states"}
"""The headings of the help, by the first flag below each."""


def experiment_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add a TOML argument, the flags of FLAGS, --preset and --set to `command(experiment, ...)`.

    A command that takes `experiments` gets all experiments of a file, each with its table [study].
    """
    own = inspect.signature(command).parameters
    added = [
        inspect.Parameter(
            "config_file",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Path | None, typer.Argument(help="Experiment file (TOML).", metavar="[FILE.toml]")],
        )
    ]
    preset_flag = Annotated[
        str | None,
        typer.Option(
            help="Published settings (`bertvision presets`); files and flags override them.", show_default=False
        ),
    ]
    added.append(inspect.Parameter("preset", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=preset_flag))
    panel = "Data"
    for name, (_, kind, text) in FLAGS.items():
        panel = PANELS.get(name, panel)
        annotation = Annotated[kind | None, typer.Option(help=text, show_default=False, rich_help_panel=panel)]
        added.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    setting = Annotated[
        list[str] | None,
        typer.Option("--set", help="Another setting, e.g. train.epochs=3.", show_default=False),
    ]
    added.append(inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=setting))

    @wraps(command)
    def wrapped(**given: Any) -> None:
        with loading():
            from bertvision.pipeline import experiment as config

        flags = {name: given.pop(name) for name in FLAGS}
        file, settings, preset = given.pop("config_file"), given.pop("settings"), given.pop("preset")
        if "experiments" in own:
            loaded = config.load_several(file, preset or "")
            command([(apply_overrides(one, flags, settings or []), study) for one, study in loaded], **given)
        else:
            command(apply_overrides(config.load(file, name=preset or ""), flags, settings or []), **given)

    rest = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for n, p in own.items() if not n.startswith("experiment")]
    arguments = [p for p in rest if any(isinstance(part, ArgumentInfo) for part in get_args(p.annotation))]
    everything = [*arguments, *added, *(p for p in rest if p not in arguments)]
    wrapped.__signature__ = inspect.Signature(everything)  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {p.name: p.annotation for p in everything}
    del wrapped.__wrapped__
    return wrapped


def apply_overrides(experiment: "Experiment", flags: dict[str, Any], settings: list[str]) -> "Experiment":
    """Return the experiment with the settings of flags and --set."""
    from bertvision.pipeline import experiment as config

    for name, value in flags.items():
        if value is None:
            continue
        key = FLAGS[name][0]
        if name in ("fractions", "at"):
            value = _numbers(value, name)
        elif name == "heads":
            value = split_specs(value)
        section, _, name = key.rpartition(".")
        experiment = config.merge(experiment, {section: {name: value}} if section else {name: value})
    return config.apply(experiment, settings)


def split_specs(text: str) -> list[str]:
    """Split a list of specifications: "learned,adapter:size=8,token_pooling=max", "adapter*", "default" or "all"."""
    from bertvision.heads import BERT_HEAD, HEADS

    specs: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        # After a comma, "token_pooling=max" and "12" belong to the head before it; a name starts the next head.
        if specs and re.match(r"[\d-]+$|[^:]*=", piece):
            specs[-1] += f",{piece}"
        elif "*" in piece or piece == "all":
            if not (names := fnmatch.filter(HEADS, "*" if piece == "all" else piece)):
                raise BertVisionError(f"No head matches {piece!r}. Known: {', '.join(sorted(HEADS))}.")
            specs += [name for name in names if name != BERT_HEAD]
        else:
            specs.append(piece)
    return specs


def _numbers(text: str, flag: str) -> list[float]:
    try:
        return sorted({float(piece) for piece in text.split(",")})
    except ValueError:
        raise BertVisionError(f"--{flag} takes numbers such as 0.1,0.3,1, got {text!r}.") from None
