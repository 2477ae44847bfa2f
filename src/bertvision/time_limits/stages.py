"""The work of the stages: read hidden states, fit and train heads, fine-tune. Every loop follows a clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bertvision import devices, memory
from bertvision.convex import fit_convex, fit_models
from bertvision.encoders import Encoder, TwoHeadModel
from bertvision.errors import BertVisionError
from bertvision.heads import (
    BERT_HEAD,
    DEFAULT_HEADS,
    HeadConfig,
    LayerSelect,
    default_head,
    required_view,
    select_from_view,
    training_dtype,
)
from bertvision.pipeline import cache_keys
from bertvision.pipeline.data import ExperimentData
from bertvision.pipeline.evaluation import validation_scores
from bertvision.pipeline.finetuning import Checkpoint, bert_model, frozen_encoder, load, one_task_training
from bertvision.pipeline.head_training import BERT, new_head
from bertvision.pipeline.outputs import ModelOutput
from bertvision.records import CheckpointRecord, TrainingSeconds, TrainingSummary
from bertvision.states import InMemoryStates
from bertvision.time_limits.best_model import FittedModel
from bertvision.time_limits.clock import Clock, StopAtEnd, TimedTraining
from bertvision.time_limits.rows import ResidentStates, read_split
from bertvision.training import Callback, FitOptions, StepEvent, TrainingConfig, TrainState, fit
from bertvision.types import HeadShape, StateView

WARMUP = 0.06
"""The share of training in which the learning rate rises."""
AUXILIARY_ROWS = 1000
"""Rows that an auxiliary head with a solver is fitted to, at most."""


@dataclass(frozen=True, kw_only=True)
class StageHeads:
    """The heads of all stages, and what they read."""

    convex: HeadConfig | None
    """The head of the first model. Kinds of tasks without one begin with a trained head."""
    trained: HeadConfig
    shape: HeadShape
    view: StateView

    @property
    def configs(self) -> list[HeadConfig]:
        """All heads, the trained one first."""
        return [self.trained, *([self.convex] if self.convex else [])]


def stage_heads(
    data: ExperimentData, encoder: Encoder, trained: HeadConfig | None = None, layers: str = ""
) -> StageHeads:
    """Return the heads for a kind of examples. `layers` limits those that read all layers.

    The heads of pairs read both encodings, since there is one of each kind only.
    """
    kind = data.task.example_kind
    encoding = {"encoding": "both"} if kind == "pair" else {}
    ridge = DEFAULT_HEADS[kind].get("ridge")
    convex, trained = ridge and ridge.replace(**encoding), trained or default_head(kind).replace(**encoding)
    if layers:
        convex, trained = (config and _thinner(config, layers) for config in (convex, trained))
    assert trained is not None
    configs = [config for config in (convex, trained) if config]
    shape = data.shape(encoder, configs)
    auxiliary = [data.config.auxiliary_head] if data.config.auxiliary_head.name != BERT_HEAD and not layers else []
    view = required_view([*configs, *auxiliary], shape)
    return StageHeads(convex=convex, trained=trained, shape=shape, view=view)


def _thinner(config: HeadConfig, layers: str) -> HeadConfig:
    return config.replace(layers=layers) if config.layers == "all" else config


@dataclass
class EncoderStage:
    """An encoder with the hidden states that have been read with it, and the models on them."""

    checkpoint: Checkpoint
    heads: StageHeads
    resident: ResidentStates
    validation: InMemoryStates
    models: list[FittedModel] = field(default_factory=list)
    auxiliary_weights: dict[str, Tensor] = field(default_factory=dict)
    """The weights of an auxiliary head that was fitted to the hidden states."""


def open_stage(data: ExperimentData, checkpoint: Checkpoint, heads: StageHeads) -> EncoderStage:
    """Read the validation rows with an encoder."""
    probe = new_head(data, heads.trained, heads.shape, heads.view)
    resident = ResidentStates(checkpoint, heads.view, training_dtype([probe]))
    return EncoderStage(checkpoint, heads, resident, read_split(checkpoint, data, data.validation, heads.view))


def frozen_checkpoint(data: ExperimentData, directory: Path) -> Checkpoint:
    """Return the encoder as it is loaded, with a new head of BERT's own kind."""
    if data.frozen_cache is not None and data.encoder is None:
        cached = frozen_encoder(data)
        loaded, encoder_hash = cached.loaded, cached.weights_hash
    else:
        loaded = load(data)
        encoder_hash = loaded.encoder.weights_hash()
    loaded.encoder.to(devices.device()).eval().requires_grad_(False)
    bert = bert_model(data, loaded)
    return Checkpoint(
        fraction=0.0,
        directory=directory / "0",
        encoder=bert.encoder,
        bert_head=bert.head.to(devices.device()).eval(),  # pyright: ignore[reportArgumentType]
        record=CheckpointRecord(fraction=0.0),
        encoder_hash=encoder_hash,
    )


