"""Fine-tune an encoder for fractions of an epoch, on one or several tasks, and open the checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import devices, distributed, memory
from bertvision.computed_states import ComputedStates
from bertvision.convex import fit_convex, is_convex
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.encoders import (
    AUXILIARY_HEAD_FILE,
    BERT_HEAD_FILE,
    ENCODERS,
    Encoder,
    EncoderWithHead,
    LoadedEncoder,
    TwoHeadModel,
    load_encoder,
    save_encoder,
    weights_hash,
)
from bertvision.errors import BertVisionError
from bertvision.files import (
    atomic_directory,
    file_lock,
    load_tensors,
    read_json,
    require_space,
    save_tensors,
    write_json,
)
from bertvision.heads import (
    BERT_HEAD,
    BertHead,
    build_for_view,
    build_head,
    load_head_weights,
    required_view,
    set_training_precision,
    upgrade_state_dict,
)
from bertvision.pipeline import cache_keys
from bertvision.pipeline.data import ExperimentData, with_cpu_setting
from bertvision.pipeline.frozen_cache import CachedEncoder
from bertvision.pipeline.multitask import MixedBatches, MultiTaskModel
from bertvision.pipeline.planned_stages import finetuning_title
from bertvision.records import CheckpointRecord
from bertvision.run_stages import add_note, stage
from bertvision.runs import has_weights
from bertvision.shared_encoders import load_bert_head
from bertvision.states import TokenBatches
from bertvision.training import STOPPED, Checkpointer, FitOptions, FractionRecord, Loss, fit
from bertvision.types import Batches, StateView
from bertvision.windowed_encoders import in_windows

SavedModel = EncoderWithHead | TwoHeadModel
FitAuxiliary = Callable[[nn.Module], None]
"""Fits an auxiliary head, in place."""


@dataclass(frozen=True)
class CheckpointSet:
    """The checkpoints of a fine-tuning: a directory with one encoder per fraction."""

    directory: Path
    fractions: list[float]
    stopped: bool = False
    """Whether a callback stopped the fine-tuning. The last fraction is then the one that was reached."""

    def encoder(self, fraction: float) -> Path:
        """Return the directory of the encoder of a fraction."""
        return self.directory / f"{fraction:g}" / "encoder"

    def is_complete(self, fraction: float) -> bool:
        """Whether the checkpoint of a fraction has been saved."""
        return (self.encoder(fraction) / "checkpoint.json").is_file()

    def record(self, fraction: float) -> CheckpointRecord:
        """Read how the checkpoint of a fraction was reached."""
        path = self.encoder(fraction) / "checkpoint.json"
        return CheckpointRecord.from_dict(read_json(path, "fine-tuning checkpoint"), str(path))


@dataclass
class Checkpoint:
    """A fine-tuned encoder in memory, frozen, with BERT's own head."""

    fraction: float
    directory: Path
    encoder: Encoder
    bert_head: BertHead
    record: CheckpointRecord
    encoder_hash: str
    """SHA-256 of the weights of the encoder."""
    auxiliary_head: nn.Module | None = None
    """The auxiliary head of fine-tuning, as it was at this fraction."""

    @property
    def seconds(self) -> float:
        """Training time up to this checkpoint."""
        return self.record.seconds

    def stream(self, tokens: TokenBatches, view: StateView) -> ComputedStates:
        """Return the hidden states of `tokens`, which are computed when they are read."""
        pooler = self.bert_head.pooler_output if view.pooler_output else None
        return ComputedStates(self.encoder, tokens, view, pool=pooler, device=devices.device())


@dataclass(frozen=True, kw_only=True)
class EncoderTraining:
    """A model to be fine-tuned, its batches and its loss."""

    model: nn.Module
    batches: Batches
    loss: Loss
    saved_models: Sequence[SavedModel]
    """What the checkpoint of each task consists of. Their weights are those of `model`."""


def finetune(data: ExperimentData, root: Path) -> CheckpointSet:
    """Fine-tune an encoder on one task; save it at every fraction of the experiment. Saved fractions are reused."""
    if data.experiment.checkpoints_given:
        return _import_checkpoints(data, root)
    return finetune_tasks([data], root)[0]


def finetune_tasks(members: Sequence[ExperimentData], root: Path) -> list[CheckpointSet]:
    """Fine-tune one encoder on the tasks of all members; save it at every fraction of an epoch over all examples."""
    with stage(finetuning_title(members[0].experiment, len(members))) if _trains(members) else nullcontext():
        return _finetune_tasks(members, root)


