"""The only loop: fine-tuning a backbone and training heads are the same call."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import devices, distributed
from bertvision.progress import bar
from bertvision.states import partition
from bertvision.training.config import TrainingConfig
from bertvision.training.optimizers import build_grad_scaler, build_optimizer
from bertvision.training.train_state import TrainState, load, save
from bertvision.types import Batch, Batches

logger = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
ValidationScore = tuple[float, float]
"""How good a model is on validation; compared element by element, higher is better: (score, -loss)."""

SAVE_SHARE = 0.02  # of the time, at most, goes into saving
SAVE_SECONDS = 20.0  # between two saves, at least
PIECE = 768  # tokens of hidden states that a head learns from at once on a CPU: more need memory, and are hardly faster


def fit(
    models: Mapping[str, nn.Module],
    batches: Batches,
    loss: Loss,
    configs: Mapping[str, TrainingConfig],
    *,
    seed: int = 0,
    pause_at: Sequence[float] = (),
    on_pause: Callable[[float, dict[str, float]], None] = lambda fraction, record: None,
    validate: Callable[[dict[str, nn.Module]], dict[str, ValidationScore]] | None = None,
    resume: Path | None = None,
    fingerprint: str = "",
    scale_loss: bool = False,
    label: str = "train",
) -> dict[str, TrainState]:
    """Train every model on one pass over the batches, each as if alone.

    `on_pause` is called at each epoch fraction; `validate` after each epoch, to stop early and to keep the best. What
    it does not grade stops there.
    With `resume`, the state is saved there now and then, and a run that was killed goes on from it. With `scaled`, the
    loss is, so that float16 keeps small gradients.
    """
    device = devices.device()
    batches = partition(batches)
    train_states = {
        name: TrainState(
            model=model.to(device),
            optim=configs[name],
            optimizer=build_optimizer(model, configs[name].learning_rate, configs[name].weight_decay),
            scaler=build_grad_scaler(scale_loss),
        )
        for name, model in models.items()
    }
    per_epoch = len(batches)
    last_step = round(max(train_state.optim.epochs for train_state in train_states.values()) * per_epoch)
    pauses: dict[int, list[float]] = {}
    for fraction in pause_at:  # several may fall on one step when an epoch has few
        pauses.setdefault(max(int(fraction > 0), round(fraction * per_epoch)), []).append(fraction)
    progress: dict[str, Any] = {"step": 0, "pause_loss": 0.0, "pause_steps": 0}
    progress |= {"shared_seconds": 0.0, "saving_seconds": 0.0}
    if resume is not None and distributed.broadcast_decision(resume.exists()):
        load(resume, fingerprint, train_states, progress, pauses)
        if progress["step"]:
            logger.info(f"Going on with {label} at step {progress['step']:,} of {last_step:,}.")
    saved_at, save_cost = time.monotonic(), 0.0

    def pause(step: int) -> None:
        seconds = progress["shared_seconds"] + sum(train_state.seconds for train_state in train_states.values())
        mean = progress["pause_loss"] / max(1, progress["pause_steps"])
        for fraction in pauses[step]:
            record = {"training_loss": mean, "seconds": seconds, "steps": step}
            on_pause(fraction, record | {"saving_seconds": progress["saving_seconds"]})
        progress["pause_loss"], progress["pause_steps"] = 0.0, 0

    if progress["step"] == 0 and 0 in pauses:
        pause(0)
    with bar(label, total=last_step, done=progress["step"]) as advance:
        while progress["step"] < last_step and _active(train_states):
            epoch, start = divmod(progress["step"], per_epoch)
            clock = time.perf_counter()
            for batch in batches.epoch(epoch, start):
                batch = batch.to(device)
                progress["shared_seconds"] += time.perf_counter() - clock
                step = progress["step"]
                for train_state in _active(train_states):
                    began = time.perf_counter()
                    # Seeded by the step: dropout depends on neither the other students nor an interruption.
                    torch.manual_seed(seed * 1_000_003 + step + distributed.process_index() * 2**40)
                    value = _step(train_state, batch, loss, step, per_epoch)
                    train_state.seconds += time.perf_counter() - began
                    progress["pause_loss"] += value
                    progress["pause_steps"] += 1
                progress["step"] = step = step + 1
                advance(1)
                if step in pauses and _active(train_states):  # a model that diverged is no point worth keeping
                    pause(step)
                if step % per_epoch == 0 or step == last_step:
                    began = time.perf_counter()
                    validation_scores = _validate(train_states, validate)
                    progress["shared_seconds"] += time.perf_counter() - began
                    _end_epoch(
                        train_states,
                        validation_scores if validate else None,
                        progress["shared_seconds"],
                        step,
                        per_epoch,
                    )
                if step == last_step or not _active(train_states):
                    break
                due = time.monotonic() - saved_at > max(SAVE_SECONDS, save_cost / SAVE_SHARE)
                if resume is not None and due and distributed.is_main_process():
                    began = time.monotonic()
                    save(resume, fingerprint, train_states, progress)
                    saved_at = time.monotonic()
                    save_cost = saved_at - began
                    progress["saving_seconds"] += save_cost
                del batch  # so that its memory is freed before the next one is made
                clock = time.perf_counter()
    for train_state in train_states.values():
        if train_state.best:
            train_state.model.load_state_dict(train_state.best)
        train_state.model.eval()
    return train_states


def rate(step: int, per_epoch: int, optim: TrainingConfig) -> float:
    """Share of the peak learning rate at `step`: rise over the warm-up, then stay or fall to zero."""
    warm, total = optim.warmup * per_epoch, optim.epochs * per_epoch
    if step + 1 <= warm:
        return (step + 1) / warm
    if optim.schedule == "constant":
        return 1.0
    return max(0.0, (total - step) / max(1.0, total - warm))


def _step(train_state: TrainState, batch: Batch, loss: Loss, step: int, per_epoch: int) -> float:
    """One descent of one model; its gradient is clipped alone."""
    train_state.model.train()
    for group in train_state.optimizer.param_groups:
        group["lr"] = train_state.optim.learning_rate * rate(step, per_epoch, train_state.optim) * group["lr_scale"]
    total = 0.0
    for piece in _pieces(batch, max(train_state.optim.accumulate, _needed(train_state.model, batch))):
        share = len(piece.labels) / len(batch.labels)
        value = _mean_loss(loss, train_state.model(piece.inputs, piece.mask), piece) * share
        train_state.scaler.scale(value).backward()
        total += float(value.detach())
    total = distributed.average_gradients(train_state.model, train_state.optimizer, len(batch.labels), total)
    if not math.isfinite(total):
        train_state.failed = f"its loss became {total} at step {step + 1}; a smaller learning rate may help"
        train_state.stopped = "diverged"
        return 0.0
    if train_state.optim.clip:
        train_state.scaler.unscale_(train_state.optimizer)
        nn.utils.clip_grad_norm_(train_state.model.parameters(), train_state.optim.clip)
    train_state.scaler.step(train_state.optimizer)
    train_state.scaler.update()
    train_state.optimizer.zero_grad()
    train_state.running += total
    train_state.count += 1
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


def _active(train_states: Mapping[str, TrainState]) -> list[TrainState]:
    return [train_state for train_state in train_states.values() if not train_state.stopped]


def _validate(
    train_states: Mapping[str, TrainState],
    validate: Callable[[dict[str, nn.Module]], dict[str, ValidationScore]] | None,
) -> dict[str, ValidationScore]:
    """Grade those still training; say who was dropped."""
    for name, train_state in train_states.items():
        if train_state.stopped == "diverged":
            logger.info(f"{name} is dropped: {train_state.failed}.")
            train_state.stopped = "dropped"
    active = {name: train_state.model.eval() for name, train_state in train_states.items() if not train_state.stopped}
    return validate(active) if validate and active else {}


def _end_epoch(
    train_states: Mapping[str, TrainState],
    validation_scores: Mapping[str, ValidationScore] | None,
    shared_seconds: float,
    step: int,
    per_epoch: int,
) -> None:
    """Keep the best of each, and stop those that no longer get better or are no longer graded."""
    for name, train_state in train_states.items():
        if train_state.stopped:
            continue
        train_state.losses.append(train_state.running / max(1, train_state.count))
        train_state.running, train_state.count = 0.0, 0
        train_state.shared_seconds = shared_seconds
        if validation_scores is not None and name not in validation_scores:
            train_state.stopped = "given up"
            continue
        if validation_scores:
            train_state.validation_scores.append(list(validation_scores[name]))
            if (
                not train_state.best_epoch
                or list(validation_scores[name]) > train_state.validation_scores[train_state.best_epoch - 1]
            ):
                train_state.best_epoch = len(train_state.validation_scores)
                train_state.best = {key: value.clone() for key, value in train_state.model.state_dict().items()}
        patience = train_state.optim.patience
        if (
            patience
            and train_state.best_epoch
            and len(train_state.validation_scores) - train_state.best_epoch >= patience
        ):
            train_state.stopped = f"no better for {patience} epochs"
        elif step >= round(train_state.optim.epochs * per_epoch):
            train_state.stopped = "finished"
