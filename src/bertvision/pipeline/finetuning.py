"""Fine-tune a backbone for fractions of an epoch, and open what was saved."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertvision import runtime
from bertvision.activations import Streamed, Tokens
from bertvision.backbones import Backbone, Reader, load_backbone, save_backbone, weights_hash
from bertvision.errors import BertVisionError
from bertvision.files import locked, read_json, replacing_directory, value_hash, write_json
from bertvision.heads import Last
from bertvision.pipeline.prepared import Prepared, fingerprint
from bertvision.progress import say
from bertvision.runs import slug
from bertvision.training import fit
from bertvision.types import View


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
    loaded = load_backbone(experiment.backbone)
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
    }
    key = value_hash(settings)
    place = Path(root) / slug(prepared.task.name) / slug(Path(experiment.backbone).name) / key
    tuned = Tuned(place, fractions)
    missing = [f for f in fractions if not (tuned.backbone(f) / "point.json").is_file()]
    if not missing:
        return tuned
    write_json(place / "settings.json", settings)
    torch.manual_seed(experiment.seed)
    head = Last(prepared.shape(loaded.backbone), dropout=loaded.dropout)
    if loaded.last:
        _restore_last(head, loaded.last)
    reader = Reader(loaded.backbone, head)

    def save_point(fraction: float, record: dict[str, float]) -> None:
        with replacing_directory(tuned.backbone(fraction)) as directory:
            save_backbone(directory, reader, prepared.tokenizer)
            write_json(directory / "point.json", {"fraction": fraction, **record})

    if optim.schedule == "constant":
        optim = replace(optim, epochs=max(missing))
    if max(missing) == 0:
        save_point(0.0, {"training_loss": 0.0, "seconds": 0.0, "steps": 0, "saving_seconds": 0.0})
        return tuned
    resume = place / "resume.safetensors"
    with locked(resume, wait=False):
        students = fit(
            {"bert": reader},
            prepared.shuffled(optim),
            prepared.task.loss,
            {"bert": optim},
            seed=experiment.seed,
            pause_at=missing,
            on_pause=save_point,
            resume=resume,
            fingerprint=key,
            precision=experiment.precision,
            label=f"fine-tune {prepared.task.name}",
            notify=say,
        )
    resume.unlink(missing_ok=True)
    if students["bert"].failed:
        raise BertVisionError(f"Fine-tuning diverged: {students['bert'].failed}.")
    return tuned


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

    def stream(self, prepared: Prepared, tokens: Tokens, view: View) -> Streamed:
        """Its hidden states over `tokens`."""
        return Streamed(
            self.backbone,
            tokens,
            view,
            pool=self.last.pool if view.pooled else None,
            device=runtime.device(),
            autocast=partial(runtime.autocast, prepared.experiment.precision),
        )


def open_point(prepared: Prepared, tuned: Tuned, fraction: float) -> Point:
    """Load the backbone of a fraction, frozen."""
    directory = tuned.backbone(fraction)
    loaded = load_backbone(str(directory))
    last = Last(prepared.shape(loaded.backbone), dropout=loaded.dropout)
    last.load_state_dict(loaded.last)
    device = runtime.device()
    backbone = loaded.backbone.to(device).eval().requires_grad_(False)
    seconds = tuned.point(fraction)["seconds"]
    return Point(fraction, directory.parent, backbone, last.to(device).eval(), seconds, weights_hash(backbone))
