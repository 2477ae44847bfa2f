"""Fine-tune a backbone for fractions of an epoch, and open what was saved."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import runtime
from bertvision.activations import Streamed, Tokens
from bertvision.backbones import BESIDE, Backbone, Joint, Loaded, Reader, load_backbone, save_backbone, weights_hash
from bertvision.config import FRACTION, Experiment, Optim
from bertvision.errors import BertVisionError
from bertvision.files import load_tensors, locked, read_json, replacing_directory, save_tensors, value_hash, write_json
from bertvision.heads import Last, build_head, train_in
from bertvision.pipeline.prepared import Prepared, fingerprint
from bertvision.progress import say
from bertvision.runs import slug
from bertvision.training import Loss, fit
from bertvision.types import Batches, View

UNTRAINED = {"training_loss": 0.0, "seconds": 0.0, "steps": 0, "saving_seconds": 0.0}


@dataclass(frozen=True)
class Tuned:
    """A fine-tuning: a directory with one backbone per fraction."""

    directory: Path
    fractions: list[float]

    def backbone(self, fraction: float) -> Path:
        """Where the backbone of a fraction is."""
        return self.directory / f"{fraction:g}" / "backbone"

    def point(self, fraction: float) -> dict[str, Any]:
        """Training loss and seconds at a fraction."""
        return read_json(self.backbone(fraction) / "point.json", "fine-tuned backbone")


def finetune(prepared: Prepared, root: Path) -> Tuned:
    """Fine-tune once and keep the backbone at every fraction asked for."""
    experiment = prepared.experiment
    if experiment.given:
        return _adopt(prepared, root)
    loaded = load(prepared, experiment.backbone)
    fractions = sorted(set(experiment.fractions))
    optim = replace(prepared.finetune, epochs=max(fractions))
    settings = {
        "task": prepared.task.name,
        "data": fingerprint(prepared.train, prepared.validation),
        "rows": len(prepared.train.examples),
        "validation_rows": len(prepared.validation.examples),
        "max_tokens": prepared.max_tokens,
        "backbone": experiment.backbone,
        "weights": weights_hash(loaded.backbone),
        # At a constant rate every fraction is a point on one curve, however long the run.
        "finetune": asdict(optim if optim.schedule == "linear" else replace(optim, epochs=0.0)),
        "seed": experiment.seed,
        "precision": experiment.precision,
        "embeddings": "of the words that occur",  # a state saved when all were trained does not fit
    }
    if experiment.through != "last":
        settings |= {"through": experiment.through, "head_rate": prepared.heads.learning_rate}
    if experiment.frozen:
        settings |= {"frozen": experiment.frozen}
    key = value_hash(settings)
    place = Path(root) / slug(prepared.task.name) / slug(Path(experiment.backbone).name) / key
    tuned = Tuned(place, fractions)
    missing = [f for f in fractions if not runtime.decide((tuned.backbone(f) / "point.json").is_file())]
    if not missing:
        return tuned
    if runtime.first():
        write_json(place / "settings.json", settings)
    loaded.backbone.freeze(experiment.frozen)
    reader = new_reader(prepared, loaded)
    label = f"fine-tune {prepared.task.name}"
    model = _through(prepared, reader, optim)
    keep = partial(save_point, prepared, tuned, model)
    descend(model, prepared.shuffled(optim), prepared.task.loss, optim, experiment, missing, keep, place, label)
    del loaded, reader, keep, model
    runtime.give_back()
    return tuned


def _through(prepared: Prepared, reader: Reader, optim: Optim) -> Reader | Joint:
    """Return what is to be trained: BERT alone, or with a head beside its own."""
    spec = prepared.experiment.through
    if spec == "last":
        return reader
    beside = train_in(prepared.experiment.precision, build_head(spec, prepared.shape(reader.backbone)))
    return Joint(reader, beside, prepared.heads.learning_rate / optim.learning_rate)


def descend(
    model: nn.Module,
    batches: Batches,
    loss: Loss,
    optim: Optim,
    experiment: Experiment,
    missing: Sequence[float],
    keep: Callable[[float, dict[str, float]], None],
    place: Path,
    label: str,
) -> None:
    """Train a model that holds a backbone; `keep` it at every missing fraction, and what a kill needs in `place`."""
    if max(missing) == 0:
        keep(0.0, UNTRAINED)
        runtime.wait()
        return
    if optim.schedule == "constant":
        optim = replace(optim, epochs=max(missing))
    resume = place / "resume.safetensors"
    with locked(resume, wait=False) if runtime.first() else nullcontext():
        student = fit(
            {"bert": model},
            batches,
            loss,
            {"bert": optim},
            seed=experiment.seed,
            pause_at=missing,
            on_pause=keep,
            resume=resume,
            fingerprint=place.name,
            scaled=experiment.precision == "float16",
            label=label,
            notify=say,
        )["bert"]
    runtime.wait()
    resume.unlink(missing_ok=True)
    if student.failed:
        raise BertVisionError(f"Fine-tuning diverged: {student.failed}.")


def _adopt(prepared: Prepared, root: Path) -> Tuned:
    """Take checkpoints that were fine-tuned elsewhere as the points of a curve; what they cost is not known."""
    experiment = prepared.experiment
    settings = {
        "task": prepared.task.name,
        "data": fingerprint(prepared.train, prepared.validation),
        "max_tokens": prepared.max_tokens,
        "backbone": str(Path(experiment.backbone).absolute()),
        "precision": experiment.precision,
    }
    name = slug(experiment.backbone.replace(FRACTION, "").rstrip("/")[-40:])
    place = Path(root) / slug(prepared.task.name) / name / value_hash(settings)
    tuned = Tuned(place, sorted(set(experiment.fractions)))
    for fraction in tuned.fractions:
        if runtime.first() and not (tuned.backbone(fraction) / "point.json").is_file():
            write_json(place / "settings.json", settings)
            reader = new_reader(prepared, load(prepared, experiment.backbone_at(fraction)))
            save_point(prepared, tuned, reader, fraction, UNTRAINED)
    runtime.wait()
    return tuned


def load(prepared: Prepared, name: str) -> Loaded:
    """Load a backbone to compute with."""
    runtime.require_precision(prepared.experiment.precision)
    return load_backbone(name, prepared.experiment.precision)


def new_reader(prepared: Prepared, loaded: Loaded | None = None) -> Reader:
    """Return the backbone with BERT's own head, as fine-tuning begins with them."""
    loaded = loaded or load(prepared, prepared.experiment.backbone)
    loaded.backbone.narrow(prepared.words())
    torch.manual_seed(prepared.experiment.seed)
    head = Last(prepared.shape(loaded.backbone), dropout=loaded.dropout)
    if loaded.last:
        _restore_last(head, loaded.last)
    return Reader(loaded.backbone, head)


