"""Checks of a model directory before transformers reads it, which follows its paths and allocates its sizes."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from bertvision.errors import BertVisionError
from bertvision.files import inside, read_json

MAX_LAYERS, MAX_LABELS, MAX_SIZE = 1000, 10**5, 2**31
SPARE_PARAMETERS = 10**7  # of parts that a checkpoint may lack, such as a pooler
ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def check_directory(directory: Path) -> None:
    """Refuse files outside of the directory, and dimensions that no model has."""
    for path in directory.iterdir():
        inside(directory, path.name)
    if (directory / "adapter_config.json").exists():
        raise BertVisionError(f"{directory} holds an adapter of peft. Merge it into its model, and save that.")
    for name in ("config.json", "tokenizer_config.json", "model.safetensors.index.json"):
        values = read_json(directory / name, "configuration") if (directory / name).exists() else {}
        if not isinstance(values, dict):
            raise BertVisionError(f"{directory / name} is damaged: a JSON object was expected.")
        for key, value in _numbers(values):
            limit = MAX_LAYERS if re.search("layers?$|group", key) else MAX_LABELS if key == "num_labels" else MAX_SIZE
            least = 0 if re.search("layers?$|group|size|num_", key) else -limit
            if name == "config.json" and not least <= value <= limit:
                raise BertVisionError(f"{directory / name} is damaged: {key} is {value}, not {least} to {limit:,}.")
        for shard in values.get("weight_map", {}).values():
            inside(directory, shard)


def check_config(name: str, config: Any) -> None:
    """Refuse settings for which transformers downloads or imports more code."""
    if config._attn_implementation not in ATTENTION or getattr(config, "quantization_config", None):
        raise BertVisionError(
            f"Encoder {name!r} is quantized, or needs an attention kernel of the Hub, whose code is never loaded. "
            "Save it without `quantization_config` and `attn_implementation`."
        )


def check_size(directory: Path, model: nn.Module) -> None:
    """Refuse a model that is much larger than its weights. `model` is on the meta device, which takes no memory."""
    held = 0
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            held += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > 2 * held + SPARE_PARAMETERS:
        raise BertVisionError(f"config.json of {directory} needs {needed:,} parameters, but its weights are {held:,}.")


def _numbers(values: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers in a JSON value with the keys they belong to."""
    if isinstance(values, int | float):
        yield key, values
    for name, value in (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    ):
        yield from _numbers(value, name if isinstance(name, str) else key)
