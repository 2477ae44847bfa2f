"""The only loop: fine-tuning a backbone and training heads are the same call."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import runtime
from bertvision.activations import part_of
from bertvision.config import Optim
from bertvision.progress import bar
from bertvision.training.student import Student, load, save
from bertvision.types import Batch, Batches

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Grade = tuple[float, float]
"""How good a model is on validation; compared element by element, higher is better: (score, -loss)."""

SAVE_SHARE = 0.02  # of the time, at most, goes into saving
SAVE_SECONDS = 20.0  # between two saves, at least
PIECE = 768  # tokens of hidden states that a head learns from at once on a CPU: more need memory, and are hardly faster


def fit(
    models: Mapping[str, nn.Module],
    batches: Batches,
    loss: Loss,
    optims: Mapping[str, Optim],
    *,
    seed: int = 0,
    pause_at: Sequence[float] = (),
    on_pause: Callable[[float, dict[str, float]], None] = lambda fraction, record: None,
    validate: Callable[[dict[str, nn.Module]], dict[str, Grade]] | None = None,
    resume: Path | None = None,
    fingerprint: str = "",
    scaled: bool = False,
    label: str = "train",
    notify: Callable[[str], None] = lambda message: None,
) -> dict[str, Student]:
    """Train every model on one pass over the batches, each as if alone.

    `on_pause` is called at each epoch fraction; `validate` after each epoch, to stop early and to keep the best. What
    it does not grade stops there.
    With `resume`, the state is saved there now and then, and a run that was killed goes on from it. With `scaled`, the
    loss is, so that float16 keeps small gradients.
    """
    device = runtime.device()
    batches = part_of(batches)
    students = {
        name: Student(
            model=model.to(device),
            optim=optims[name],
            optimizer=runtime.optimizer_for(model, optims[name].learning_rate, optims[name].weight_decay),
            scaler=runtime.scaler_for(scaled),
        )
        for name, model in models.items()
    }
    per_epoch = len(batches)
    last_step = round(max(student.optim.epochs for student in students.values()) * per_epoch)
    pauses: dict[int, list[float]] = {}
    for fraction in pause_at:  # several may fall on one step when an epoch has few
        pauses.setdefault(max(int(fraction > 0), round(fraction * per_epoch)), []).append(fraction)
    progress: dict[str, Any] = {"step": 0, "pause_loss": 0.0, "pause_steps": 0}
    progress |= {"shared_seconds": 0.0, "saving_seconds": 0.0}
    if resume is not None and runtime.decide(resume.exists()):
        load(resume, fingerprint, students, progress, pauses)
        if progress["step"]:
            notify(f"Going on with {label} at step {progress['step']:,} of {last_step:,}.")
    saved_at, save_cost = time.monotonic(), 0.0

    def pause(step: int) -> None:
        seconds = progress["shared_seconds"] + sum(student.seconds for student in students.values())
        mean = progress["pause_loss"] / max(1, progress["pause_steps"])
        for fraction in pauses[step]:
            record = {"training_loss": mean, "seconds": seconds, "steps": step}
            on_pause(fraction, record | {"saving_seconds": progress["saving_seconds"]})
        progress["pause_loss"], progress["pause_steps"] = 0.0, 0

    if progress["step"] == 0 and 0 in pauses:
        pause(0)
    with bar(label, total=last_step, done=progress["step"]) as advance:
        while progress["step"] < last_step and _active(students):
            epoch, start = divmod(progress["step"], per_epoch)
            clock = time.perf_counter()
            for batch in batches.epoch(epoch, start):
                batch = batch.to(device)
                progress["shared_seconds"] += time.perf_counter() - clock
                step = progress["step"]
                for student in _active(students):
                    began = time.perf_counter()
                    # Seeded by the step: dropout depends on neither the other students nor an interruption.
                    torch.manual_seed(seed * 1_000_003 + step + runtime.rank() * 2**40)
                    value = _step(student, batch, loss, step, per_epoch)
                    student.seconds += time.perf_counter() - began
                    progress["pause_loss"] += value
                    progress["pause_steps"] += 1
                progress["step"] = step = step + 1
                advance(1)
                if step in pauses and _active(students):  # a model that diverged is no point worth keeping
                    pause(step)
                if step % per_epoch == 0 or step == last_step:
                    began = time.perf_counter()
                    grades = _validate(students, validate, notify)
                    progress["shared_seconds"] += time.perf_counter() - began
                    _end_epoch(students, grades if validate else None, progress["shared_seconds"], step, per_epoch)
                if step == last_step or not _active(students):
                    break
                due = time.monotonic() - saved_at > max(SAVE_SECONDS, save_cost / SAVE_SHARE)
                if resume is not None and due and runtime.first():
                    began = time.monotonic()
                    save(resume, fingerprint, students, progress)
                    saved_at = time.monotonic()
                    save_cost = saved_at - began
                    progress["saving_seconds"] += save_cost
                del batch  # so that its memory can be used again for the next
                clock = time.perf_counter()
    for student in students.values():
        if student.best:
            student.model.load_state_dict(student.best)
        student.model.eval()
    return students


def rate(step: int, per_epoch: int, optim: Optim) -> float:
    """Share of the peak learning rate at `step`: rise over the warm-up, then stay or fall to zero."""
    warm, total = optim.warmup * per_epoch, optim.epochs * per_epoch
    if step + 1 <= warm:
        return (step + 1) / warm
    if optim.schedule == "constant":
        return 1.0
    return max(0.0, (total - step) / max(1.0, total - warm))


def _step(student: Student, batch: Batch, loss: Loss, step: int, per_epoch: int) -> float:
    """One descent of one model; its gradient is clipped alone."""
    student.model.train()
    for group in student.optimizer.param_groups:
        group["lr"] = student.optim.learning_rate * rate(step, per_epoch, student.optim) * group["pace"]
    total = 0.0
    for piece in _pieces(batch, max(student.optim.accumulate, _needed(student.model, batch))):
        share = len(piece.labels) / len(batch.labels)
        value = _mean_loss(loss, student.model(piece.inputs, piece.mask), piece) * share
        student.scaler.scale(value).backward()
        total += float(value.detach())
    total = runtime.average(student.model, student.optimizer, len(batch.labels), total)
    if not math.isfinite(total):
        student.failed = f"its loss became {total} at step {step + 1}; a smaller learning rate may help"
        student.stopped = "diverged"
        return 0.0
    if student.optim.clip:
        student.scaler.unscale_(student.optimizer)
        nn.utils.clip_grad_norm_(student.model.parameters(), student.optim.clip)
    student.scaler.step(student.optimizer)
    student.scaler.update()
    student.optimizer.zero_grad()
    student.running += total
    student.count += 1
    return total


def _mean_loss(loss: Loss, logits: Tensor | list[Any], batch: Batch) -> Tensor:
    """The loss of a model's answer; where it has several, their mean, so that none leans on the others."""
    if isinstance(logits, list):
        return torch.stack([_mean_loss(loss, each, batch) for each in logits]).mean()
    return loss(logits.float(), batch.labels, batch.mask)


