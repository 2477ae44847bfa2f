"""Callbacks that pass the progress of training on: to callbacks of transformers, and to experiment trackers.

The trackers are optional packages. They are imported when a callback is created.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bertvision.errors import BertVisionError
from bertvision.training import Callback, CheckpointEvent, EpochEvent, EvaluateEvent, StepEvent, TrainingEvent

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainingArguments


class TransformersCallback(Callback):
    """Passes the events of training on to a `TrainerCallback` of transformers, and stops training when it asks for it.

    Each stage (fine-tuning, training of heads) is one training for the callback. Logs hold "loss" and "learning_rate",
    metrics of evaluations "eval_score" and "eval_loss". Where several models are trained at once, these are the mean
    loss, the mean learning rate and the best model's evaluation, and "eval_score_<model>" is the score of each model.
    Callbacks receive no model, optimizer or data loader, and `control` can only stop the training.

    Args:
        callback: The callback, or its class.
        args: The training arguments that the callback sees. By default the best model has the highest score, as
            `EarlyStoppingCallback` needs it, and every tenth step is logged.

    >>> from transformers import EarlyStoppingCallback
    >>> callback = TransformersCallback(EarlyStoppingCallback(early_stopping_patience=2))
    """

    def __init__(
        self, callback: "TrainerCallback | type[TrainerCallback]", args: "TrainingArguments | None" = None
    ) -> None:
        from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

        self.callback: TrainerCallback = callback() if isinstance(callback, type) else callback
        if not isinstance(self.callback, TrainerCallback):
            raise BertVisionError(
                f"TransformersCallback takes a transformers.TrainerCallback, got a {type(self.callback).__name__}. "
                "Subclasses of bertvision.Callback are used as they are."
            )
        self.args: TrainingArguments = args or TrainingArguments(
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="score",
            greater_is_better=True,
            logging_steps=10,
            report_to="none",
        )
        self.state = TrainerState()
        self.control: Any = TrainerControl()
        self._losses: list[float] = []

    def on_train_begin(self, event: TrainingEvent) -> None:
        """Begin a training of the callback."""
        from transformers import TrainerControl, TrainerState
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

        self._handler = CallbackHandler([DefaultFlowCallback(), self.callback], None, None, None, None)
        self.state, self.control, self._losses = TrainerState(max_steps=event.total_steps), TrainerControl(), []
        self.state.compute_steps(self.args, event.total_steps)
        self._call("on_train_begin", event)
        self._call("on_epoch_begin", event)
        self._call("on_step_begin", event)

    def on_step(self, event: StepEvent) -> None:
        """End a step, and log the mean loss at every `args.logging_steps`-th step."""
        if event.losses:  # empty if every model diverged
            self._losses.append(fmean(event.losses.values()))
        self._call("on_step_end", event)
        if self.control.should_log and self._losses:
            rate = fmean(event.learning_rates.values()) if event.learning_rates else 0.0
            self._log(event, {"loss": fmean(self._losses), "learning_rate": rate})
            self._losses = []
        if event.step < event.total_steps:
            self._call("on_step_begin", event)

    def on_evaluate(self, event: EvaluateEvent) -> None:
        """Log the metrics of an evaluation, and remember the best one, as the Trainer does."""
        score, negated_loss = max(event.validation_scores.values())
        metrics = {"eval_score": score, "eval_loss": -negated_loss}
        if len(event.validation_scores) > 1:
            metrics |= {f"eval_score_{name}": values[0] for name, values in event.validation_scores.items()}
        self._log(event, metrics)
        self._call("on_evaluate", event, metrics=metrics)
        name = self.args.metric_for_best_model or ""
        value, best = metrics.get(name if name.startswith("eval_") else f"eval_{name}"), self.state.best_metric
        if value is not None and (best is None or (value > best if self.args.greater_is_better else value < best)):
            self.state.best_metric, self.state.best_global_step = value, event.step

    def on_epoch(self, event: EpochEvent) -> None:
        """End an epoch of the callback, and begin the next."""
        self._call("on_epoch_end", event)
        if event.step < event.total_steps:
            self._call("on_epoch_begin", event)

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """Report a save."""
        self._call("on_save", event)

    def on_train_end(self, event: TrainingEvent) -> None:
        """End the training of the callback."""
        self._log(event, {"train_runtime": event.seconds})
        self._call("on_train_end", event)

    def should_stop(self) -> bool:
        """Return whether the callback has set `control.should_training_stop`."""
        return self.control.should_training_stop

    def _call(self, method: str, event: TrainingEvent, **arguments: Any) -> None:
        """Bring the state up to date, and call a method of the callback."""
        self.state.global_step, self.state.epoch = event.step, event.epoch
        if event.step:
            self.state.num_train_epochs = math.ceil(event.total_steps * event.epoch / event.step)
        self.control = getattr(self._handler, method)(self.args, self.state, self.control, **arguments)

    def _log(self, event: TrainingEvent, logs: dict[str, float]) -> None:
        logs = logs | {"epoch": event.epoch}
        self.state.log_history.append(logs | {"step": event.step})
        self._call("on_log", event, logs=logs)


class TrackerCallback(Callback):
    """Base class of callbacks that record metrics. A subclass implements `log`.

    The names of metrics are "<stage>/<quantity>/<model>", e.g. "heads/validation_score/default". The quantities are
    "loss" and "learning_rate" of steps, "epoch_loss", "validation_score" and "validation_loss".

    Args:
        log_every: Record every this many steps.
    """

    def __init__(self, log_every: int = 1) -> None:
        if log_every < 1:
            raise BertVisionError(f"log_every must be 1 or more, got {log_every}.")
        self.log_every = log_every

    @abstractmethod
    def log(self, metrics: dict[str, float], event: TrainingEvent) -> None:
        """Record metrics of `event.step` in `event.stage`."""

    def close(self) -> None:
        """End the recording. A callback records several stages and trainings, so training does not end it."""

    def on_step(self, event: StepEvent) -> None:
        """Record losses and learning rates."""
        if event.step % self.log_every == 0 or event.step == event.total_steps:
            self._log(event, {"loss": event.losses, "learning_rate": event.learning_rates})

    def on_evaluate(self, event: EvaluateEvent) -> None:
        """Record validation scores."""
        scores = {name: score for name, (score, _) in event.validation_scores.items()}
        losses = {name: -negated_loss for name, (_, negated_loss) in event.validation_scores.items()}
        self._log(event, {"validation_score": scores, "validation_loss": losses})

    def on_epoch(self, event: EpochEvent) -> None:
        """Record the mean losses of an epoch."""
        self._log(event, {"epoch_loss": event.losses})

    def _log(self, event: TrainingEvent, quantities: Mapping[str, Mapping[str, float]]) -> None:
        metrics = {
            f"{event.stage}/{quantity}/{model}": value
            for quantity, values in quantities.items()
            for model, value in values.items()
        }
        self.log(metrics, event)


class TensorBoardCallback(TrackerCallback):
    """Writes metrics as scalars of TensorBoard, which `tensorboard --logdir` shows.

    Args:
        log_dir: The directory of the event files.
        log_every: Record every this many steps.
    """

    def __init__(self, log_dir: str | Path, log_every: int = 1) -> None:
        super().__init__(log_every)
        require_package("tensorboard", "torch.utils.tensorboard", self)
        self.log_dir = log_dir
        self._writer: Any = None

    def on_train_begin(self, event: TrainingEvent) -> None:
        """Open the event file."""
        if self._writer is None:
            self._writer = import_module("torch.utils.tensorboard").SummaryWriter(str(self.log_dir))

    def log(self, metrics: dict[str, float], event: TrainingEvent) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, event.step)

    def on_train_end(self, event: TrainingEvent) -> None:
        """Write everything to disk."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file. Another training opens a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbCallback(TrackerCallback):
    """Records metrics in a run of Weights & Biases. `close`, or the end of the process, finishes the run.

    Args:
        log_every: Record every this many steps.
        **init: Arguments of `wandb.init`, e.g. project, name, config, mode.
    """

    def __init__(self, *, log_every: int = 1, **init: Any) -> None:
        super().__init__(log_every)
        require_package("wandb", "wandb", self)
        self.init = init
        self._run: Any = None

    def on_train_begin(self, event: TrainingEvent) -> None:
        """Start the run, and plot the metrics of a stage over its steps."""
        if self._run is None:
            self._run = import_module("wandb").init(**self.init)
        self._run.define_metric(f"{event.stage}/step")
        self._run.define_metric(f"{event.stage}/*", step_metric=f"{event.stage}/step")

    def log(self, metrics: dict[str, float], event: TrainingEvent) -> None:
        """Record metrics."""
        self._run.log(metrics | {f"{event.stage}/step": event.step})

    def close(self) -> None:
        """Finish the run. Another training starts a new one."""
        if self._run is not None:
            self._run.finish()
            self._run = None