def fit_heads(
    data: ExperimentData,
    stage: EncoderStage,
    *,
    convex_rows: int,
    epochs: float,
    clock: Clock,
    started: Mapping[str, Mapping[str, Tensor]],
    callbacks: Sequence[Callback] = (),
) -> list[FittedModel]:
    """Fit the convex head, and train the other one for so many epochs or until the clock ends.

    `started` are the weights of heads that were trained before. Those heads go on learning.
    """
    heads, models = stage.heads, []
    if heads.convex and convex_rows:
        models.append(_fit_head(data, stage, heads.convex, data.head_training, convex_rows, (), {}))
    if epochs and clock.left > 0:
        training = timed_training(data.head_training, epochs, clock)
        stop = [StopAtEnd(clock), *callbacks]
        models.append(_fit_head(data, stage, heads.trained, training, 0, stop, started))
    return models


def _fit_head(
    data: ExperimentData,
    stage: EncoderStage,
    config: HeadConfig,
    training: TrainingConfig,
    rows: int,
    callbacks: Sequence[Callback],
    started: Mapping[str, Mapping[str, Tensor]],
) -> FittedModel:
    """Fit or train one head on the rows whose states are in memory."""
    head = new_head(data, config, stage.heads.shape, stage.heads.view)
    if weights := started.get(str(config)):
        head.load_state_dict(dict(weights))
    options = FitOptions(
        seed=data.experiment.seed,
        validate=partial(validation_scores, data, stage.validation),
        label=f"train {config.name}",
        callbacks=callbacks,
    )
    state = fit_models(
        {str(config): head},
        stage.resident.batches(data, data.head_training.batch_size, rows),
        data.task.loss,
        {str(config): training},
        options,
        validation=stage.validation,
    )[str(config)]
    return fitted_model(
        data, stage, str(config), state.model, _summary(stage.checkpoint, state, stage.resident.seconds)
    )


def fitted_model(
    data: ExperimentData, stage: EncoderStage, name: str, module: nn.Module, summary: TrainingSummary
) -> FittedModel:
    """Predict the validation rows with a head."""
    number = len(stage.resident.states)
    predictions = data.predict({name: module}, stage.validation, data.validation, "validate")[name]
    kind, shape, weights = "head", stage.heads.shape, {k: v.cpu().clone() for k, v in module.state_dict().items()}
    directory = f"{cache_keys.head_label(data, HeadConfig.parse(name))}-{number}" if name != BERT else "bert"
    if name == BERT:
        kind, shape, weights = "bert", None, None
    output = ModelOutput(
        name=name,
        kind=kind,
        directory=directory,
        predictions={"validation": predictions, "dev": predictions},
        summary=summary,
        shape=shape,
        weights=weights,
    )
    return FittedModel(output=output, module=module, view=stage.heads.view, checkpoint=stage.checkpoint)


def _summary(checkpoint: Checkpoint, state: TrainState, reading: float) -> TrainingSummary:
    return TrainingSummary(
        parameters=sum(p.numel() for p in state.model.parameters()),
        seconds=TrainingSeconds(finetune=checkpoint.seconds, head=state.seconds + state.shared_seconds + reading),
        states_seconds=reading,
        best_epoch=state.best_epoch,
        epochs=len(state.validation_scores),
        validation_by_epoch=[score[0] for score in state.validation_scores],
        learning_rate=state.config.learning_rate or None,
        strength=getattr(state, "strength", None),
    )


# Fine-tuning


class Progress(Callback):
    """The steps that fine-tuning has taken."""

    def __init__(self) -> None:
        self.steps = 0
        self.epoch = 0.0
        self.loss = 0.0

    def on_step(self, event: StepEvent) -> None:
        """Record the step."""
        self.steps, self.epoch = event.step, event.epoch
        loss = next(iter(event.losses.values()), 0.0)
        self.loss = loss if event.step == 1 else 0.95 * self.loss + 0.05 * loss


def tune_encoder(
    data: ExperimentData,
    directory: Path,
    *,
    epochs: float,
    clock: Clock,
    frozen: EncoderStage,
    start: Checkpoint | None = None,
    rate_scale: float = 1.0,
    callbacks: Sequence[Callback] = (),
) -> Checkpoint:
    """Fine-tune an encoder until the clock ends, or for so many epochs; the learning rate falls to zero at the end.

    An auxiliary head with a solver is fitted to the `frozen` states first. With `start`, the training goes on from that
    checkpoint.
    """
    training = one_task_training(data, load(data), partial(_fit_auxiliary, data, frozen))
    if start is not None:
        _copy_weights(training.model, start)
    config = timed_training(data.config.finetuning, epochs, clock)
    config = replace(config, learning_rate=rate_scale * config.learning_rate)
    progress = Progress()
    options = FitOptions(
        seed=data.experiment.seed,
        scale_loss=data.experiment.precision == "float16",
        label=f"fine-tune {data.task.name}",
        stage="finetune",
        callbacks=[progress, StopAtEnd(clock), *callbacks],
    )
    state = fit({"bert": training.model}, training.batches, training.loss, {"bert": config}, options)["bert"]
    if state.failed:
        raise BertVisionError(f"Fine-tuning diverged: {state.failed}.")
    before = start.record if start else CheckpointRecord(fraction=0.0)
    record = CheckpointRecord(
        fraction=round(before.fraction + progress.epoch, 4),
        training_loss=progress.loss,
        seconds=before.seconds + state.seconds + state.shared_seconds,
        steps=before.steps + progress.steps,
    )
    return _in_memory(training.model, directory, record)


