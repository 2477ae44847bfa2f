"""Scores: choose thresholds on validation, score dev, write the run. No other module writes runs."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from bertvision.ensembles import combine
from bertvision.inputs import calibration_errors
from bertvision.pipeline import cache_keys
from bertvision.pipeline.data import ExperimentData, Split
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.outputs import ModelOutput
from bertvision.records import Metrics, RunRecord, TrainingSeconds, TrainingSummary
from bertvision.runs import Run, is_finished, save_run
from bertvision.statistics import interval
from bertvision.training import ValidationScore
from bertvision.types import Batches, Predictions

METHOD = "mean"
"""How the predictions of the heads of an ensemble are combined."""
MAX_MEMBERS = 3

Model = TypeVar("Model")


def evaluate(data: ExperimentData, checkpoint: Checkpoint, output: ModelOutput) -> Run:
    """Score what a model predicted, and write its run."""
    directory = checkpoint.directory / output.directory
    record = RunRecord(
        name=output.name,
        kind=output.kind,
        fraction=checkpoint.fraction,
        encoder=data.experiment.encoder,
        encoder_path=os.path.relpath(checkpoint.directory / "encoder", directory),
        encoder_hash=checkpoint.encoder_hash,
        shape=output.shape or data.shape(checkpoint.encoder),
        **_common_fields(data),
    )
    metrics, outcomes = _measure(data, output.predictions, output.summary)
    return save_run(directory, record, metrics, output.predictions, outcomes, output.weights)


def ensemble(data: ExperimentData, directory: Path, members: Sequence[Run], method: str) -> Run:
    """Combine the predictions of runs, tune decoding settings on validation, and write the run to `directory`."""
    directory = directory / cache_keys.ensemble_run(members, method)
    if is_finished(directory):
        return Run(directory)
    predictions = {
        split: _combine(data, [member.predictions(split) for member in members], method)
        for split in ("validation", "dev")
    }
    summary = TrainingSummary(
        parameters=sum(member.metrics.parameters for member in members),
        seconds=TrainingSeconds(
            finetune=max(member.metrics.seconds.finetune for member in members),
            head=sum(member.metrics.seconds.head for member in members),
        ),
    )
    record = RunRecord(
        name=" + ".join(member.name for member in members) + f" ({method})",
        kind="ensemble",
        how=method,
        fraction=max(member.record.fraction for member in members),
        members=tuple(os.path.relpath(member.directory, directory) for member in members),
        **_common_fields(data),
    )
    metrics, outcomes = _measure(data, predictions, summary)
    return save_run(directory, record, metrics, predictions, outcomes)


def best_combination(
    data: ExperimentData,
    models: Sequence[Model],
    predictions: Callable[[Model], Predictions],
    group: Callable[[Model], str] = lambda model: "",
) -> tuple[list[Model], ValidationScore]:
    """Return the models whose combination validation prefers, and its validation score: one model, or several.

    An ensemble begins with the preferred model, and grows by the one that makes it best, while validation improves.
    Only models of one group are combined.
    """
    validation = data.validation

    def score(members: Sequence[Model]) -> ValidationScore:
        return validation_score(data, validation, _combine(data, [predictions(model) for model in members]))

    def grow(candidates: list[Model]) -> tuple[list[Model], ValidationScore]:
        scores = [score([model]) for model in candidates]
        first = preferred(scores, len(validation.examples))
        chosen, best = [candidates[first]], scores[first]
        others = [model for model in candidates if model is not chosen[0]]
        while others and len(chosen) < MAX_MEMBERS:
            larger = [score([*chosen, model]) for model in others]
            following = preferred([best, *larger], len(validation.examples))
            if not following:
                break
            chosen, best = [*chosen, others.pop(following - 1)], larger[following - 1]
        return chosen, best

    groups = dict.fromkeys(map(group, models))
    grown = [grow([model for model in models if group(model) == name]) for name in groups]
    return grown[preferred([best for _, best in grown], len(validation.examples))]


def preferred(scores: Sequence[ValidationScore], rows: int) -> int:
    """Return the position of the best validation score, the first of equal ones.

    Scores that are less than a standard error below the highest cannot be told from it, so their losses decide.
    """
    highest = max(score for score, _ in scores)
    share = min(max(highest / 100, 0.0), 1.0)
    error = 100 * math.sqrt(share * (1 - share) / max(1, rows))
    close = [number for number, (score, _) in enumerate(scores) if score >= highest - error]
    if all(scores[number][1] == 0 for number in close):  # kinds of tasks without a loss on validation
        close = [number for number in close if scores[number][0] == highest]
    return max(close, key=lambda number: (scores[number][1], scores[number][0]))


def _combine(data: ExperimentData, predictions: Sequence[Predictions], method: str = METHOD) -> Predictions:
    """Return the predictions of a model, or of an ensemble."""
    if len(predictions) == 1:
        return predictions[0]
    tags = data.task.example_kind == "tokens"
    return combine(predictions, method, independent=data.task.independent_outputs, tags=tags)


def rescore(data: ExperimentData, run: Run) -> dict[str, float]:
    """Score the saved predictions of a run again."""
    task, dev, settings = data.task, data.dev, run.metrics.decoding
    predictions = run.predictions()
    scores = task.score(task.decode(predictions, dev.features, settings), dev.examples)
    return scores | calibration_errors(task, predictions, dev.features, settings, dev.examples)


def validation_scores(
    data: ExperimentData, validation: Batches, models: Mapping[str, nn.Module]
) -> dict[str, ValidationScore]:
    """Return the validation score of every model."""
    split = data.validation
    predictions = data.predict(models, validation, split, "validate")
    return {name: validation_score(data, split, predictions[name]) for name in predictions}


def validation_score(data: ExperimentData, split: Split, predictions: Predictions) -> ValidationScore:
    """Return the primary metric of predictions on a split, and their negated loss."""
    task = data.task
    settings = task.fit_decoding(predictions, split.features, split.examples)
    score = task.score(task.decode(predictions, split.features, settings), split.examples)[task.primary]
    if task.per_token:
        return score, 0.0
    logits, labels = torch.from_numpy(predictions.logits), torch.from_numpy(split.features.labels)
    return score, -float(task.loss(logits, labels, torch.ones(len(labels), 1, dtype=torch.bool)))


def _measure(
    data: ExperimentData, predictions: Mapping[str, Predictions], summary: TrainingSummary
) -> tuple[Metrics, np.ndarray]:
    """Tune decoding settings on validation, and score both splits; return the metrics and the outcomes of dev."""
    task, scores, outcomes = data.task, {}, np.empty((0, 0))
    settings = task.fit_decoding(predictions["validation"], data.validation.features, data.validation.examples)
    for name, split in data.held_out.items():  # dev comes last
        outcomes = task.outcomes(task.decode(predictions[name], split.features, settings), split.examples)
        scores[name] = task.compute_metrics(outcomes)
    metrics = Metrics(
        primary_metric=task.primary,
        scores=scores["dev"],
        interval=interval(task, [outcomes]),
        validation_scores=scores["validation"],
        validation_score=validation_score(data, data.validation, predictions["validation"]),
        decoding=settings,
        calibration=calibration_errors(task, predictions["dev"], data.dev.features, settings, data.dev.examples),
        **vars(summary),
    )
    return metrics, outcomes


def _common_fields(data: ExperimentData) -> dict[str, Any]:
    """Return the fields of a record that all runs of an experiment share."""
    return {
        "task": data.task.to_dict(),
        "max_tokens": data.max_tokens,
        "source": data.source,
        "settings": data.experiment.to_dict(),
    }
