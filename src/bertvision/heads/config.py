"""How heads are written: "adapter:layers=0,6,12,size=64"."""

import fnmatch
import re
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from bertvision.errors import BertVisionError, lookup
from bertvision.heads.table import HEADS
from bertvision.heads.token_pooling import TOKEN_POOLINGS

ENCODINGS = {
    "cross": "the encoder reads the texts of a pair as one",
    "bi": "it reads each by itself",
    "both": "a head on each of these, or its copies; their mean answers",
}

MAX_MEMBERS = 100  # a misspelt number should not fill the memory

COMMON = {"token_pooling": "cls", "dropout": 0.0}
"""What every head but `last` takes beside its own options."""


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Read "adapter:layers=0,6,12,size=64" as a name and its options."""
    name, _, rest = spec.partition(":")
    known = options_of(name.strip())
    options: dict[str, Any] = {}
    # A piece without "=" continues the one before it: layers=0,6,12.
    for piece in re.findall(r"[^=,]+=[^=]*(?=,[^=,]+=|$)", rest) if rest else []:
        key, _, value = piece.strip(", ").partition("=")
        default = lookup(known, key.strip(), f"option of head {name!r}")
        options[key.strip()] = _convert(value.strip(), default, key.strip())
    if rest and not options:
        raise BertVisionError(f"Head {spec!r} is not of the form name:option=value,option=value.")
    if options.get("size", 1) < (0 if name == "adapter-pooler" else 1) or not 0 <= options.get("dropout", 0) < 1:
        raise BertVisionError(f"Head {spec!r} needs size >= 1 and dropout from 0 to less than 1.")
    if not 1 <= options.get("members", 1) <= MAX_MEMBERS:
        raise BertVisionError(f"Head {spec!r} needs copies from 1 to {MAX_MEMBERS}.")
    for pooling in options.get("token_pooling", "cls").split("+"):
        lookup(TOKEN_POOLINGS, pooling, "token_pooling")
    if lookup(ENCODINGS, options.get("encoding", "cross"), "value of encoding") and uses_bi_encoding(options):
        if options.get("token_pooling", known["token_pooling"]) == "cls":
            raise BertVisionError(f"Head {spec!r} would see one text only; with texts apart, name a gather, e.g. max.")
        if options.get("pooler_output"):
            raise BertVisionError(f"Head {spec!r} wants BERT's pooled [CLS], which is of texts that are read together.")
    return name.strip(), options


def uses_bi_encoding(options: Mapping[str, Any]) -> bool:
    """Tell whether a head with these options reads the texts of a pair, each by itself."""
    return options.get("encoding", "cross") != "cross"


def options_of(name: str) -> dict[str, Any]:
    """Return the options a head takes, with their defaults."""
    parameters = signature(lookup(HEADS, name, "head").build).parameters
    known = {key: value.default for key, value in list(parameters.items())[1:]}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        known.pop("o", None)
        known = COMMON | known
    return (
        known
        | {"layers": "all", "pooler_output": False, "members": 1}
        | ({} if name == "last" else {"encoding": "cross"})
    )


def _convert(text: str, default: Any, key: str) -> Any:
    """Read an option's value as the type of its default."""
    if isinstance(default, bool):
        return lookup({"true": True, "false": False, "1": True, "0": False}, text.lower(), f"value of {key}")
    try:
        return type(default)(text)
    except ValueError:
        raise BertVisionError(f"Option {key} of a head must be {type(default).__name__}, got {text!r}.") from None


def expand(text: str) -> list[str]:
    """Read "learned,adapter:size=8,token_pooling=max", "adapter*" or "all" as a list of heads."""
    specs: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        # After a comma, "token_pooling=max" and "12" go on with the head before it; a name starts the next one.
        if specs and re.match(r"[\d-]+$|[^:]*=", piece):
            specs[-1] += f",{piece}"
        elif "*" in piece or piece == "all":
            found = fnmatch.filter(HEADS, "*" if piece == "all" else piece)
            if not found:
                raise BertVisionError(f"No head is called like {piece!r}. Known: {', '.join(sorted(HEADS))}.")
            specs += [name for name in found if name != "last"]
        else:
            specs.append(piece)
    return [canonical(spec) for spec in specs]


def canonical(spec: str) -> str:
    """Write a head's specification in the one way that names it."""
    name, options = parse(spec)
    return name + "".join(
        f"{',' if i else ':'}{key}={str(value).lower() if isinstance(value, bool) else value}"
        for i, (key, value) in enumerate(sorted(options.items()))
    )


def last_layer_only(spec: str) -> str:
    """Name the control of a head: the same head, gather and size, on the last layer alone."""
    name, options = parse(spec)
    options = {key: value for key, value in options.items() if key not in ("layers", "pooler_output")}
    return canonical(name + ":" + ",".join(f"{k}={v}" for k, v in (options | {"layers": "last"}).items()))