class TrackioCallback(TrackerCallback):
    """Records metrics in a run of trackio. `close`, or the end of the process, finishes the run.

    Args:
        log_every: Record every this many steps.
        **init: Arguments of `trackio.init`, of which `project` is required.
    """

    def __init__(self, *, log_every: int = 1, **init: Any) -> None:
        super().__init__(log_every)
        require_package("trackio", "trackio", self)
        if "project" not in init:
            raise BertVisionError('TrackioCallback needs the name of a project: TrackioCallback(project="my-project").')
        self.init = init
        self._run: Any = None

    def on_train_begin(self, event: TrainingEvent) -> None:
        """Start the run."""
        if self._run is None:
            self._run = import_module("trackio").init(**self.init)

    def log(self, metrics: dict[str, float], event: TrainingEvent) -> None:
        """Record metrics."""
        self._run.log(metrics, step=event.step)

    def close(self) -> None:
        """Finish the run. Another training starts a new one."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def require_package(package: str, module: str, callback: Callback) -> None:
    """Raise an error unless the `module` of a package can be imported."""
    problem = "it is not installed"
    try:
        # A directory of that name in the working directory, such as the one that wandb writes, has no `__file__`.
        if getattr(import_module(module), "__file__", None):
            return
    except ImportError as error:
        problem = str(error)
    raise BertVisionError(
        f"{type(callback).__name__} needs the package {package}, which cannot be imported: {problem}. Install it with "
        f"`pip install {package}`."
    )
