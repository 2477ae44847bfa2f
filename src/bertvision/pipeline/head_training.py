"""Train heads and their controls on the hidden states of a fine-tuned encoder."""

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from bertvision import devices, distributed
from bertvision.convex import ConvexFit, fit_models, is_convex
from bertvision.encoders import EncoderWithHead
from bertvision.errors import BertVisionError
from bertvision.files import file_lock
from bertvision.heads import (
    HeadConfig,
    LayerSelect,
    build_for_view,
    default_head,
    load_head_weights,
    required_view,
    set_training_precision,
    training_dtype,
    upgrade_state_dict,
)
from bertvision.pipeline import cache_keys
from bertvision.pipeline.data import ExperimentData, with_cpu_setting
from bertvision.pipeline.evaluation import validation_scores
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.outputs import ModelOutput
from bertvision.pipeline.planned_stages import stage_titles
from bertvision.pipeline.states import held_out_states, states
from bertvision.prediction import check_own_head
from bertvision.records import TrainingSeconds, TrainingSummary
from bertvision.run_stages import add_score, stage
from bertvision.runs import Run
from bertvision.training import STOPPED, Checkpointer, FitOptions, TrainingConfig, TrainState, ValidationScore
from bertvision.types import Batches, HeadShape, Predictions, StateView

BERT = "BERT"


@dataclass(frozen=True, kw_only=True)
class _TrainingStates:
    """The hidden states that heads are trained and validated on."""

    train: Batches
    validation: Batches
    seconds: float
    """The time to open them, which all heads share."""


@with_cpu_setting
def train_heads(
    data: ExperimentData, checkpoint: Checkpoint, kinds: Mapping[HeadConfig, str], start: Run | None = None
) -> list[ModelOutput]:
    """Train heads on one pass over the hidden states per epoch; return their outputs, after those of BERT itself.

    A head whose training diverges has no output. An interrupted training resumes from a file, which the caller removes
    after the outputs have been evaluated (`cache_keys.head_resume_file`).

    Args:
        data: The data and its configuration.
        checkpoint: The fine-tuned encoder.
        kinds: The heads to train, each with the kind of its run: "head" or "control".
        start: A run whose head initialises the heads, where the shapes of weights agree. Its classifier is not used if
            it was trained on another task.
    """
    configs = list(kinds)
    shape = data.shape(checkpoint.encoder, configs)
    view = required_view(configs, shape)
    models, trainings = _new_models(data, configs, shape, view, start)
    titles = stage_titles(checkpoint.fraction, len(kinds))
    with stage(titles.reading):
        hidden = _open_training_states(data, checkpoint, view, training_dtype(models.values()))
    resume = cache_keys.head_resume_file(data, checkpoint, configs, start)
    lock = file_lock(resume, wait=False) if distributed.is_main_process() else nullcontext()
    with stage(titles.training), lock:
        options = FitOptions(
            seed=data.experiment.seed,
            validate=partial(_validate, data, hidden.validation, kinds),
            label=f"train {len(models)} heads" if len(models) > 1 else f"train {configs[0]}",
            stage="heads",
            callbacks=data.callbacks,
        )
        checkpointer = Checkpointer(resume, resume.stem)
        train_states = fit_models(
            models, hidden.train, data.task.loss, trainings, options, checkpointer, validation=hidden.validation
        )
    trained = _best_rates(train_states, configs)
    with stage(titles.predicting):
        predictions = _predict(data, checkpoint, view, {str(c): s.model for c, s in trained.items()}, hidden.validation)
    outputs = [bert_output(data, checkpoint, predictions[BERT])]
    for config, train_state in trained.items():
        stopped = train_state.stopped == STOPPED
        directory = cache_keys.head_run(data, checkpoint, config, start)
        outputs.append(
            ModelOutput(
                name=str(config),
                kind=kinds[config],
                directory=cache_keys.stopped_run(directory) if stopped else directory,
                predictions=predictions[str(config)],
                summary=_summary(checkpoint, train_state, hidden.seconds),
                shape=shape,
                weights={key: value.cpu() for key, value in train_state.model.state_dict().items()},
                stopped=stopped,
            )
        )
    return outputs