def _trains(members: Sequence[ExperimentData]) -> bool:
    return max(members[0].experiment.fractions) > 0


def _finetune_tasks(members: Sequence[ExperimentData], root: Path) -> list[CheckpointSet]:
    first = members[0]
    fractions = first.experiment.fractions
    if len(members) == 1 and fractions == [0.0] and first.frozen_cache is not None and _has_public_weights(first):
        return [_frozen_checkpoint(first, root)]
    loaded = load(first)
    settings = cache_keys.finetuning_settings(members, weights_hash(loaded.encoder))
    checkpoint_sets = [
        CheckpointSet(cache_keys.finetuning_directory(root, member, settings), fractions) for member in members
    ]
    missing = [
        fraction
        for fraction in fractions
        if not distributed.broadcast_decision(all(saved.is_complete(fraction) for saved in checkpoint_sets))
    ]
    if missing:
        reached = _finetune_missing(members, loaded, checkpoint_sets, missing, settings)
        del loaded
        memory.trim_memory()
        if reached is not None:
            fractions = sorted({fraction for fraction in fractions if fraction < reached} | {reached})
            return [CheckpointSet(saved.directory, fractions, stopped=True) for saved in checkpoint_sets]
    elif _trains(members):
        add_note("found on disk")
    return checkpoint_sets


def _finetune_missing(
    members: Sequence[ExperimentData],
    loaded: LoadedEncoder,
    checkpoint_sets: Sequence[CheckpointSet],
    missing: Sequence[float],
    settings: Mapping[str, Any],
) -> float | None:
    """Fine-tune an encoder and save the checkpoints of all tasks at the missing fractions.

    Returns:
        The fraction that was reached, if a callback stopped the fine-tuning; else None.
    """
    first = members[0]
    if max(missing) > 0:
        size = sum(tensor.numel() * tensor.element_size() for tensor in loaded.encoder.parameters())
        require_space(checkpoint_sets[0].directory, size * len(missing) * len(members), "Saving the fine-tuned encoder")
    loaded.encoder.freeze(first.experiment.frozen)
    training = one_task_training(first, loaded) if len(members) == 1 else _several_tasks(members, loaded)

    saved_fractions: list[float] = []

    def save(record: FractionRecord | None) -> None:
        reached = CheckpointRecord.from_dict(asdict(record)) if record else CheckpointRecord(fraction=0.0)
        saved_fractions.append(reached.fraction)
        for member, saved, model in zip(members, checkpoint_sets, training.saved_models, strict=True):
            if distributed.is_main_process():
                write_json(saved.directory / "settings.json", settings)
                save_checkpoint(member, saved, model, reached)

    if max(missing) == 0:
        save(None)
        distributed.barrier()
        return None
    names = ", ".join(member.task.name for member in members)
    options = FitOptions(
        seed=first.experiment.seed,
        fractions=missing,
        on_fraction=save,
        scale_loss=first.experiment.precision == "float16",
        label=f"fine-tune {names}",
        stage="finetune",
        callbacks=first.callbacks,
    )
    stopped = _train_encoder(first, training, options, checkpoint_sets[0].directory)
    return saved_fractions[-1] if stopped else None


def one_task_training(
    data: ExperimentData, loaded: LoadedEncoder, fit_auxiliary: FitAuxiliary | None = None
) -> EncoderTraining:
    """Return the training of BERT, with an auxiliary head unless the experiment has none.

    An auxiliary head with a solver is fitted to the frozen encoder first, by `fit_auxiliary` or to all training rows.
    """
    model: SavedModel = new_bert(data, loaded)
    config = data.config
    if config.auxiliary_head.name != BERT_HEAD:
        auxiliary_head = build_head(config.auxiliary_head, data.shape(model.encoder))
        auxiliary_head = set_training_precision(data.experiment.precision, auxiliary_head)
        lr_scale = config.head_training.learning_rate / config.finetuning.learning_rate
        if is_convex(auxiliary_head):
            (fit_auxiliary or partial(_fit_to_frozen_states, data, model.encoder))(auxiliary_head)
            lr_scale = 1.0  # it is at its optimum
        model = TwoHeadModel(model, auxiliary_head, lr_scale)
    return EncoderTraining(
        model=model, batches=data.shuffled(config.finetuning), loss=data.task.loss, saved_models=[model]
    )


