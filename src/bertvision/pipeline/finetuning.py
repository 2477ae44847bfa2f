"""Fine-tune a backbone for fractions of an epoch, and open what was saved."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bertvision import devices, distributed, memory
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.encoders import (
    AUXILIARY_HEAD_FILE,
    Encoder,
    EncoderWithHead,
    LoadedEncoder,
    TwoHeadModel,
    load_encoder,
    save_encoder,
    weights_hash,
)
from bertvision.errors import BertVisionError
from bertvision.files import atomic_directory, file_lock, load_tensors, read_json, save_tensors, value_hash, write_json
from bertvision.heads import (
    BERT_HEAD,
    BertHead,
    build_head,
    load_head_weights,
    set_training_precision,
    upgrade_state_dict,
)
from bertvision.pipeline.data import ExperimentData, fingerprint, with_cpu_setting
from bertvision.pipeline.experiment import FRACTION, Experiment, TrainingConfig
from bertvision.records import CheckpointRecord
from bertvision.runs import slug
from bertvision.states import ComputedStates, TokenBatches
from bertvision.training import Checkpointer, FitOptions, Loss, fit
from bertvision.types import Batches, StateView


@dataclass(frozen=True)
class CheckpointSet:
    """A fine-tuning: a directory with one backbone per fraction."""

    directory: Path
    fractions: list[float]

    def encoder(self, fraction: float) -> Path:
        """Where the backbone of a fraction is."""
        return self.directory / f"{fraction:g}" / "encoder"

    def record(self, fraction: float) -> CheckpointRecord:
        """Read how the checkpoint of a fraction was reached."""
        path = self.encoder(fraction) / "checkpoint.json"
        return CheckpointRecord.from_dict(read_json(path, "fine-tuning checkpoint"), str(path))


def finetune(data: ExperimentData, root: Path) -> CheckpointSet:
    """Fine-tune once and keep the backbone at every fraction asked for."""
    experiment = data.experiment
    if experiment.given:
        return _adopt(data, root)
    loaded = load(data, experiment.encoder)
    fractions = sorted(set(experiment.fractions))
    optim = replace(data.finetune, epochs=max(fractions))
    settings = {
        "task": data.task.name,
        "data": fingerprint(data.train, data.validation),
        "rows": len(data.train.examples),
        "validation_rows": len(data.validation.examples),
        "max_tokens": data.max_tokens,
        "encoder": experiment.encoder,
        "weights": weights_hash(loaded.encoder),
        # At a constant rate every fraction is a point on one curve, however long the run.
        "finetune": asdict(optim if optim.schedule == "linear" else replace(optim, epochs=0.0)),
        "seed": experiment.seed,
        "precision": experiment.precision,
        "embeddings": "of the words that occur",  # a state saved when all were trained does not fit
    }
    if experiment.auxiliary_head != BERT_HEAD:
        settings |= {"auxiliary_head": experiment.auxiliary_head, "head_rate": data.heads.learning_rate}
    if experiment.frozen:
        settings |= {"frozen": experiment.frozen}
    if not experiment.cpu_optimizations:
        settings |= {"cpu_optimizations": False}
    key = value_hash(settings)
    place = Path(root) / slug(data.task.name) / slug(Path(experiment.encoder).name) / key
    checkpoints = CheckpointSet(place, fractions)
    missing = [
        f
        for f in fractions
        if not distributed.broadcast_decision((checkpoints.encoder(f) / "checkpoint.json").is_file())
    ]
    if not missing:
        return checkpoints
    if distributed.is_main_process():
        write_json(place / "settings.json", settings)
    loaded.encoder.freeze(experiment.frozen)
    bert = new_bert(data, loaded)
    label = f"fine-tune {data.task.name}"
    model = _with_auxiliary_head(data, bert, optim)
    keep = partial(save_checkpoint, data, checkpoints, model)
    train_encoder(model, data.shuffled(optim), data.task.loss, optim, experiment, missing, keep, place, label)
    del loaded, bert, keep, model
    memory.trim_memory()
    return checkpoints


def _with_auxiliary_head(
    data: ExperimentData, bert: EncoderWithHead, optim: TrainingConfig
) -> EncoderWithHead | TwoHeadModel:
    """Return what is to be trained: BERT alone, or with a head beside its own."""
    config = data.auxiliary_head
    if config.name == BERT_HEAD:
        return bert
    auxiliary_head = set_training_precision(data.experiment.precision, build_head(config, data.shape(bert.encoder)))
    return TwoHeadModel(bert, auxiliary_head, data.heads.learning_rate / optim.learning_rate)


def train_encoder(
    model: nn.Module,
    batches: Batches,
    loss: Loss,
    optim: TrainingConfig,
    experiment: Experiment,
    missing: Sequence[float],
    keep: Callable[[float, dict[str, float]], None],
    place: Path,
    label: str,
) -> None:
    """Train a model that holds a backbone; `keep` it at every missing fraction, and what a kill needs in `place`."""
    if max(missing) == 0:
        keep(0.0, {})
        distributed.barrier()
        return
    if optim.schedule == "constant":
        optim = replace(optim, epochs=max(missing))
    resume = place / "resume.safetensors"
    lock = file_lock(resume, wait=False) if distributed.is_main_process() else nullcontext()
    with lock, use_cpu_optimizations(experiment.cpu_optimizations):
        train_state = fit(
            {"bert": model},
            batches,
            loss,
            {"bert": optim},
            FitOptions(
                seed=experiment.seed,
                fractions=missing,
                on_fraction=lambda record: keep(record.fraction, asdict(record)),
                scale_loss=experiment.precision == "float16",
                label=label,
            ),
            Checkpointer(resume, place.name),
        )["bert"]
    distributed.barrier()
    resume.unlink(missing_ok=True)
    if train_state.failed:
        raise BertVisionError(f"Fine-tuning diverged: {train_state.failed}.")


def _adopt(data: ExperimentData, root: Path) -> CheckpointSet:
    """Take checkpoints that were fine-tuned elsewhere as the points of a curve; what they cost is not known."""
    experiment = data.experiment
    settings = {
        "task": data.task.name,
        "data": fingerprint(data.train, data.validation),
        "max_tokens": data.max_tokens,
        "encoder": str(Path(experiment.encoder).absolute()),
        "precision": experiment.precision,
    }
    if not experiment.cpu_optimizations:
        settings |= {"cpu_optimizations": False}
    name = slug(experiment.encoder.replace(FRACTION, "").rstrip("/")[-40:])
    place = Path(root) / slug(data.task.name) / name / value_hash(settings)
    checkpoints = CheckpointSet(place, sorted(set(experiment.fractions)))
    for fraction in checkpoints.fractions:
        if distributed.is_main_process() and not (checkpoints.encoder(fraction) / "checkpoint.json").is_file():
            write_json(place / "settings.json", settings)
            bert = new_bert(data, load(data, experiment.encoder_at(fraction)))
            save_checkpoint(data, checkpoints, bert, fraction, {})
    distributed.barrier()
    return checkpoints


@with_cpu_setting
def load(data: ExperimentData, name: str) -> LoadedEncoder:
    """Load a backbone to compute with."""
    devices.check_precision(data.experiment.precision)
    return load_encoder(name, data.experiment.precision)


@with_cpu_setting
def new_bert(data: ExperimentData, loaded: LoadedEncoder | None = None) -> EncoderWithHead:
    """Return the backbone with BERT's own head, as fine-tuning begins with them."""
    loaded = loaded or load(data, data.experiment.encoder)
    loaded.encoder.restrict_vocabulary(data.vocabulary())
    torch.manual_seed(data.experiment.seed)
    head = BertHead(data.shape(loaded.encoder), dropout=loaded.dropout)
    if loaded.last:
        _restore_last(head, loaded.last)
    return EncoderWithHead(loaded.encoder, head)