def _validate(
    data: ExperimentData, validation: Batches, kinds: Mapping[HeadConfig, str], models: Mapping[str, nn.Module]
) -> dict[str, ValidationScore]:
    """Return the validation score of every model, and report those of heads."""
    scores = validation_scores(data, validation, models)
    default = default_head(data.task.example_kind)
    heads = {
        str(config): "default" if config == default else config.name for config, kind in kinds.items() if kind == "head"
    }
    for name, score in scores.items():
        if (spec := name.rpartition("@")[0]) in heads:
            add_score(heads[spec], score[0])
    return scores


def _open_training_states(
    data: ExperimentData, checkpoint: Checkpoint, view: StateView, dtype: torch.dtype
) -> _TrainingStates:
    began = time.perf_counter()
    validation = held_out_states(data, checkpoint, "validation", view)
    shuffled = data.shuffled(data.head_training, label_fraction=data.experiment.label_fraction)
    train = states(data, checkpoint, "train", view, shuffled, dtype)
    return _TrainingStates(train=train, validation=validation, seconds=time.perf_counter() - began)


def _predict(
    data: ExperimentData,
    checkpoint: Checkpoint,
    view: StateView,
    models: Mapping[str, nn.Module],
    validation: Batches,
) -> dict[str, dict[str, Predictions]]:
    """Predict the held-out splits with all heads and with BERT's own head, which reads the same hidden states."""
    last_layer = StateView(cross_layers=(checkpoint.encoder.num_layers - 1,))
    models = {**models, BERT: LayerSelect(checkpoint.bert_head, last_layer, view)}

    def open_batches(name: str) -> Batches:
        return validation if name == "validation" else held_out_states(data, checkpoint, name, view)

    return data.predict_held_out(models, open_batches, "heads")


def _summary(checkpoint: Checkpoint, train_state: TrainState, states_seconds: float) -> TrainingSummary:
    shared = train_state.shared_seconds + states_seconds
    is_fitted = isinstance(train_state, ConvexFit)
    return TrainingSummary(
        parameters=sum(p.numel() for p in train_state.model.parameters()),
        seconds=TrainingSeconds(finetune=checkpoint.seconds, head=train_state.seconds + shared),
        states_seconds=shared,
        best_epoch=train_state.best_epoch,
        epochs=len(train_state.validation_scores),
        validation_by_epoch=[score[0] for score in train_state.validation_scores],
        training_loss=train_state.losses[train_state.best_epoch - 1],
        learning_rate=None if is_fitted else train_state.config.learning_rate,
        strength=train_state.strength if is_fitted else None,
    )


@with_cpu_setting
def bert_output(
    data: ExperimentData, checkpoint: Checkpoint, predictions: dict[str, Predictions] | None = None
) -> ModelOutput:
    """Return the output of BERT itself: the encoder with its own head. Predictions that are given are used."""
    model = EncoderWithHead(checkpoint.encoder, checkpoint.bert_head)
    if predictions is None:
        predictions = data.predict_held_out({BERT: model}, lambda name: data.ordered(data.held_out[name]), BERT)[BERT]
    return ModelOutput(
        name=BERT,
        kind="bert",
        directory=cache_keys.bert_run(data),
        predictions=predictions,
        summary=TrainingSummary(
            parameters=sum(p.numel() for p in model.parameters()),
            seconds=TrainingSeconds(finetune=checkpoint.seconds, head=0.0),
            training_loss=checkpoint.record.training_loss,
        ),
    )