def _fit_to_frozen_states(data: ExperimentData, encoder: Encoder, auxiliary_head: nn.Module) -> None:
    """Fit a head with a solver to the hidden states of the encoder as it is."""
    encoder.to(devices.device()).eval()
    shape = data.shape(encoder)
    view = required_view([data.config.auxiliary_head], shape)
    train, validation = (
        ComputedStates(encoder, data.ordered(split), view, device=devices.device())
        for split in (data.train, data.validation)
    )
    fitted = build_for_view(data.config.auxiliary_head, shape, view)
    fit_convex(fitted, train, data.task.loss, data.head_training, validation)
    auxiliary_head.load_state_dict(fitted.state_dict())


def _several_tasks(members: Sequence[ExperimentData], loaded: LoadedEncoder) -> EncoderTraining:
    """Return the training of one encoder with a head for each task."""
    berts = [new_bert(member, loaded) for member in members]
    model = MultiTaskModel(loaded.encoder, [bert.head for bert in berts])
    parts = [member.shuffled(member.config.finetuning) for member in members]

    def loss(*batch: Tensor) -> Tensor:
        return members[model.current_task].task.loss(*batch)

    batches = MixedBatches(parts, members[0].experiment.seed)
    return EncoderTraining(model=model, batches=batches, loss=loss, saved_models=berts)


def _train_encoder(data: ExperimentData, training: EncoderTraining, options: FitOptions, directory: Path) -> bool:
    """Train a model; return whether a callback stopped it. A training that was interrupted or stopped resumes."""
    config = replace(data.config.finetuning, epochs=max(data.experiment.fractions))
    if config.schedule == "constant":
        config = replace(config, epochs=max(options.fractions))
    resume = directory / "resume.safetensors"
    lock = file_lock(resume, wait=False) if distributed.is_main_process() else nullcontext()
    with lock, use_cpu_optimizations(data.experiment.cpu_optimizations):
        train_states = fit(
            {"bert": training.model},
            training.batches,
            training.loss,
            {"bert": config},
            options,
            Checkpointer(resume, directory.name),
        )
    distributed.barrier()
    stopped = train_states["bert"].stopped == STOPPED
    if not stopped:
        resume.unlink(missing_ok=True)
    if failed := train_states["bert"].failed:
        raise BertVisionError(f"Fine-tuning diverged: {failed}.")
    return stopped


def _frozen_checkpoint(data: ExperimentData, root: Path) -> CheckpointSet:
    """Return the checkpoint of an encoder that is not fine-tuned, with the encoder from the cache."""
    cached = frozen_encoder(data)
    settings = cache_keys.finetuning_settings([data], cached.weights_hash)
    checkpoints = CheckpointSet(cache_keys.finetuning_directory(root, data, settings), [0.0])
    if distributed.is_main_process() and not checkpoints.is_complete(0.0):
        write_json(checkpoints.directory / "settings.json", settings)
        save_checkpoint(data, checkpoints, bert_model(data, cached.loaded), CheckpointRecord(fraction=0.0))
    distributed.barrier()
    return checkpoints


def frozen_encoder(data: ExperimentData) -> CachedEncoder:
    """Return the encoder of an experiment from the cache, with the windows of its task. It must not be changed."""
    assert data.frozen_cache is not None
    key = (data.experiment.encoder, data.experiment.precision, data.experiment.cpu_optimizations, devices.device())

    def load_to_device() -> LoadedEncoder:
        loaded = _load_plain(data)
        loaded.encoder.to(devices.device())
        return loaded

    cached = data.frozen_cache.encoder(key, load_to_device)
    return replace(cached, loaded=_with_task_windows(cached.loaded, data))


def _import_checkpoints(data: ExperimentData, root: Path) -> CheckpointSet:
    """Copy checkpoints that were fine-tuned elsewhere. Their training time is not known."""
    settings = cache_keys.given_checkpoint_settings(data)
    with stage(finetuning_title(data.experiment)):
        return _copy_checkpoints(data, root, settings)


def _copy_checkpoints(data: ExperimentData, root: Path, settings: Mapping[str, Any]) -> CheckpointSet:
    directory = cache_keys.given_checkpoint_directory(root, data, settings)
    checkpoints = CheckpointSet(directory, data.experiment.fractions)
    for fraction in checkpoints.fractions:
        if distributed.is_main_process() and not checkpoints.is_complete(fraction):
            write_json(directory / "settings.json", settings)
            bert = new_bert(data, load(data, data.experiment.encoder_at(fraction)))
            save_checkpoint(data, checkpoints, bert, CheckpointRecord(fraction=fraction))
    distributed.barrier()
    return checkpoints


def load(data: ExperimentData, name: str = "") -> LoadedEncoder:
    """Load the encoder that an experiment starts from, or the one called `name`, with the windows of the task."""
    return _with_task_windows(_load_plain(data, name), data)


