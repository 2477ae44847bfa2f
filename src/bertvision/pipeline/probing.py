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

from bertvision import heads, runtime
from bertvision.errors import BertVisionError
from bertvision.files import locked, value_hash
from bertvision.heads import Select, build_for, last_layer_only, learns_in, train_in, view_of
from bertvision.pipeline.finetuning import Point
from bertvision.pipeline.prepared import Notify, Prepared, fingerprint
from bertvision.pipeline.scoring import bert_run, finish, grades
from bertvision.pipeline.states import states
from bertvision.progress import say
from bertvision.runs import Run, is_finished, slug
from bertvision.training import Student, fit
from bertvision.types import Shape, View


def train_heads(prepared: Prepared, point: Point, notify: Notify = say, *, start: Run | None = None) -> list[Run]:
    """Train every head and control on one pass over the states of a fraction; skip those already there.

    With `start`, heads begin with the weights of that run's head, where shapes agree; its read-out is left out if it
    answers another question.
    """
    experiment = prepared.experiment
    specs = _with_controls([heads.canonical(spec) for spec in experiment.heads], experiment.controls)
    places = {spec: point.directory / _head_directory(prepared, point, spec, start) for spec in specs}
    missing = [spec for spec in specs if not is_finished(places[spec])]
    if missing:
        # Killed while the finished heads were being written: their saved state is of all of them.
        everyone = list(specs)
        killed = runtime.decide(_resume(prepared, point, everyone, start).exists())
        _train(prepared, point, everyone if killed else missing, specs, places, notify, start)
    return [Run(places[spec]) for spec in specs if is_finished(places[spec])]


def _train(
    prepared: Prepared,
    point: Point,
    todo: list[str],
    specs: Mapping[str, str],
    places: Mapping[str, Path],
    notify: Notify,
    start: Run | None,
) -> None:
    experiment = prepared.experiment
    shape = prepared.shape(point.backbone, todo)
    view = view_of(todo, shape)
    rates = _rates(prepared)
    models, optims = {}, {}
    for spec in todo:
        for rate in rates:
            models[f"{spec}@{rate:g}"] = head = new_head(prepared, spec, shape, view)
            if start is not None:
                begin_from(head, start, prepared.task.describe())
            optims[f"{spec}@{rate:g}"] = replace(prepared.heads, learning_rate=rate)
    began = time.perf_counter()
    validation = states(prepared, point, "validation", view, prepared.ordered(prepared.validation), notify)
    shuffled = prepared.shuffled(prepared.heads, labels=experiment.labels)
    train = states(prepared, point, "train", view, shuffled, notify, learns_in(models.values()))
    reading = time.perf_counter() - began

    resume = _resume(prepared, point, todo, start)
    with locked(resume, wait=False) if runtime.first() else nullcontext():
        students = fit(
            models,
            train,
            prepared.task.loss,
            optims,
            seed=experiment.seed,
            validate=partial(grades, prepared, validation),
            resume=resume,
            fingerprint=resume.stem,
            label=f"train {len(models)} heads" if len(models) > 1 else f"train {todo[0]}",
            notify=notify,
        )
    chosen = {spec: _best_rate(students, spec, rates) for spec in todo}
    alive = {spec: student for spec, student in chosen.items() if student is not None}
    if not alive:
        raise BertVisionError("Every head diverged; a smaller train.learning_rate may help.")
    final = {spec: student.model for spec, student in alive.items()}
    layers = point.backbone.layers
    final["bert"] = Select(point.last, [layers - 1]).through(view, layers)  # free
    dev = states(prepared, point, "dev", view, prepared.ordered(prepared.dev), notify)
    batches = {"validation": validation, "dev": dev}
    found = {
        name: prepared.predict(final, batches[name], split, f"heads on {name}")
        for name, split in prepared.held_out.items()
    }
    bert_run(prepared, point, {name: each["bert"] for name, each in found.items()})
    for spec, student in alive.items():
        own, shared = student.seconds, student.shared_seconds + reading
        extra = {
            "parameters": sum(p.numel() for p in student.model.parameters()),
            "seconds": {"finetune": point.seconds, "head": own + shared, "total": point.seconds + own + shared},
            "seconds_apart": {"states": shared, "head": own},
            "best_epoch": student.best_epoch,
            "epochs": len(student.grades),
            "validation_by_epoch": [grade[0] for grade in student.grades],
            "training_loss": student.losses[student.best_epoch - 1],
            "learning_rate": student.optim.learning_rate,
        }
        predictions = {name: each[spec] for name, each in found.items()}
        weights = {key: value.cpu() for key, value in student.model.state_dict().items()}
        finish(prepared, point, places[spec], specs[spec], spec, predictions, extra, weights=weights, shape=shape)
    resume.unlink(missing_ok=True)


