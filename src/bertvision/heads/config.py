"""Configurations of heads, and their specifications: "adapter:layers=0,6,12,size=64"."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from bertvision.errors import BertVisionError, lookup
from bertvision.heads import legacy
from bertvision.heads.input_spec import input_spec_of
from bertvision.heads.table import HEADS
from bertvision.heads.token_pooling import TOKEN_POOLINGS

ENCODINGS = {
    "cross": "the encoder reads both texts of a pair in one sequence",
    "bi": "the encoder reads each text of a pair separately",
    "both": "an ensemble of a cross-encoding head and a bi-encoding head",
}

BERT_HEAD, DEFAULT = "bert-head", "default"
"""The name of BERT's own kind of head, which is the control of all others; the name of the recommended head."""

MAX_SIZE, MAX_MEMBERS = 10**6, 100  # limits, so that a mistyped number is an error

OptionValue = str | int | float | bool


@dataclass(frozen=True, init=False, repr=False)
class HeadConfig:
    """A head and the options that were given for it: HeadConfig("adapter", size=32, token_pooling="max").

    Options that were not given have the defaults of `options_of(name)`. `str(config)` is the canonical specification,
    which `HeadConfig.parse` reads. Configurations are immutable and hashable.
    """

    name: str
    given: tuple[tuple[str, OptionValue], ...]
    """The options that were given, sorted by name."""

    def __init__(self, name: str, **options: Any):
        defaults = options_of(name)
        converted = {
            key: _convert(value, lookup(defaults, key, f"option of head {name!r}"), key)
            for key, value in options.items()
        }
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "given", tuple(sorted(converted.items())))
        self._check()

    @classmethod
    def parse(cls, spec: str, kind: str | None = None) -> "HeadConfig":
        """Read a specification such as "adapter:layers=0,6,12,size=64".

        With the `kind` of a task, "default" is the recommended head of that kind, and "default:size=16" a variant of
        it. Names of the previous version are accepted.
        """
        name, _, rest = spec.partition(":")
        name = legacy.HEADS.get(name.strip(), name.strip())
        # A piece without "=" continues the one before it: layers=0,6,12.
        pieces = re.findall(r"[^=,]+=[^=]*(?=,[^=,]+=|$)", rest)
        if rest and not pieces:
            raise BertVisionError(f"Head {spec!r} is not of the form name:option=value,option=value.")
        pairs = (piece.strip(", ").partition("=") for piece in pieces)
        options = dict(legacy.upgrade_option(key.strip(), value.strip()) for key, _, value in pairs)
        if name != DEFAULT:
            return cls(name, **options)
        if kind is None:
            raise BertVisionError("The head 'default' depends on the kind of task; name another head here.")
        return default_head(kind).replace(**options)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HeadConfig":
        """Return the configuration that `to_dict` described."""
        return cls(values["name"], **values.get("options", {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain JSON."""
        return {"name": self.name, "options": dict(self.given)}

    def __str__(self) -> str:
        """Return the canonical specification."""
        pairs = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in self.given]
        return f"{self.name}:{','.join(pairs)}" if pairs else self.name

    def __repr__(self) -> str:
        return f"HeadConfig.parse({str(self)!r})"

    @property
    def options(self) -> dict[str, Any]:
        """All options of the head: those that were given, and the defaults of the others."""
        return options_of(self.name) | dict(self.given)

    @property
    def layers(self) -> str:
        """The encoder layers that the head reads, as `select_layers` takes them."""
        return self.options["layers"]

    @property
    def members(self) -> int:
        """The number of independently initialised copies whose logits are averaged."""
        return self.options["members"]

    @property
    def encoding(self) -> str:
        """How the encoder reads pairs of texts: "cross", "bi" or "both"."""
        return self.options.get("encoding", "cross")

    @property
    def pooler_output(self) -> bool:
        """Whether the head also reads BERT's pooled [CLS], as one more layer."""
        return self.options["pooler_output"]

    @property
    def uses_bi_encoding(self) -> bool:
        """Whether the head reads hidden states of texts that were encoded separately."""
        return self.encoding != "cross"

    def replace(self, **options: Any) -> "HeadConfig":
        """Return a copy with some options changed."""
        return HeadConfig(self.name, **dict(self.given) | options)

    def last_layer_only(self) -> "HeadConfig":
        """Return the control of this head: the same head on the last layer alone."""
        kept = {key: value for key, value in self.given if key != "pooler_output"}
        return HeadConfig(self.name, **kept | {"layers": "last"})

    def label(self, kind: str) -> str:
        """Return the display name of the head, for tables, run directories and served models.

        It is "default" for the recommended head, "default:layers=last" for its control. `parse(label, kind)` reads it.
        """
        default = default_head(kind)
        return {default: DEFAULT, default.last_layer_only(): f"{DEFAULT}:layers=last"}.get(self, str(self))

    def builder_options(self) -> dict[str, Any]:
        """Return the given options that the builder of the head takes."""
        return {key: value for key, value in self.given if key not in WRAPPER_OPTIONS}

    def _check(self) -> None:
        options = self.options
        given: dict[str, Any] = dict(self.given)
        smallest = min(1, options_of(self.name).get("size", 1))  # 0 where the head chooses the size itself
        if not smallest <= given.get("size", 1) <= MAX_SIZE or not 0 <= given.get("dropout", 0) < 1:
            raise BertVisionError(f"Head {str(self)!r} needs size >= 1, <= {MAX_SIZE:,}; dropout >= 0, < 1.")
        if not 1 <= self.members <= MAX_MEMBERS:
            raise BertVisionError(f"Head {str(self)!r} needs members from 1 to {MAX_MEMBERS}.")
        for pooling in options.get("token_pooling", "cls").split("+"):
            lookup(TOKEN_POOLINGS, pooling, "token_pooling")
        lookup(ENCODINGS, self.encoding, "value of encoding")
        if self.uses_bi_encoding and options.get("token_pooling") == "cls":
            raise BertVisionError(
                f"Head {str(self)!r} would read the first text only, because [CLS] belongs to it in a bi-encoding. "
                "Choose another token_pooling, for example max."
            )
        if self.uses_bi_encoding and self.pooler_output:
            raise BertVisionError(
                f"Head {str(self)!r} cannot combine pooler_output, which needs a cross-encoding, with bi-encoding."
            )


WRAPPER_OPTIONS: dict[str, Any] = {"layers": "all", "pooler_output": False, "members": 1, "encoding": "cross"}
"""Options of every head, with their defaults. They are applied around the module that the head's builder returns."""

COMMON_OPTIONS: dict[str, Any] = {"token_pooling": "cls", "dropout": 0.0, "end_given_start": False}
"""Options that a builder with a catch-all parameter (`**options`) passes on to `Head`, with their defaults."""


def options_of(name: str) -> dict[str, Any]:
    """Return the options of a head, with their defaults."""
    build = lookup(HEADS, name, "head").build
    parameters, spec = list(signature(build).parameters.values())[1:], input_spec_of(build)
    passes_on = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    named = {option.name: option.default for option in parameters if option.kind is not Parameter.VAR_KEYWORD}
    options = (COMMON_OPTIONS if passes_on else {}) | named | WRAPPER_OPTIONS
    options |= {"layers": spec.layers, "encoding": spec.encoding}
    if name == BERT_HEAD:
        del options["encoding"]  # it reads [CLS], which belongs to the first text in a bi-encoding
    return options


def _convert(value: Any, default: Any, key: str) -> OptionValue:
    """Return an option's value in the type of its default."""
    text = str(value)
    if isinstance(default, bool):
        return lookup({"true": True, "false": False, "1": True, "0": False}, text.lower(), f"value of {key}")
    try:
        return type(default)(text)
    except ValueError:
        raise BertVisionError(f"Option {key} of a head must be {type(default).__name__}, got {text!r}.") from None


def resolve_heads(specs: Sequence[str], kind: str) -> list[HeadConfig]:
    """Return the heads that these specifications name for a kind of task; its default heads if there are none."""
    return list(dict.fromkeys(HeadConfig.parse(spec, kind) for spec in specs)) or list(DEFAULT_HEADS[kind].values())


_ALIGNED = "max+compare+align"
DEFAULT_HEADS = {
    "span": {DEFAULT: HeadConfig("adapter-skip")},
    "tokens": {DEFAULT: HeadConfig("adapter-skip")},
    "pair": {
        DEFAULT: HeadConfig("adapter", encoding="bi", layers="every2", members=3, size=32, token_pooling=_ALIGNED),
        "cross": HeadConfig("adapter", layers="every2", members=3, size=32, token_pooling=_ALIGNED),
        "ridge": HeadConfig("ridge", encoding="bi", layers="every2", token_pooling="compare"),
        "ridge-cross": HeadConfig("ridge", layers="every2", token_pooling="compare"),
    },
    "text": {
        DEFAULT: HeadConfig("adapter", members=3, size=32, token_pooling="max"),
        "ridge": HeadConfig("ridge"),
        "logistic": HeadConfig("logistic", layers="last"),
    },
}
"""The heads trained when none are named, by the kind of task (docs/decisions/0020, 0023, 0024, 0043, 0045)."""


def default_head(kind: str) -> HeadConfig:
    """Return the recommended head of a kind of task."""
    return lookup(DEFAULT_HEADS, kind, "kind of task")[DEFAULT]


DEFAULT_LEARNING_RATES = {"span": 1e-3, "tokens": 1e-3, "pair": 2e-3, "text": 2e-3}
"""The learning rate of heads when none is given, by the kind of task."""

AUXILIARY_HEADS = {
    "span": HeadConfig(BERT_HEAD),
    "tokens": HeadConfig("adapter-skip"),
    "pair": HeadConfig("adapter", token_pooling="max+compare"),
    "text": HeadConfig("logistic", layers="last"),
}
"""The auxiliary head of fine-tuning when none is named, by the kind of task (docs/decisions/0019, 0045)."""
