"""From logits to scores: choose on validation, score dev, write the run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.backbones import Reader
from bertvision.ensemble import combine
from bertvision.files import read_json, value_hash
from bertvision.pipeline.finetuning import Point
from bertvision.pipeline.prepared import Prepared, Split, fingerprint
from bertvision.runs import Run, is_finished, save_run
from bertvision.statistics import interval
from bertvision.training import Grade
from bertvision.types import Batches, Predictions, Shape


def bert_run(prepared: Prepared, point: Point, found: dict[str, Predictions] | None = None) -> Run:
    """Score BERT itself at a fraction; `found` are its predictions, if a pass over the states has made them."""
    directory = point.directory / f"bert-{value_hash(fingerprint(prepared.dev))}"
    if is_finished(directory):
        return Run(directory)
    reader = Reader(point.backbone, point.last)
    found = found or {
        name: prepared.predict({"bert": reader}, prepared.ordered(split), split, f"BERT on {name}")["bert"]
        for name, split in prepared.held_out.items()
    }
    record = read_json(point.directory / "backbone" / "point.json", "fine-tuned backbone")
    parameters = sum(p.numel() for p in reader.parameters())
    seconds = {"finetune": point.seconds, "head": 0.0, "total": point.seconds}
    extra = {"parameters": parameters, "seconds": seconds, "training_loss": record["training_loss"]}
    return finish(prepared, point, directory, "bert", "BERT", found, extra)


def ensemble(prepared: Prepared, point_directory: Path, members: Sequence[Run], how: str) -> Run:
    """Combine runs into one more; its null threshold and the like come from validation again."""
    name = " + ".join(member.name for member in members) + f" ({how})"
    directory = point_directory / f"ensemble-{how}-{value_hash([str(member.directory.name) for member in members])}"
    if is_finished(directory):
        return Run(directory)
    found = {split: combine([m.predictions(split) for m in members], how) for split in ("validation", "dev")}
    seconds = {
        "finetune": max(m.metrics["seconds"]["finetune"] for m in members),
        "head": sum(m.metrics["seconds"]["head"] for m in members),
    }
    extra = {
        "parameters": sum(m.metrics["parameters"] for m in members),
        "seconds": seconds | {"total": sum(seconds.values())},
    }
    experiment = _describe(prepared, "ensemble", name) | {
        "how": how,
        "fraction": max(member.experiment["fraction"] for member in members),
        "members": [os.path.relpath(member.directory, directory) for member in members],
    }
    metrics, outcomes = _measure(prepared, found)
    return save_run(directory, experiment, metrics | extra, found, outcomes)


def rescore(prepared: Prepared, each: Run) -> dict[str, float]:
    """Score a run's saved predictions once more."""
    task, dev, settings = prepared.task, prepared.dev, each.metrics["settings"]
    found = each.predictions()
    scores = task.score(task.answers(found, dev.features, settings), dev.examples)
    return scores | task.calibration(found, dev.features, settings, dev.examples)


def grades(prepared: Prepared, validation: Batches, models: Mapping[str, nn.Module]) -> dict[str, Grade]:
    """Predict validation with every model, and say how good each is."""
    split = prepared.validation
    found = prepared.predict(models, validation, split, "validate")
    return {name: grade(prepared, split, predictions) for name, predictions in found.items()}


def grade(prepared: Prepared, split: Split, predictions: Predictions) -> Grade:
    """How good predictions are on validation: official score first, then loss."""
    task = prepared.task
    settings = task.tune(predictions, split.features, split.examples)
    score = task.score(task.answers(predictions, split.features, settings), split.examples)[task.primary]
    if task.per_token:
        return score, 0.0
    logits, labels = torch.from_numpy(predictions.logits), torch.from_numpy(split.features.labels)
    return score, -float(task.loss(logits, labels, torch.ones(len(labels), 1, dtype=torch.bool)))


def _measure(prepared: Prepared, found: Mapping[str, Predictions]) -> tuple[dict[str, Any], np.ndarray]:
    """Choose what needs choosing on validation, then score both splits; return dev's outcomes too."""
    task, scores, outcomes = prepared.task, {}, np.empty((0, 0))
    settings = task.tune(found["validation"], prepared.validation.features, prepared.validation.examples)
    for name, split in prepared.held_out.items():  # dev comes last
        outcomes = task.outcomes(task.answers(found[name], split.features, settings), split.examples)
        scores[name] = task.summarize(outcomes)
    metrics = {
        "primary": task.primary,
        "score": scores["dev"],
        "interval": list(interval(task, [outcomes])),
        "validation": scores["validation"],
        "grade": list(grade(prepared, prepared.validation, found["validation"])),
        "settings": settings,
    }
    dev = prepared.dev
    if calibration := task.calibration(found["dev"], dev.features, settings, dev.examples):
        metrics["calibration"] = calibration
    return metrics, outcomes


def _describe(prepared: Prepared, kind: str, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "task": prepared.task.describe(),
        "max_tokens": prepared.max_tokens,
        "source": prepared.source,
        "settings": prepared.experiment.to_dict(),
    }


def finish(
    prepared: Prepared,
    point: Point,
    directory: Path,
    kind: str,
    name: str,
    found: dict[str, Predictions],
    extra: dict[str, Any],
    *,
    weights: dict[str, Tensor] | None = None,
    shape: Shape | None = None,
) -> Run:
    """Score what a model predicted, and write its run."""
    experiment = _describe(prepared, kind, name) | {
        "fraction": point.fraction,
        "backbone": prepared.experiment.backbone,
        "backbone_path": os.path.relpath(point.directory / "backbone", directory),
        "weights": point.weights,
        "shape": asdict(shape or prepared.shape(point.backbone)),
    }
    metrics, outcomes = _measure(prepared, found)
    return save_run(directory, experiment, metrics | extra, found, outcomes, weights)