def _fit_auxiliary(data: ExperimentData, frozen: EncoderStage, auxiliary_head: nn.Module) -> None:
    """Fit the auxiliary head to the first rows whose states are in memory, or load what was fitted before."""
    rows = min(len(frozen.resident.states), AUXILIARY_ROWS)
    if not frozen.auxiliary_weights and rows:
        head = new_head(data, data.config.auxiliary_head, frozen.heads.shape, frozen.heads.view)
        batches = frozen.resident.batches(data, data.head_training.batch_size, rows)
        fit_convex(head, batches, data.task.loss, data.head_training, frozen.validation)
        frozen.auxiliary_weights = head.state_dict()
    load_into(auxiliary_head, frozen.auxiliary_weights)


def _in_memory(model: nn.Module, directory: Path, record: CheckpointRecord) -> Checkpoint:
    """Return a trained model as a frozen checkpoint."""
    model.eval().requires_grad_(False)
    bert: Any = model.bert if isinstance(model, TwoHeadModel) else model
    body = bert.encoder.model
    if hasattr(table := body.get_input_embeddings(), "merge_rows"):
        body.set_input_embeddings(table.merge_rows())
    body.requires_grad_(False)
    memory.trim_memory()
    return Checkpoint(
        fraction=record.fraction,
        directory=directory / f"{record.fraction:g}",
        encoder=bert.encoder,
        bert_head=bert.head,
        record=record,
        encoder_hash=bert.encoder.weights_hash(),
        auxiliary_head=model.auxiliary_head if isinstance(model, TwoHeadModel) else None,
    )


def _copy_weights(model: nn.Module, start: Checkpoint) -> None:
    """Load the weights of a checkpoint into a new model of the same kind."""
    bert: Any = model.bert if isinstance(model, TwoHeadModel) else model
    with bert.encoder.full_table():
        bert.encoder.load_state_dict(start.encoder.state_dict())
        table = bert.encoder.model.get_input_embeddings()
    partial_table = bert.encoder.model.get_input_embeddings()
    if hasattr(partial_table, "rows"):
        partial_table.rows.data.copy_(table.weight[partial_table.vocabulary])
    bert.head.load_state_dict(start.bert_head.state_dict())
    if isinstance(model, TwoHeadModel) and start.auxiliary_head is not None:
        model.auxiliary_head.load_state_dict(start.auxiliary_head.state_dict())


def tuned_models(data: ExperimentData, stage: EncoderStage) -> list[FittedModel]:
    """Return the heads that were fine-tuned with the encoder: BERT's own, and the auxiliary head if there is one."""
    checkpoint, heads = stage.checkpoint, stage.heads
    last = StateView(cross_layers=(checkpoint.encoder.num_layers - 1,))
    own = LayerSelect(checkpoint.bert_head, last, heads.view)
    seconds = TrainingSeconds(finetune=checkpoint.seconds, head=0.0)
    parameters = sum(p.numel() for p in checkpoint.encoder.parameters())
    summary = TrainingSummary(parameters=parameters, seconds=seconds, training_loss=checkpoint.record.training_loss)
    models = [fitted_model(data, stage, BERT, own, summary)]
    auxiliary, config = checkpoint.auxiliary_head, data.config.auxiliary_head
    if auxiliary is not None and set(range(checkpoint.encoder.num_layers)) <= set(heads.view.cross_layers):
        copy = new_head(data, config, heads.shape, heads.view)
        tuned = select_from_view(copy, heads.view)
        copied = load_into(tuned, auxiliary.state_dict())
        if copied:
            size = sum(p.numel() for p in tuned.parameters())
            models.append(fitted_model(data, stage, str(config), tuned.eval(), replace(summary, parameters=size)))
    return models


def load_into(module: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Load weights whose names may differ by the prefix of a selection of layers; return whether they fit."""
    own = module.state_dict()
    names = {name.removeprefix("head."): name for name in own}
    renamed = {names.get(name.removeprefix("head."), name): value for name, value in weights.items()}
    if set(renamed) != set(own) or any(own[name].shape != value.shape for name, value in renamed.items()):
        return False
    module.load_state_dict(renamed)
    return True


def timed_training(training: TrainingConfig, epochs: float, clock: Clock) -> TimedTraining:
    """Return settings whose learning rate follows the clock."""
    values = {item.name: getattr(training, item.name) for item in fields(TrainingConfig)}
    values |= {"epochs": epochs, "warmup_epochs": WARMUP * epochs, "patience": 0}
    return TimedTraining(**values, clock=clock)