def save_point(
    prepared: Prepared, tuned: Tuned, model: Reader | Joint, fraction: float, record: dict[str, float]
) -> None:
    if not runtime.first():
        return
    with replacing_directory(tuned.backbone(fraction)) as directory:
        save_backbone(directory, model.reader if isinstance(model, Joint) else model, prepared.tokenizer)
        if isinstance(model, Joint):
            save_tensors(directory / BESIDE, model.beside.state_dict())
        write_json(directory / "point.json", {"fraction": fraction, **record})


def _restore_last(head: Last, found: Mapping[str, Tensor]) -> None:
    """Lay the checkpoint's weights over a fresh head, as far as their shapes agree."""
    own = head.state_dict()
    head.load_state_dict(own | {k: v for k, v in found.items() if k in own and v.shape == own[k].shape})


@dataclass
class Point:
    """A fine-tuned backbone in memory, with BERT's own head."""

    fraction: float
    directory: Path
    backbone: Backbone
    last: Last
    seconds: float
    weights: str
    beside: nn.Module | None = None
    """The head that fine-tuning went through beside BERT's own, as it was then."""

    def stream(self, tokens: Tokens, view: View) -> Streamed:
        """Its hidden states over `tokens`."""
        return Streamed(
            self.backbone,
            tokens,
            view,
            pool=self.last.pool if view.pooled else None,
            device=runtime.device(),
        )


def open_point(prepared: Prepared, tuned: Tuned, fraction: float) -> Point:
    """Load the backbone of a fraction, frozen."""
    directory = tuned.backbone(fraction)
    loaded = load(prepared, str(directory))
    last = Last(prepared.shape(loaded.backbone), dropout=loaded.dropout)
    last.load_state_dict(loaded.last)
    device = runtime.device()
    backbone = loaded.backbone.to(device).eval().requires_grad_(False)
    seconds = tuned.point(fraction)["seconds"]
    beside = None
    if (directory / BESIDE).is_file():
        beside = build_head(prepared.experiment.through, prepared.shape(backbone))
        beside.load_state_dict(load_tensors(directory / BESIDE, "head")[0])
        beside = beside.to(device).eval()
    last = last.to(device).eval()
    return Point(fraction, directory.parent, backbone, last, seconds, weights_hash(backbone), beside)