def carry(prepared: Prepared, runs: Sequence[Run], point: Point, notify: Notify = say) -> list[Run]:
    """Score trained heads on the states of another point; thresholds and the like are chosen there anew."""
    dev = fingerprint(prepared.dev)
    places = [point.directory / f"{slug(run.name)}-carried-{value_hash([run.directory.name, dev])}" for run in runs]
    missing = {place: run for place, run in zip(places, runs, strict=True) if not is_finished(place)}
    for shape in dict.fromkeys(Shape(**run.experiment["shape"]) for run in missing.values()):
        alike = {place: run for place, run in missing.items() if Shape(**run.experiment["shape"]) == shape}
        view = view_of([run.name for run in alike.values()], shape)
        models = {place.name: build_for(run.name, shape, view) for place, run in alike.items()}
        for place, run in alike.items():
            models[place.name].load_state_dict(run.weights())
        label = f"{len(models)} heads" if len(models) > 1 else next(iter(alike.values())).name
        found = {}
        for name, split in prepared.held_out.items():
            batches = states(prepared, point, name, view, prepared.ordered(split), notify)
            found[name] = prepared.predict(models, batches, split, f"{label} on {name}")
        for place, run in alike.items():
            # It cost what its own training cost; the states it reads now cost what their backbone did.
            seconds = run.metrics["seconds"] | {"finetune": point.seconds}
            extra = {"parameters": run.metrics["parameters"], "seconds": seconds}
            extra |= {"carried_from": run.experiment["fraction"]}
            predictions = {name: each[place.name] for name, each in found.items()}
            weights = run.weights()
            finish(prepared, point, place, "carried", run.name, predictions, extra, weights=weights, shape=shape)
    return [Run(place) for place in places]


def begin_from(head: nn.Module, start: Run, task: Mapping[str, Any]) -> list[str]:
    """Lay the weights of a trained head over a fresh one; return what stays fresh: read-outs of other questions do."""
    own, found = head.state_dict(), start.weights()
    same = all(start.experiment["task"].get(key) == task.get(key) for key in ("kind", "classes", "answerable"))
    taken = {
        key: value
        for key, value in found.items()
        if key in own and value.shape == own[key].shape and (same or "read" not in key.split("."))
    }
    head.load_state_dict(own | taken)
    return [key for key in own if key not in taken]


def new_head(prepared: Prepared, spec: str, shape: Shape, view: View) -> nn.Module:
    """Build a head to be trained, which looks at states through `view`; it starts as if alone."""
    torch.manual_seed(prepared.experiment.seed)
    return train_in(prepared.experiment.precision, build_for(spec, shape, view))


def _rates(prepared: Prepared) -> list[float]:
    return sorted({prepared.heads.learning_rate, *prepared.experiment.try_rates})


def _resume(prepared: Prepared, point: Point, specs: Sequence[str], start: Run | None) -> Path:
    """Where the state of training exactly these heads is saved."""
    settings = {
        "heads": list(specs),
        "train": asdict(prepared.heads),
        "rates": _rates(prepared),
        "seed": prepared.experiment.seed,
        "weights": point.weights,
        "data": fingerprint(prepared.train, prepared.validation),
        "labels": prepared.experiment.labels,
        "start": start.directory.name if start else "",
    }
    return point.directory / f"resume-{value_hash(settings)}.safetensors"


def _best_rate(students: Mapping[str, Student], spec: str, rates: Sequence[float]) -> Student | None:
    """Return the student of the learning rate that validation prefers."""
    candidates = [students[f"{spec}@{rate:g}"] for rate in rates]
    candidates = [student for student in candidates if student.grades and not student.failed]
    return max(candidates, key=lambda student: student.grades[student.best_epoch - 1], default=None)


def _with_controls(specs: Sequence[str], controls: bool) -> dict[str, str]:
    """Name every head to be trained, with its kind: heads as asked for, then their controls."""
    kinds = dict.fromkeys(specs, "head")
    if controls:
        kinds |= {spec: "control" for spec in ["last", *map(last_layer_only, specs)] if spec not in kinds}
        kinds["last"] = "control"
    # `last` reads one layer anyway, so it is its own control.
    return {spec: kind for spec, kind in kinds.items() if not spec.startswith("last:layers=last")}


def _head_directory(prepared: Prepared, point: Point, spec: str, start: Run | None) -> str:
    experiment = prepared.experiment
    settings = {
        "head": spec,
        "train": asdict(prepared.heads),
        "rates": experiment.try_rates,
        "seed": experiment.seed,
        "weights": point.weights,
        "dev": fingerprint(prepared.dev),
    }
    if experiment.labels != 1:
        settings["labels"] = experiment.labels
    if start is not None:
        settings["start"] = [start.directory.name, start.experiment["weights"]]
    return f"{slug(spec)}-{value_hash(settings)}"
