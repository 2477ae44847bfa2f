"""The flags that name an experiment, defined once for every command that takes them."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo

from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.lab.experiment import Experiment

# Flag -> (setting, type, help). A flag left out leaves the setting as the file or the default has it.
FLAGS: dict[str, tuple[str, type, str]] = {
    "task": ("task", str, "Task of `bertvision tasks`; with --train-file, a name for your own."),
    "encoder": ("encoder", str, "Alias of `bertvision encoders`, Hub name, or directory."),
    "fractions": ("fractions", str, "Epochs of fine-tuning to save and score, e.g. 0,0.3,1."),
    "auxiliary_head": (
        "auxiliary_head",
        str,
        "Head that fine-tuning goes through beside BERT's own; last: BERT's own alone.",
    ),
    "frozen": ("frozen", int, "Lowest layers, embeddings first, that fine-tuning leaves as they are."),
    "at": ("head_fractions", str, "Fractions at which heads are trained, e.g. 0.3."),
    "heads": ("heads", str, "Heads to train, e.g. 'learned,adapter:size=64,token_pooling=max', 'adapter*' or all."),
    "states": ("states", str, "Where hidden states come from: auto, memory, stream or store."),
    "store_dtype": ("store.dtype", str, "How stores hold them: float32, float16, bfloat16, int8 or int4."),
    "store_dir": ("store.directory", str, "Where stores are, if not with the backbone they were made from."),
    "seed": ("seed", int, "Seed of fine-tuning and of heads."),
    "limit": ("data.limit", int, "Train on this many rows drawn at random (0: all)."),
    "limit_dev": ("data.limit_dev", int, "Score this many rows drawn at random (0: all)."),
    "max_tokens": ("data.max_tokens", int, "Longest input (0: the task's)."),
    "data_dir": ("data.data_dir", str, "Directory with the task's official files."),
    "source": ("data.source", str, "local, hub or registry; else the first that has the task."),
    "train_file": ("data.train_file", str, "Your own training file: CSV, TSV, JSONL, Parquet or SQuAD JSON."),
    "dev_file": ("data.dev_file", str, "Your own file to score; else a part of train."),
    "validation_file": ("data.validation_file", str, "Your own file to choose on; else a part of train."),
    "text": ("data.text", str, "Column of the text."),
    "text_pair": ("data.text_pair", str, "Column of the second text of a pair."),
    "label": ("data.label", str, "Column of the label."),
    "kind": ("data.kind", str, "classification, regression or auto."),
}


def experiment_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(experiment, ...)` a TOML argument, every flag of FLAGS, and --set.

    A command that takes `experiments` instead gets all of a file that holds several, each with its table of [study].
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
    published = Annotated[
        str | None,
        typer.Option(help="Published settings (`bertvision presets`), under all others.", show_default=False),
    ]
    added.append(inspect.Parameter("preset", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=published))
    for name, (_, kind, text) in FLAGS.items():
        annotation = Annotated[kind | None, typer.Option(help=text, show_default=False)]
        added.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    setting = Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, e.g. train.epochs=3.", show_default=False)
    ]
    added.append(inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=setting))

    @wraps(command)
    def wrapped(**given: Any) -> None:
        from bertvision.lab import experiment as config

        flags = {name: given.pop(name) for name in FLAGS}
        file, settings, preset = given.pop("config_file"), given.pop("settings"), given.pop("preset")
        if "experiments" in own:
            several = config.load_several(file, preset or "")
            command([(apply_overrides(each, flags, settings or []), study) for each, study in several], **given)
        else:
            command(apply_overrides(config.load(file, name=preset or ""), flags, settings or []), **given)

    rest = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for n, p in own.items() if not n.startswith("experiment")]
    words = [p for p in rest if any(isinstance(each, ArgumentInfo) for each in get_args(p.annotation))]
    everything = [*words, *added, *(p for p in rest if p not in words)]
    wrapped.__signature__ = inspect.Signature(everything)  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {p.name: p.annotation for p in everything}
    del wrapped.__wrapped__
    return wrapped


def apply_overrides(experiment: "Experiment", flags: dict[str, Any], settings: list[str]) -> "Experiment":
    """Lay flags and --set over an experiment."""
    from bertvision import heads
    from bertvision.lab import experiment as config

    for name, value in flags.items():
        if value is None:
            continue
        key = FLAGS[name][0]
        if name in ("fractions", "at"):
            value = _numbers(value, name)
        elif name == "heads":
            value = heads.split_specs(value)
        section, _, name = key.rpartition(".")
        experiment = config.merge(experiment, {section: {name: value}} if section else {name: value})
    return config.apply(experiment, settings)


def _numbers(text: str, flag: str) -> list[float]:
    try:
        return sorted({float(piece) for piece in text.split(",")})
    except ValueError:
        raise BertVisionError(f"--{flag} takes numbers such as 0.1,0.3,1, got {text!r}.") from None
