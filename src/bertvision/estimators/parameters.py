"""Checks of the parameters of estimators. They are made by `fit`, since scikit-learn's `__init__` only stores them."""

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from bertvision.encoders import Encoder
from bertvision.errors import BertVisionError, lookup
from bertvision.heads import HeadConfig
from bertvision.inputs import LONG_TEXTS
from bertvision.time_limits import parse_bytes, parse_seconds


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise an error unless the parameters of an estimator have the right types."""
    encoder = parameters["encoder"]
    if not isinstance(encoder, str | os.PathLike | Encoder):
        raise BertVisionError(
            f"encoder must be a name, a directory or an Encoder, got a {type(encoder).__name__}. Wrap a loaded model "
            "and its tokenizer: Encoder(model, tokenizer)."
        )
    for name in ("fraction", "validation_fraction"):
        if not _is_number(parameters[name]) and (name, parameters[name]) != ("fraction", None):
            raise BertVisionError(f"{name} must be a number such as 0.3, got {parameters[name]!r}.")
    max_tokens = parameters["max_tokens"]
    if max_tokens is not None and not (_is_integer(max_tokens) and max_tokens > 0):
        raise BertVisionError(f"max_tokens must be a whole number of 1 or more, or None, got {max_tokens!r}.")
    lookup(LONG_TEXTS, parameters.get("long_texts", "truncate"), "value of long_texts")
    if not isinstance(parameters["head"], str | HeadConfig):
        raise BertVisionError(
            f"A head is given by its name or as a HeadConfig, so that it can be saved and loaded; got "
            f"{parameters['head']!r}. Register your own module with `register_head(NAME)(CLASS)`, and give head=NAME."
        )
    settings = parameters["settings"]
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)):
        raise BertVisionError(
            f'settings must be a dictionary such as {{"finetune.learning_rate": 5e-5}}, got {settings!r}.'
        )
    if parameters["time_limit"] is not None:
        parse_seconds(parameters["time_limit"])
    for name in ("memory_limit", "disk_limit"):
        if parameters[name] is not None:
            parse_bytes(parameters[name], name)
            if parameters["time_limit"] is None:
                raise BertVisionError(f"{name} needs a time_limit: without one, everything is read and kept.")
    if parameters["time_limit"] is not None and parameters["warm_start"]:
        raise BertVisionError("time_limit and warm_start cannot be combined. After fit, fit_more(seconds) goes on.")
    if parameters["cache_dir"] is not None:
        check_path(parameters["cache_dir"], "cache_dir")


def check_path(path: Any, name: str) -> Path:
    """Return a path. Anything but a text or a path is an error."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise BertVisionError(f"{name} must be the path of a directory, got {path!r}.")
    return Path(path)


def seed(random_state: Any) -> int:
    """Return the seed that a scikit-learn `random_state` stands for."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError as error:
        raise BertVisionError(
            f"random_state must be a whole number, a numpy RandomState or None, got {random_state!r}."
        ) from error


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
