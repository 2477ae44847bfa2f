"""Reads what earlier versions wrote: run directories of format 1, and settings under their former names.

Files are never rewritten; they are upgraded when they are read. Former options of heads are in heads/legacy.py.
"""

import logging
from collections.abc import Mapping
from typing import Any

from bertvision.heads import HeadConfig
from bertvision.heads.legacy import upgrade_option

logger: logging.Logger = logging.getLogger(__name__)

RECORD_KEYS = {"backbone": "encoder", "backbone_path": "encoder_path", "weights": "encoder_hash"}
METRIC_KEYS = {
    "primary": "primary_metric",
    "score": "scores",
    "validation": "validation_scores",
    "grade": "validation_score",
    "settings": "decoding",
    "carried_from": "trained_at",
}
KINDS = {"carried": "evaluated"}

SETTINGS = {
    "backbone": "encoder",
    "through": "auxiliary_head",
    "read_at": "head_fractions",
    "try_rates": "extra_learning_rates",
    "activations": "states",
    "labels": "label_fraction",
    "shard": "data.train_fraction",
    "validation": "data.validation_fraction",
    "data.shard": "data.train_fraction",
    "data.validation": "data.validation_fraction",
    "states.type": "store.dtype",
    "states.shard": "store.shard_megabytes",
    "states.directory": "store.directory",
    **{
        f"{section}.{old}": f"{section}.{new}"
        for section in ("finetune", "train")
        for old, new in (
            ("accumulate", "gradient_accumulation_steps"),
            ("clip", "max_grad_norm"),
            ("warmup", "warmup_epochs"),
        )
    },
}
"""Former names of settings of an experiment; tables are written with dots."""


def upgrade_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment.json of a run of format 1 with the keys of format 2."""
    record = {RECORD_KEYS.get(key, key): value for key, value in values.items()}
    record["kind"] = KINDS.get(record["kind"], record["kind"])
    if record["kind"] == "ensemble":
        members, _, how = record["name"].rpartition(" (")
        record["name"] = " + ".join(map(upgrade_head, members.split(" + "))) + f" ({how}"
    else:
        record["name"] = upgrade_head(record["name"])
    if record.get("shape") is not None:
        record["shape"] = upgrade_shape(record["shape"])
    record["settings"] = upgrade_settings(record.get("settings", {}))
    for key in ("heads", "auxiliary_head"):
        if specs := record["settings"].get(key):
            upgraded = upgrade_head(specs) if isinstance(specs, str) else [upgrade_head(spec) for spec in specs]
            record["settings"][key] = upgraded
    if "exported" in record:
        record["export"] = {"directory": record["exported"], "bert_output": record["own_output"]}
        record["export"] |= {"output": record.get("output", ""), "layers_read": _layers_read(record.get("reads", {}))}
    return record


def upgrade_metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics.json of a run of format 1 with the keys of format 2."""
    metrics = {METRIC_KEYS.get(key, key): value for key, value in values.items()}
    if "seconds_apart" in metrics:
        metrics["states_seconds"] = metrics.pop("seconds_apart").get("states")
    return metrics


def upgrade_shape(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `HeadShape` that was written before version 0.2."""
    if "layers" not in values:
        return dict(values)
    pooler_output = values.get("pooled", False)
    return {
        "num_layers": values["layers"] - pooler_output,  # `layers` counted the pooler output
        "max_tokens": values["tokens"],
        "hidden_size": values["width"],
        "num_outputs": values["outputs"],
        "per_token": values["per_token"],
        "pooler_output": pooler_output,
        "bi_encoding": values.get("apart", False),
    }


def upgrade_head(spec: str) -> str:
    """Return a head's specification with the present names of options: "adapter:copies=3" -> "adapter:members=3"."""
    return spec if spec == "BERT" else str(HeadConfig.parse(spec))


def upgrade_settings(values: Mapping[str, Any], *, announce: bool = False) -> dict[str, Any]:
    """Return settings of an experiment, nested tables included, under their present names; log them if `announce`."""
    upgraded: dict[str, Any] = {}
    for path, value in _flatten(values):
        *tables, key = SETTINGS.get(path, path).split(".")
        if path in SETTINGS and announce:
            logger.info(f"The setting {path} is now called {SETTINGS[path]}.")
        table = upgraded
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value
    return upgraded


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the settings of nested tables with dotted names; an empty table has none."""
    settings = []
    for key, value in values.items():
        if isinstance(value, dict):
            settings += _flatten(value, f"{prefix}{key}.")
        else:
            settings.append((f"{prefix}{key}", value))
    return settings


def _layers_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the entries of a description of the layers that an exported head reads."""
    if "texts" not in values:
        return dict(values)
    option, encoding = upgrade_option("texts", values["texts"])
    return {key: value for key, value in values.items() if key != "texts"} | {option: encoding}
