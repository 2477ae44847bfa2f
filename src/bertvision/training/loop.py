"""The training loop. Fine-tuning an encoder and training heads are the same call."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import devices, distributed
from bertvision.progress import bar
from bertvision.states import partition
from bertvision.training.callbacks import CheckpointEvent, EpochEvent, EvaluateEvent, StepEvent, TrainingEvent
from bertvision.training.checkpointer import Checkpointer
from bertvision.training.config import FitOptions, FractionRecord, Loss, TrainingConfig, ValidationScore
from bertvision.training.optimizers import build_grad_scaler, build_optimizer
from bertvision.training.train_state import STOPPED, LoopState, TrainState
from bertvision.types import Batch, Batches, call_head

logger: logging.Logger = logging.getLogger(__name__)

MAX_TOKENS = 768  # of hidden states in one backward pass on a CPU: more takes more memory and is hardly faster


def fit(
    models: Mapping[str, nn.Module],
    batches: Batches,
    loss: Loss,
    configs: Mapping[str, TrainingConfig],
    options: FitOptions | None = None,
    checkpointer: Checkpointer | None = None,
) -> dict[str, TrainState]:
    """Train several models on one pass over the batches, each exactly as if it were trained alone.

    Every model has its own optimizer, learning rate, clipping and early stopping. Dropout is seeded by the step.

    Args:
        models: The models by name. They are moved to the device and end with the weights of their best epoch.
        batches: The training data.
        loss: Computes the mean loss of logits, labels and attention mask; also takes the weights of the rows, if there
            are any. For a model that returns several logits (an ensemble in training), the losses are averaged.
        configs: The settings of each model.
        options: Validation, fractions to report, seed, callbacks.
        checkpointer: Saves the state at intervals; an interrupted call resumes from it to the same result.
    """
    device = devices.device()
    options = options or FitOptions()
    train_states = {
        name: TrainState(
            model=model.to(device),
            config=config,
            optimizer=build_optimizer(model, config.learning_rate, config.weight_decay, config.layer_decay),
            scaler=build_grad_scaler(options.scale_loss),
        )
        for name, model, config in ((name, model, configs[name]) for name, model in models.items())
    }
    loop = _Loop(train_states, partition(batches), loss, options, checkpointer)
    loop.run(device)
    for train_state in train_states.values():
        if train_state.best_weights:
            train_state.model.load_state_dict(train_state.best_weights)
        train_state.model.eval()
    return train_states


class _Loop:
    """One call of `fit`."""

    def __init__(
        self,
        train_states: dict[str, TrainState],
        batches: Batches,
        loss: Loss,
        options: FitOptions,
        checkpointer: Checkpointer | None,
    ):
        self.train_states = train_states
        self.batches = batches
        self.loss = loss
        self.options = options
        self.checkpointer = checkpointer
        self.callbacks = options.callbacks if distributed.is_main_process() else ()
        self.state = LoopState()
        self.losses: dict[str, float] = {}
        """The loss of each model at the last step."""
        self.steps_per_epoch = len(batches)
        epochs = max(state.config.epochs for state in train_states.values())
        self.last_step = max(1, round(epochs * self.steps_per_epoch))
        self.fractions: dict[int, list[float]] = {}
        """Fractions to report, by step. Several may fall on one step when an epoch has few."""
        for fraction in options.fractions:
            step = max(int(fraction > 0), round(fraction * self.steps_per_epoch))
            self.fractions.setdefault(step, []).append(fraction)
        self.last_step = max([self.last_step, *self.fractions])  # the smallest fraction is at least one step

    @property
    def active(self) -> dict[str, TrainState]:
        """The models that still train."""
        return {name: train_state for name, train_state in self.train_states.items() if not train_state.stopped}

    @property
    def seconds(self) -> float:
        """The training time of all models."""
        return self.state.shared_seconds + sum(train_state.seconds for train_state in self.train_states.values())

    def run(self, device: torch.device) -> None:
        """Train until every model has stopped."""
        if self.checkpointer is not None:
            self.checkpointer.restore(self.train_states, self.state, min(self.fractions, default=math.inf))
        if self.state.step:
            logger.info(f"Resuming: {self.options.label}, step {self.state.step:,} of {self.last_step:,}.")
        self._notify("on_train_begin", TrainingEvent)
        if not self.state.step and 0 in self.fractions:
            self._report_fractions(self.fractions[0])
        with bar(self.options.label, total=self.last_step, done=self.state.step) as advance:
            while self.state.step < self.last_step and self.active:
                epoch, start = divmod(self.state.step, self.steps_per_epoch)
                began = time.perf_counter()
                for batch in self.batches.epoch(epoch, start):
                    batch = batch.to(device)
                    self.state.shared_seconds += time.perf_counter() - began
                    self._train_on(batch)
                    advance(1)
                    self._after_step()
                    if self.state.step == self.last_step or not self.active:
                        break
                    if self._should_stop():
                        self._stop()
                        break
                    if self.checkpointer is not None and self.checkpointer.save_if_due(self.train_states, self.state):
                        self._notify("on_checkpoint", CheckpointEvent, path=self.checkpointer.path)
                    del batch  # releases its memory before the next batch is loaded
                    began = time.perf_counter()
        self._notify("on_train_end", TrainingEvent)

    def _train_on(self, batch: Batch) -> None:
        """Take one step with every model."""
        for name, train_state in self.active.items():
            began = time.perf_counter()
            # Seeded by the step: dropout depends neither on the other models nor on an interruption.
            devices.manual_seed(self.options.seed * 1_000_003 + self.state.step + distributed.process_index() * 2**40)
            self.losses[name] = _step(train_state, batch, self.loss, self.state.step, self.steps_per_epoch)
            self.state.loss_sum += self.losses[name]
            self.state.loss_count += 1
            train_state.seconds += time.perf_counter() - began
        self.state.step += 1

    def _after_step(self) -> None:
        """Report fractions, and validate at the end of an epoch."""
        if self.callbacks:
            rates = {
                name: train_state.config.learning_rate
                * train_state.config.rate_factor(self.state.step - 1, self.steps_per_epoch)
                for name, train_state in self.active.items()
            }
            losses = {name: self.losses[name] for name in rates}
            self._notify("on_step", StepEvent, losses=losses, learning_rates=rates)
        if self.state.step in self.fractions and self.active:  # a model that diverged is not worth saving
            self._report_fractions(self.fractions[self.state.step])
        if self.state.step % self.steps_per_epoch == 0 or self.state.step == self.last_step:
            self._evaluate()

    def _evaluate(self) -> None:
        """Validate the models that still train, and end their epoch."""
        began = time.perf_counter()
        scores = self._validate()
        self.state.shared_seconds += time.perf_counter() - began
        evaluated = self.active
        for name, train_state in evaluated.items():
            self._end_epoch(train_state, scores.get(name))
        if scores:
            self._notify("on_evaluate", EvaluateEvent, validation_scores=scores)
        losses = {name: train_state.losses[-1] for name, train_state in evaluated.items()}
        self._notify("on_epoch", EpochEvent, losses=losses, validation_scores=scores)

    def _should_stop(self) -> bool:
        """Ask the callbacks in the main process. All processes stop at the same step."""
        if not self.options.callbacks:
            return False
        return distributed.broadcast_decision(any(callback.should_stop() for callback in self.callbacks))

    def _stop(self) -> None:
        """End training before its last step with a result that can be used. The saved state is left as it is."""
        if self.fractions and self.state.step not in self.fractions:
            self._report_fractions([self.state.step / self.steps_per_epoch])
        active = self.active.values()
        if not any(state.best_epoch for state in active) and (
            self.options.validate or any(state.loss_count for state in active)
        ):
            self._evaluate()
        for train_state in self.active.values():
            train_state.shared_seconds = self.state.shared_seconds
            train_state.stopped = STOPPED

    def _notify(self, method: str, event_type: type[TrainingEvent], **fields: Any) -> None:
        """Call a method of every callback."""
        if self.callbacks:
            event = event_type(
                stage=self.options.stage,
                step=self.state.step,
                total_steps=self.last_step,
                epoch=self.state.step / self.steps_per_epoch,
                seconds=self.seconds,
                **fields,
            )
            for callback in self.callbacks:
                getattr(callback, method)(event)

    def _report_fractions(self, fractions: Sequence[float]) -> None:
        state = self.state
        for fraction in fractions:
            record = FractionRecord(
                fraction=fraction,
                training_loss=state.loss_sum / max(1, state.loss_count),
                seconds=self.seconds,
                steps=state.step,
                saving_seconds=state.saving_seconds,
            )
            self.options.on_fraction(record)
            self._notify("on_checkpoint", CheckpointEvent, fraction=fraction)
        state.loss_sum, state.loss_count = 0.0, 0

    def _validate(self) -> Mapping[str, ValidationScore]:
        """Return the validation scores of the models that still train; log those that diverged."""
        for name, train_state in self.train_states.items():
            if train_state.stopped == "diverged":
                logger.warning(f"{name} is dropped: {train_state.failed}.")
                train_state.stopped = "dropped"
        models = {name: train_state.model.eval() for name, train_state in self.active.items()}
        return self.options.validate(models) if self.options.validate and models else {}

    def _end_epoch(self, train_state: TrainState, score: ValidationScore | None) -> None:
        """Keep the best weights of a model, and stop it where it no longer improves."""
        train_state.losses.append(train_state.loss_sum / max(1, train_state.loss_count))
        train_state.loss_sum, train_state.loss_count = 0.0, 0
        train_state.shared_seconds = self.state.shared_seconds
        if self.options.validate is not None and score is None:
            train_state.stopped = "pruned"
            return
        if score is not None:
            train_state.validation_scores.append(list(score))
            if not train_state.best_epoch or score > train_state.best_score:
                train_state.best_epoch = len(train_state.validation_scores)
                weights = train_state.model.state_dict()
                train_state.best_weights = {key: value.clone() for key, value in weights.items()}
        patience, epochs = train_state.config.patience, len(train_state.validation_scores)
        if patience and train_state.best_epoch and epochs - train_state.best_epoch >= patience:
            train_state.stopped = f"no better for {patience} epochs"
        elif self.state.step >= round(train_state.config.epochs * self.steps_per_epoch):
            train_state.stopped = "finished"


def _step(train_state: TrainState, batch: Batch, loss: Loss, step: int, steps_per_epoch: int) -> float:
    """Take one optimizer step with one model; return its loss."""
    model, config = train_state.model.train(), train_state.config
    for group in train_state.optimizer.param_groups:
        factor = config.rate_factor(step, steps_per_epoch)
        group["lr"] = config.learning_rate * factor * group["lr_scale"]
    total = 0.0
    for part in _split(batch, max(config.gradient_accumulation_steps, _required_parts(model, batch))):
        if not part.total_weight:
            continue
        share = part.total_weight / batch.total_weight
        logits = call_head(model, part.inputs, part.attention_mask, part.text_ids)
        value = _mean_loss(loss, logits, part) * share
        train_state.scaler.scale(value).backward()
        total += float(value.detach())
    total = distributed.average_gradients(model, batch.total_weight, total)
    if not math.isfinite(total):
        train_state.failed = f"its loss became {total} at step {step + 1}; a smaller learning rate may help"
        train_state.stopped = "diverged"
        return 0.0
    if all(p.grad is None for p in model.parameters()):  # every row of the batch has the weight 0
        return 0.0
    if config.max_grad_norm:
        train_state.scaler.unscale_(train_state.optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    train_state.scaler.step(train_state.optimizer)
    train_state.scaler.update()
    train_state.optimizer.zero_grad()
    train_state.loss_sum += total
    train_state.loss_count += 1
    return total


def _mean_loss(loss: Loss, logits: Tensor | list[Any], batch: Batch) -> Tensor:
    """Return the loss of a model's logits; the mean loss where a model returns several."""
    if isinstance(logits, list):
        return torch.stack([_mean_loss(loss, member, batch) for member in logits]).mean()
    weights = () if batch.weights is None else (batch.weights,)
    return loss(logits.float(), batch.labels, batch.attention_mask, *weights)


def _required_parts(model: nn.Module, batch: Batch) -> int:
    """Return the number of parts that bounds the memory of a step on a CPU; batch norm must see the whole batch."""
    is_states = isinstance(batch.inputs, Tensor)
    has_batch_norm = any(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    if not is_states or has_batch_norm or batch.attention_mask.device.type != "cpu":
        return 1
    return -(-batch.attention_mask.numel() // MAX_TOKENS)


def _split(batch: Batch, parts: int) -> list[Batch]:
    """Split a batch by rows. A process of several may have no rows of the last batch, and gets no part."""
    if parts == 1 and len(batch.labels):
        return [batch]
    size = max(1, -(-len(batch.labels) // parts))
    return [batch.rows_between(start, start + size) for start in range(0, len(batch.labels), size)]
