"""From logits to scores: choose on validation, score dev, write the run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.encoders import EncoderWithHead
from bertvision.ensembles import combine
from bertvision.files import value_hash
from bertvision.pipeline.data import ExperimentData, Split, fingerprint, with_cpu_setting
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.records import Metrics, RunRecord, TrainingSeconds
from bertvision.runs import Run, is_finished, save_run
from bertvision.statistics import interval
from bertvision.training import ValidationScore
from bertvision.types import Batches, HeadShape, Predictions


@with_cpu_setting
def bert_run(data: ExperimentData, checkpoint: Checkpoint, found: dict[str, Predictions] | None = None) -> Run:
    """Score BERT itself at a fraction; `found` are its predictions, if a pass over the states has made them."""
    directory = checkpoint.directory / f"bert-{value_hash(fingerprint(data.dev))}"
    if is_finished(directory):
        return Run(directory)
    reader = EncoderWithHead(checkpoint.encoder, checkpoint.last)
    found = found or {
        name: data.predict({"bert": reader}, data.ordered(split), split, f"BERT on {name}")["bert"]
        for name, split in data.held_out.items()
    }
    parameters = sum(p.numel() for p in reader.parameters())
    seconds = TrainingSeconds(finetune=checkpoint.seconds, head=0.0)
    extra = {"parameters": parameters, "seconds": seconds, "training_loss": checkpoint.record.training_loss}
    return finish(data, checkpoint, directory, "bert", "BERT", found, extra)


def ensemble(data: ExperimentData, point_directory: Path, members: Sequence[Run], how: str) -> Run:
    """Combine runs into one more; its null threshold and the like come from validation again."""
    name = " + ".join(member.name for member in members) + f" ({how})"
    directory = point_directory / f"ensemble-{how}-{value_hash([str(member.directory.name) for member in members])}"
    if is_finished(directory):
        return Run(directory)
    found = {split: combine([m.predictions(split) for m in members], how) for split in ("validation", "dev")}
    seconds = TrainingSeconds(
        finetune=max(member.metrics.seconds.finetune for member in members),
        head=sum(member.metrics.seconds.head for member in members),
    )
    parameters = sum(member.metrics.parameters for member in members)
    record = RunRecord(
        name=name,
        kind="ensemble",
        how=how,
        fraction=max(member.record.fraction for member in members),
        members=tuple(os.path.relpath(member.directory, directory) for member in members),
        **_common(data),
    )
    metrics, outcomes = _measure(data, found, {"parameters": parameters, "seconds": seconds})
    return save_run(directory, record, metrics, found, outcomes)


def rescore(data: ExperimentData, each: Run) -> dict[str, float]:
    """Score a run's saved predictions once more."""
    task, dev, settings = data.task, data.dev, each.metrics.decoding
    found = each.predictions()
    scores = task.score(task.decode(found, dev.features, settings), dev.examples)
    return scores | task.calibration(found, dev.features, settings, dev.examples)


def validation_scores(
    data: ExperimentData, validation: Batches, models: Mapping[str, nn.Module]
) -> dict[str, ValidationScore]:
    """Predict validation with every model, and say how good each is."""
    split = data.validation
    found = data.predict(models, validation, split, "validate")
    return {name: validation_score(data, split, predictions) for name, predictions in found.items()}


def validation_score(data: ExperimentData, split: Split, predictions: Predictions) -> ValidationScore:
    """How good predictions are on validation: official score first, then loss."""
    task = data.task
    settings = task.fit_decoding(predictions, split.features, split.examples)
    score = task.score(task.decode(predictions, split.features, settings), split.examples)[task.primary]
    if task.per_token:
        return score, 0.0
    logits, labels = torch.from_numpy(predictions.logits), torch.from_numpy(split.features.labels)
    return score, -float(task.loss(logits, labels, torch.ones(len(labels), 1, dtype=torch.bool)))


def _measure(
    data: ExperimentData, found: Mapping[str, Predictions], extra: Mapping[str, Any]
) -> tuple[Metrics, np.ndarray]:
    """Choose what needs choosing on validation, then score both splits; return dev's outcomes too."""
    task, scores, outcomes = data.task, {}, np.empty((0, 0))
    settings = task.fit_decoding(found["validation"], data.validation.features, data.validation.examples)
    for name, split in data.held_out.items():  # dev comes last
        outcomes = task.outcomes(task.decode(found[name], split.features, settings), split.examples)
        scores[name] = task.compute_metrics(outcomes)
    metrics = Metrics(
        primary_metric=task.primary,
        scores=scores["dev"],
        interval=interval(task, [outcomes]),
        validation_scores=scores["validation"],
        validation_score=validation_score(data, data.validation, found["validation"]),
        decoding=settings,
        calibration=task.calibration(found["dev"], data.dev.features, settings, data.dev.examples),
        **extra,
    )
    return metrics, outcomes


def _common(data: ExperimentData) -> dict[str, Any]:
    """The fields of a record that all runs of an experiment share."""
    return {
        "task": data.task.to_dict(),
        "max_tokens": data.max_tokens,
        "source": data.source,
        "settings": data.experiment.to_dict(),
    }


def finish(
    data: ExperimentData,
    checkpoint: Checkpoint,
    directory: Path,
    kind: str,
    name: str,
    found: dict[str, Predictions],
    extra: dict[str, Any],
    *,
    weights: dict[str, Tensor] | None = None,
    shape: HeadShape | None = None,
) -> Run:
    """Score what a model predicted, and write its run."""
    record = RunRecord(
        name=name,
        kind=kind,
        fraction=checkpoint.fraction,
        encoder=data.experiment.encoder,
        encoder_path=os.path.relpath(checkpoint.directory / "encoder", directory),
        encoder_hash=checkpoint.encoder_hash,
        shape=shape or data.shape(checkpoint.encoder),
        **_common(data),
    )
    metrics, outcomes = _measure(data, found, extra)
    return save_run(directory, record, metrics, found, outcomes, weights)