def _with_task_windows(loaded: LoadedEncoder, data: ExperimentData) -> LoadedEncoder:
    """Return the encoder with the windows of the task, if the task has windows."""
    return replace(loaded, encoder=in_windows(loaded.encoder, data.task))


@with_cpu_setting
def _load_plain(data: ExperimentData, name: str = "") -> LoadedEncoder:
    devices.check_precision(data.experiment.precision)
    return load_encoder(name or data.encoder or data.experiment.encoder, data.experiment.precision)


@with_cpu_setting
def new_bert(data: ExperimentData, loaded: LoadedEncoder | None = None) -> EncoderWithHead:
    """Return the encoder with BERT's own head, as fine-tuning starts."""
    loaded = loaded or load(data)
    loaded.encoder.restrict_vocabulary(data.vocabulary())
    return bert_model(data, loaded)


def bert_model(data: ExperimentData, loaded: LoadedEncoder) -> EncoderWithHead:
    """Return an encoder with a new head of BERT's own kind, initialised with the weights of the checkpoint."""
    devices.manual_seed(data.experiment.seed)
    span = data.experiment.span
    head = BertHead(data.shape(loaded.encoder), dropout=loaded.dropout, end_given_start=span.end_given_start)
    if loaded.last:
        _load_matching_weights(head, loaded.last)
    return EncoderWithHead(loaded.encoder, head)


def _load_matching_weights(head: BertHead, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of a checkpoint into a head where their shapes agree.

    The classifier of a checkpoint without the logit of "no answer" is loaded with zeros in its place.
    """
    own = head.state_dict()
    weights = upgrade_state_dict(weights, own)
    if head.shape.per_token and head.shape.num_outputs == 3:
        weights = {
            key: torch.cat([value, torch.zeros_like(value[:1])])
            if key in ("classifier.weight", "classifier.bias") and len(value) == 2
            else value
            for key, value in weights.items()
        }
    head.load_state_dict(own | {k: v for k, v in weights.items() if k in own and v.shape == own[k].shape})


def save_checkpoint(
    data: ExperimentData, checkpoints: CheckpointSet, model: SavedModel, record: CheckpointRecord
) -> None:
    """Save the encoder of a fraction. The file that marks it as complete is written last."""
    with atomic_directory(checkpoints.encoder(record.fraction)) as directory:
        bert = model.bert if isinstance(model, TwoHeadModel) else model
        if record.fraction == 0 and _has_public_weights(data):
            bert.encoder.model.config.save_pretrained(directory)
            data.tokenizer.save_pretrained(directory)
            save_tensors(directory / BERT_HEAD_FILE, bert.head.state_dict())
        else:
            save_encoder(directory, bert, data.tokenizer)
        if isinstance(model, TwoHeadModel):
            save_tensors(directory / AUXILIARY_HEAD_FILE, model.auxiliary_head.state_dict())
        write_json(directory / "checkpoint.json", record.to_dict())


def _has_public_weights(data: ExperimentData) -> bool:
    """Whether the encoder that fine-tuning starts from can be loaded again by its name, so that no copy is needed."""
    name = data.experiment.encoder
    entry = ENCODERS.get(name)
    return data.encoder is None and not Path(name).is_dir() and not (entry and entry.factory)


def open_checkpoint(data: ExperimentData, checkpoints: CheckpointSet, fraction: float) -> Checkpoint:
    """Load the encoder of a fraction, frozen."""
    directory, device = checkpoints.encoder(fraction), devices.device()
    cached = None
    if not has_weights(directory) and data.frozen_cache is not None:
        cached = frozen_encoder(data)
    loaded = cached.loaded if cached else load(data, str(directory) if has_weights(directory) else "")
    bert_head = load_bert_head(data.shape(loaded.encoder), directory / BERT_HEAD_FILE)
    encoder = loaded.encoder.to(device).eval().requires_grad_(False)
    auxiliary_head = None
    if (directory / AUXILIARY_HEAD_FILE).is_file():
        auxiliary_head = build_head(data.config.auxiliary_head, data.shape(encoder))
        load_head_weights(auxiliary_head, load_tensors(directory / AUXILIARY_HEAD_FILE, "head")[0])
        auxiliary_head = auxiliary_head.to(device).eval()
    return Checkpoint(
        fraction=fraction,
        directory=directory.parent,
        encoder=encoder,
        bert_head=bert_head.to(device).eval(),
        record=checkpoints.record(fraction),
        encoder_hash=cached.weights_hash if cached else weights_hash(encoder),
        auxiliary_head=auxiliary_head,
    )
