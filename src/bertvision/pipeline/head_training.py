"""Train heads and their controls on the states of a fine-tuned backbone."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertvision import distributed
from bertvision.errors import BertVisionError
from bertvision.files import file_lock, value_hash
from bertvision.heads import (
    BERT_HEAD,
    HeadConfig,
    LayerSelect,
    build_for_view,
    load_head_weights,
    required_view,
    set_training_precision,
    training_dtype,
    upgrade_state_dict,
)
from bertvision.pipeline.data import ExperimentData, fingerprint, with_cpu_setting
from bertvision.pipeline.evaluation import bert_run, finish, validation_scores
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.states import states
from bertvision.records import TrainingSeconds
from bertvision.runs import Run, is_finished, slug
from bertvision.training import Checkpointer, FitOptions, TrainState, fit
from bertvision.types import HeadShape, StateView


@with_cpu_setting
def train_heads(data: ExperimentData, checkpoint: Checkpoint, *, start: Run | None = None) -> list[Run]:
    """Train every head and control on one pass over the states of a fraction; skip those already there.

    With `start`, heads begin with the weights of that run's head, where shapes agree; its read-out is left out if it
    answers another question.
    """
    experiment = data.experiment
    kinds = _with_controls(data.head_configs, experiment.controls)
    places = {config: checkpoint.directory / _head_directory(data, checkpoint, config, start) for config in kinds}
    missing = [config for config in kinds if not is_finished(places[config])]
    if missing:
        # Killed while the finished heads were being written: their saved state is of all of them.
        everyone = list(kinds)
        killed = distributed.broadcast_decision(_resume(data, checkpoint, everyone, start).exists())
        _train(data, checkpoint, everyone if killed else missing, kinds, places, start)
    return [Run(places[config]) for config in kinds if is_finished(places[config])]


def _train(
    data: ExperimentData,
    checkpoint: Checkpoint,
    todo: list[HeadConfig],
    kinds: Mapping[HeadConfig, str],
    places: Mapping[HeadConfig, Path],
    start: Run | None,
) -> None:
    experiment = data.experiment
    shape = data.shape(checkpoint.encoder, todo)
    view = required_view(todo, shape)
    rates = _rates(data)
    models, optims = {}, {}
    for config in todo:
        for rate in rates:
            models[f"{config}@{rate:g}"] = head = new_head(data, config, shape, view)
            if start is not None:
                warm_start(head, start, data.task.to_dict())
            optims[f"{config}@{rate:g}"] = replace(data.heads, learning_rate=rate)
    began = time.perf_counter()
    validation = states(data, checkpoint, "validation", view, data.ordered(data.validation))
    shuffled = data.shuffled(data.heads, labels=experiment.labels)
    train = states(data, checkpoint, "train", view, shuffled, training_dtype(models.values()))
    reading = time.perf_counter() - began

    resume = _resume(data, checkpoint, todo, start)
    with file_lock(resume, wait=False) if distributed.is_main_process() else nullcontext():
        train_states = fit(
            models,
            train,
            data.task.loss,
            optims,
            FitOptions(
                seed=experiment.seed,
                validate=partial(validation_scores, data, validation),
                label=f"train {len(models)} heads" if len(models) > 1 else f"train {todo[0]}",
            ),
            Checkpointer(resume, resume.stem),
        )
    chosen = {config: _best_rate(train_states, config, rates) for config in todo}
    alive = {config: train_state for config, train_state in chosen.items() if train_state is not None}
    if not alive:
        raise BertVisionError("Every head diverged; a smaller train.learning_rate may help.")
    final = {str(config): train_state.model for config, train_state in alive.items()}
    last_layer = StateView(cross_layers=(checkpoint.encoder.num_layers - 1,))
    final["bert"] = LayerSelect(checkpoint.last, last_layer, view)  # free
    dev = states(data, checkpoint, "dev", view, data.ordered(data.dev))
    batches = {"validation": validation, "dev": dev}
    found = {
        name: data.predict(final, batches[name], split, f"heads on {name}") for name, split in data.held_out.items()
    }
    bert_run(data, checkpoint, {name: each["bert"] for name, each in found.items()})
    for config, train_state in alive.items():
        own, shared = train_state.seconds, train_state.shared_seconds + reading
        extra = {
            "parameters": sum(p.numel() for p in train_state.model.parameters()),
            "seconds": TrainingSeconds(finetune=checkpoint.seconds, head=own + shared),
            "states_seconds": shared,
            "best_epoch": train_state.best_epoch,
            "epochs": len(train_state.validation_scores),
            "validation_by_epoch": [validation_score[0] for validation_score in train_state.validation_scores],
            "training_loss": train_state.losses[train_state.best_epoch - 1],
            "learning_rate": train_state.config.learning_rate,
        }
        predictions = {name: each[str(config)] for name, each in found.items()}
        weights = {key: value.cpu() for key, value in train_state.model.state_dict().items()}
        place, kind = places[config], kinds[config]
        finish(data, checkpoint, place, kind, str(config), predictions, extra, weights=weights, shape=shape)
    resume.unlink(missing_ok=True)


@with_cpu_setting
def evaluate_at(data: ExperimentData, runs: Sequence[Run], checkpoint: Checkpoint) -> list[Run]:
    """Score trained heads on the states of another point; thresholds and the like are chosen there anew."""
    dev = fingerprint(data.dev)
    places = [
        checkpoint.directory / f"{slug(run.name)}-carried-{value_hash([run.directory.name, dev])}" for run in runs
    ]
    missing = {place: run for place, run in zip(places, runs, strict=True) if not is_finished(place)}
    for shape in dict.fromkeys(run.record.head_shape for run in missing.values()):
        alike = {place: run for place, run in missing.items() if run.record.head_shape == shape}
        configs = {place: HeadConfig.parse(run.name) for place, run in alike.items()}
        view = required_view(configs.values(), shape)
        models = {place.name: build_for_view(config, shape, view) for place, config in configs.items()}
        for place, run in alike.items():
            load_head_weights(models[place.name], run.weights())
        label = f"{len(models)} heads" if len(models) > 1 else next(iter(alike.values())).name
        found = {}
        for name, split in data.held_out.items():
            batches = states(data, checkpoint, name, view, data.ordered(split))
            found[name] = data.predict(models, batches, split, f"{label} on {name}")
        for place, run in alike.items():
            # It cost what its own training cost; the states it reads now cost what their backbone did.
            seconds = replace(run.metrics.seconds, finetune=checkpoint.seconds)
            extra = {"parameters": run.metrics.parameters, "seconds": seconds, "trained_at": run.record.fraction}
            predictions = {name: each[place.name] for name, each in found.items()}
            weights = run.weights()
            finish(data, checkpoint, place, "evaluated", run.name, predictions, extra, weights=weights, shape=shape)
    return [Run(place) for place in places]


def warm_start(head: nn.Module, start: Run, task: Mapping[str, Any]) -> list[str]:
    """Lay the weights of a trained head over a fresh one; return what stays fresh: read-outs of other questions do."""
    own = head.state_dict()
    found = upgrade_state_dict(start.weights(), own)
    same = all(start.record.task.get(key) == task.get(key) for key in ("kind", "classes", "answerable"))
    taken = {
        key: value
        for key, value in found.items()
        if key in own and value.shape == own[key].shape and (same or "classifier" not in key.split("."))
    }
    head.load_state_dict(own | taken)
    return [key for key in own if key not in taken]


def new_head(data: ExperimentData, config: HeadConfig, shape: HeadShape, view: StateView) -> nn.Module:
    """Build a head to be trained, which looks at states through `view`; it starts as if alone."""
    torch.manual_seed(data.experiment.seed)
    return set_training_precision(data.experiment.precision, build_for_view(config, shape, view))


def _rates(data: ExperimentData) -> list[float]:
    return sorted({data.heads.learning_rate, *data.experiment.extra_learning_rates})


def _resume(data: ExperimentData, checkpoint: Checkpoint, configs: Sequence[HeadConfig], start: Run | None) -> Path:
    """Where the state of training exactly these heads is saved."""
    settings = {
        "heads": [str(config) for config in configs],
        "train": asdict(data.heads),
        "rates": _rates(data),
        "seed": data.experiment.seed,
        "weights": checkpoint.encoder_hash,
        "data": fingerprint(data.train, data.validation),
        "labels": data.experiment.labels,
        "start": start.directory.name if start else "",
    }
    return checkpoint.directory / f"resume-{value_hash(settings)}.safetensors"


def _best_rate(train_states: Mapping[str, TrainState], config: HeadConfig, rates: Sequence[float]) -> TrainState | None:
    """Return the student of the learning rate that validation prefers."""
    candidates = [train_states[f"{config}@{rate:g}"] for rate in rates]
    candidates = [train_state for train_state in candidates if train_state.validation_scores and not train_state.failed]
    return max(
        candidates, key=lambda train_state: train_state.validation_scores[train_state.best_epoch - 1], default=None
    )


def _with_controls(configs: Sequence[HeadConfig], controls: bool) -> dict[HeadConfig, str]:
    """Name every head to be trained, with its kind: heads as asked for, then their controls."""
    kinds = dict.fromkeys(configs, "head")
    if controls:
        retrained = HeadConfig(BERT_HEAD)
        added = [retrained, *(config.last_layer_only() for config in configs)]
        kinds |= {config: "control" for config in added if config not in kinds} | {retrained: "control"}
    # BERT's kind of head reads one layer anyway, so it is its own control.
    return {config: kind for config, kind in kinds.items() if config.name != BERT_HEAD or config.layers != "last"}


def _head_directory(data: ExperimentData, checkpoint: Checkpoint, config: HeadConfig, start: Run | None) -> str:
    experiment = data.experiment
    settings = {
        "head": str(config),
        "train": asdict(data.heads),
        "rates": experiment.extra_learning_rates,
        "seed": experiment.seed,
        "weights": checkpoint.encoder_hash,
        "dev": fingerprint(data.dev),
    }
    if experiment.labels != 1:
        settings["labels"] = experiment.labels
    if start is not None:
        settings["start"] = [start.directory.name, start.record.encoder_hash]
    return f"{slug(str(config))}-{value_hash(settings)}"