def save_checkpoint(
    data: ExperimentData,
    checkpoints: CheckpointSet,
    model: EncoderWithHead | TwoHeadModel,
    fraction: float,
    record: dict[str, float],
) -> None:
    if not distributed.is_main_process():
        return
    with atomic_directory(checkpoints.encoder(fraction)) as directory:
        save_encoder(directory, model.bert if isinstance(model, TwoHeadModel) else model, data.tokenizer)
        if isinstance(model, TwoHeadModel):
            save_tensors(directory / AUXILIARY_HEAD_FILE, model.auxiliary_head.state_dict())
        reached = CheckpointRecord.from_dict({"fraction": fraction, **record})
        write_json(directory / "checkpoint.json", reached.to_dict())


def _restore_last(head: BertHead, found: Mapping[str, Tensor]) -> None:
    """Lay the checkpoint's weights over a fresh head, as far as their shapes agree."""
    own = head.state_dict()
    found = upgrade_state_dict(found, own)
    head.load_state_dict(own | {k: v for k, v in found.items() if k in own and v.shape == own[k].shape})


@dataclass
class Checkpoint:
    """A fine-tuned backbone in memory, with BERT's own head."""

    fraction: float
    directory: Path
    encoder: Encoder
    last: BertHead
    record: CheckpointRecord
    encoder_hash: str
    """SHA-256 of the weights of the encoder."""
    auxiliary_head: nn.Module | None = None
    """The head that fine-tuning went through beside BERT's own, as it was then."""

    @property
    def seconds(self) -> float:
        """Training time up to this checkpoint."""
        return self.record.seconds

    def stream(self, tokens: TokenBatches, view: StateView) -> ComputedStates:
        """Its hidden states over `tokens`."""
        return ComputedStates(
            self.encoder,
            tokens,
            view,
            pool=self.last.pooler_output if view.pooler_output else None,
            device=devices.device(),
        )


def open_checkpoint(data: ExperimentData, checkpoints: CheckpointSet, fraction: float) -> Checkpoint:
    """Load the backbone of a fraction, frozen."""
    directory = checkpoints.encoder(fraction)
    loaded = load(data, str(directory))
    last = BertHead(data.shape(loaded.encoder), dropout=loaded.dropout)
    load_head_weights(last, loaded.last)
    device = devices.device()
    encoder = loaded.encoder.to(device).eval().requires_grad_(False)
    record = checkpoints.record(fraction)
    auxiliary_head = None
    if (directory / AUXILIARY_HEAD_FILE).is_file():
        auxiliary_head = build_head(data.auxiliary_head, data.shape(encoder))
        load_head_weights(auxiliary_head, load_tensors(directory / AUXILIARY_HEAD_FILE, "head")[0])
        auxiliary_head = auxiliary_head.to(device).eval()
    last = last.to(device).eval()
    return Checkpoint(fraction, directory.parent, encoder, last, record, weights_hash(encoder), auxiliary_head)