@with_cpu_setting
def outputs_at(data: ExperimentData, checkpoint: Checkpoint, runs: Sequence[Run]) -> list[ModelOutput]:
    """Return the outputs of trained heads on the hidden states of another checkpoint."""
    outputs: dict[str, ModelOutput] = {}
    for shape in dict.fromkeys(run.record.head_shape for run in runs):
        alike = {str(run.directory): run for run in runs if run.record.head_shape == shape}
        configs = {name: HeadConfig.parse(run.name) for name, run in alike.items()}
        view = required_view(configs.values(), shape)
        models = {name: build_for_view(config, shape, view) for name, config in configs.items()}
        for name, run in alike.items():
            load_head_weights(models[name], run.weights())
        label = f"{len(models)} heads" if len(models) > 1 else next(iter(alike.values())).name
        open_batches = partial(held_out_states, data, checkpoint, view=view)
        predictions = data.predict_held_out(models, open_batches, label)
        for name, run in alike.items():
            outputs[name] = ModelOutput(
                name=run.name,
                kind="evaluated",
                directory=cache_keys.evaluated_run(data, run),
                predictions=predictions[name],
                # The time of the head's own training, and of the fine-tuning of this checkpoint.
                summary=TrainingSummary(
                    parameters=run.metrics.parameters,
                    seconds=replace(run.metrics.seconds, finetune=checkpoint.seconds),
                    trained_at=run.record.fraction,
                ),
                shape=shape,
                weights=run.weights(),
            )
    return [outputs[str(run.directory)] for run in runs]


def warm_start(head: nn.Module, start: Run, task: Mapping[str, Any]) -> list[str]:
    """Load the weights of a trained head where shapes agree; return the names of weights that stay as they are.

    The classifier is not loaded if the head was trained on another task.
    """
    own = head.state_dict()
    weights = upgrade_state_dict(start.weights(), own)
    same_task = all(start.record.task.get(key) == task.get(key) for key in ("kind", "classes", "answerable"))
    loaded = {
        key: value
        for key, value in weights.items()
        if key in own and value.shape == own[key].shape and (same_task or "classifier" not in key.split("."))
    }
    head.load_state_dict(own | loaded)
    return [key for key in own if key not in loaded]


def new_head(data: ExperimentData, config: HeadConfig, shape: HeadShape, view: StateView) -> nn.Module:
    """Build a head to be trained on the states of `view`. Its initial weights do not depend on other heads."""
    devices.manual_seed(data.experiment.seed)
    head = set_training_precision(data.experiment.precision, build_for_view(config, shape, view))
    tokens = 1 if view.first_token_only else shape.max_tokens
    check_own_head(config.name, head, shape, view.num_channels, tokens)
    return head


def _new_models(
    data: ExperimentData, configs: Sequence[HeadConfig], shape: HeadShape, view: StateView, start: Run | None
) -> tuple[dict[str, nn.Module], dict[str, TrainingConfig]]:
    """Build every head once for each learning rate; return the heads and their settings by "head@rate"."""
    models, trainings = {}, {}
    rates = sorted({data.head_training.learning_rate, *data.experiment.extra_learning_rates})
    for config, rate in itertools.product(configs, rates):
        head = new_head(data, config, shape, view)
        if is_convex(head) and rate != rates[0]:
            continue  # it has no learning rate
        if start is not None:
            warm_start(head, start, data.task.to_dict())
        models[f"{config}@{rate:g}"] = head
        trainings[f"{config}@{rate:g}"] = replace(data.head_training, learning_rate=rate)
    return models, trainings


def _best_rates(train_states: Mapping[str, TrainState], configs: Sequence[HeadConfig]) -> dict[HeadConfig, TrainState]:
    """Return the state of each head that has not diverged, at its best learning rate."""
    best = {config: _best_rate(train_states, config) for config in configs}
    trained = {config: train_state for config, train_state in best.items() if train_state is not None}
    if not trained:
        raise BertVisionError("Every head diverged. A smaller train.learning_rate may help.")
    return trained


def _best_rate(train_states: Mapping[str, TrainState], config: HeadConfig) -> TrainState | None:
    """Return the state of the learning rate with the best validation score; None if every rate diverged."""
    candidates = [train_state for name, train_state in train_states.items() if name.rpartition("@")[0] == str(config)]
    candidates = [train_state for train_state in candidates if train_state.validation_scores and not train_state.failed]
    return max(candidates, key=lambda train_state: train_state.best_score, default=None)