def _needed(model: nn.Module, batch: Batch) -> int:
    """How many pieces keep the memory of a step small; batch norm must see the whole, a GPU and an encoder want it."""
    states, whole = isinstance(batch.inputs, Tensor), any(isinstance(m, nn.BatchNorm1d) for m in model.modules())
    return 1 if not states or whole or batch.mask.device.type != "cpu" else -(-batch.mask.numel() // PIECE)


def _pieces(batch: Batch, pieces: int) -> list[Batch]:
    """Cut a batch by rows; one of several processes may have none of the last."""
    if pieces == 1 and len(batch.labels):
        return [batch]
    size = max(1, -(-len(batch.labels) // pieces))
    cut = []
    for first in range(0, len(batch.labels), size):
        part = slice(first, first + size)
        inputs = batch.inputs
        inputs = {name: x[part] for name, x in inputs.items()} if isinstance(inputs, dict) else inputs[part]
        cut.append(Batch(rows=batch.rows[part], inputs=inputs, mask=batch.mask[part], labels=batch.labels[part]))
    return cut


def _active(students: Mapping[str, Student]) -> list[Student]:
    return [student for student in students.values() if not student.stopped]


def _validate(
    students: Mapping[str, Student],
    validate: Callable[[dict[str, nn.Module]], dict[str, Grade]] | None,
    notify: Callable[[str], None],
) -> dict[str, Grade]:
    """Grade those still training; say who was dropped."""
    for name, student in students.items():
        if student.stopped == "diverged":
            notify(f"{name} is dropped: {student.failed}.")
            student.stopped = "dropped"
    active = {name: student.model.eval() for name, student in students.items() if not student.stopped}
    return validate(active) if validate and active else {}


def _end_epoch(
    students: Mapping[str, Student],
    grades: Mapping[str, Grade] | None,
    shared_seconds: float,
    step: int,
    per_epoch: int,
) -> None:
    """Keep the best of each, and stop those that no longer get better or are no longer graded."""
    for name, student in students.items():
        if student.stopped:
            continue
        student.losses.append(student.running / max(1, student.count))
        student.running, student.count = 0.0, 0
        student.shared_seconds = shared_seconds
        if grades is not None and name not in grades:
            student.stopped = "given up"
            continue
        if grades:
            student.grades.append(list(grades[name]))
            if not student.best_epoch or list(grades[name]) > student.grades[student.best_epoch - 1]:
                student.best_epoch = len(student.grades)
                student.best = {key: value.clone() for key, value in student.model.state_dict().items()}
        patience = student.optim.patience
        if patience and student.best_epoch and len(student.grades) - student.best_epoch >= patience:
            student.stopped = f"no better for {patience} epochs"
        elif step >= round(student.optim.epochs * per_epoch):
            student.stopped = "finished"
