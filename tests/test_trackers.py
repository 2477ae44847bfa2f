"""Adapters of callbacks: real callbacks of transformers, and real trackers where they are installed."""

import json
import sqlite3
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from bertvision import distributed
from bertvision.errors import BertVisionError
from bertvision.trackers import (
    TensorBoardCallback,
    TrackerCallback,
    TrackioCallback,
    TransformersCallback,
    WandbCallback,
)
from bertvision.training import STOPPED, Callback, Checkpointer, FitOptions, TrainingConfig, fit
from bertvision.types import Batch

ROWS, SIZE = 20, 4


class RandomStates:
    """Five batches of random hidden states per epoch."""

    rows = ROWS

    def __len__(self):
        return ROWS // SIZE

    def epoch(self, number, start=0):
        hidden = torch.randn(ROWS, 1, 2, 4, generator=torch.Generator().manual_seed(0))
        for first in range(start * SIZE, ROWS, SIZE):
            rows = np.arange(first, first + SIZE)
            labels = (hidden[rows, 0, 0, 0] > 0).long()
            yield Batch(
                rows=rows, inputs=hidden[rows], attention_mask=torch.ones(SIZE, 2, dtype=torch.bool), labels=labels
            )


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, hidden, attention_mask):
        return self.layer(hidden[:, 0, 0])


def loss(logits, labels, attention_mask):
    return nn.functional.cross_entropy(logits, labels)


def train(callback, scores=(), epochs=3, names=("a",), **options):
    """Train with these validation scores of the first model after each epoch; other models score 1 less."""
    given = iter(scores)

    def validate(models):
        score = next(given)
        return {name: (score - position, -0.5) for position, name in enumerate(models)}

    configs = dict.fromkeys(names, TrainingConfig(learning_rate=1e-2, epochs=epochs))
    options = {"validate": validate if scores else None, "callbacks": [callback]} | options
    return fit({name: Linear() for name in names}, RandomStates(), loss, configs, FitOptions(**options))


class Recording(TrainerCallback):
    """Records the calls of the methods that transformers documents."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def record(args, state, control, **arguments):
            given = arguments.get("logs") or arguments.get("metrics") or {}
            self.calls.append((name, state.global_step, dict(given)))

        return record


def test_a_trainer_callback_is_driven_as_the_trainer_drives_it():
    recording = Recording()
    args = TrainingArguments(logging_steps=2, report_to="none")
    callback = TransformersCallback(recording, args)
    train(callback, [50.0, 60.0], epochs=2, names=("a", "b"))
    names = [name for name, _, _ in recording.calls if name not in ("on_log", "on_step_begin")]
    epoch = ["on_epoch_begin", *["on_step_end"] * 5, "on_evaluate", "on_epoch_end"]
    assert names == ["on_train_begin", *epoch * 2, "on_train_end"]
    assert [step for name, step, _ in recording.calls if name == "on_step_begin"] == list(range(10))
    logs = [(step, values) for name, step, values in recording.calls if name == "on_log"]
    assert [step for step, values in logs if "loss" in values] == [2, 4, 6, 8, 10]
    assert all(values["loss"] > 0 and values["learning_rate"] >= 0 for _, values in logs if "loss" in values)
    metrics = [values for name, _, values in recording.calls if name == "on_evaluate"]
    assert metrics[1] == {"eval_score": 60.0, "eval_loss": 0.5, "eval_score_a": 60.0, "eval_score_b": 59.0}
    assert "train_runtime" in logs[-1][1]
    state = callback.state
    assert (state.global_step, state.max_steps, state.epoch, state.num_train_epochs) == (10, 10, 2.0, 2)
    assert [entry["step"] for entry in state.log_history if "eval_score" in entry] == [5, 10]


def test_early_stopping_of_transformers_stops_training():
    callback = TransformersCallback(EarlyStoppingCallback(early_stopping_patience=2))
    train_state = train(callback, [50.0, 70.0, 60.0, 70.0, 80.0], epochs=5)["a"]
    assert train_state.stopped == STOPPED and len(train_state.validation_scores) == 4
    assert train_state.best_epoch == 2
    assert (callback.state.best_metric, callback.state.best_global_step) == (70.0, 10)
    again = train(TransformersCallback(EarlyStoppingCallback), [1.0, 2.0, 3.0])["a"]
    assert again.stopped == "finished" and len(again.validation_scores) == 3


def test_each_stage_is_a_training_of_the_callback():
    recording = Recording()
    callback = TransformersCallback(recording)
    train(callback, epochs=1, stage="finetune", fractions=[0.4], on_fraction=lambda record: None)
    train(callback, [50.0], epochs=1)
    names = [name for name, _, _ in recording.calls]
    assert names.count("on_train_begin") == names.count("on_train_end") == 2
    assert [step for name, step, _ in recording.calls if name == "on_save"] == [2]
    assert callback.state.max_steps == 5 and not callback.state.log_history[0].get("stage")


def test_a_callback_of_another_kind_is_refused():
    with pytest.raises(BertVisionError, match="takes a transformers.TrainerCallback, got a Callback"):
        TransformersCallback(Callback())
    with pytest.raises(BertVisionError, match="Wrap a callback of transformers"):
        FitOptions(callbacks=[EarlyStoppingCallback()])


def test_training_arguments_do_not_disturb_the_process_group():
    """`TrainingArguments` resets the state that accelerate keeps for the process."""
    before = (distributed.num_processes(), distributed.is_main_process(), distributed.process_group().device)
    assert TrainingArguments(report_to="none").world_size == 1
    assert (distributed.num_processes(), distributed.is_main_process(), distributed.process_group().device) == before


class Lists(TrackerCallback):
    """A tracker of one's own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rows = []

    def log(self, metrics, event):
        self.rows.append((event.step, metrics))


def test_a_tracker_of_ones_own_receives_named_metrics():
    tracker = Lists(log_every=2)
    train_states = train(tracker, [50.0], epochs=1, names=("a", "b"))
    assert [step for step, metrics in tracker.rows if "heads/loss/a" in metrics] == [2, 4, 5]
    merged = {name: value for _, metrics in tracker.rows for name, value in metrics.items()}
    quantities = ("loss", "learning_rate", "validation_score", "validation_loss", "epoch_loss")
    assert set(merged) == {f"heads/{quantity}/{model}" for quantity in quantities for model in ("a", "b")}
    assert merged["heads/validation_score/b"] == 49.0 and merged["heads/validation_loss/a"] == 0.5
    assert merged["heads/epoch_loss/a"] == train_states["a"].losses[0]
    with pytest.raises(BertVisionError, match="log_every must be 1 or more, got 0"):
        Lists(log_every=0)


@pytest.mark.parametrize(
    ("build", "package"),
    [
        (lambda: TensorBoardCallback("logs"), "tensorboard"),
        (lambda: WandbCallback(project="p"), "wandb"),
        (lambda: TrackioCallback(project="p"), "trackio"),
    ],
)
def test_a_missing_tracker_is_named(build, package, tmp_path, monkeypatch):
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    (tmp_path / package).mkdir()  # a directory of logs is not the package
    with pytest.raises(BertVisionError, match=f"needs the package {package}, which cannot .* `pip install {package}`"):
        build()


@pytest.mark.filterwarnings("default")  # of the tracker and what it imports
@pytest.mark.skipif(not find_spec("tensorboard"), reason="tensorboard is not installed")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = TensorBoardCallback(tmp_path / "logs")
    train(callback, epochs=1, stage="finetune")
    train(callback, [50.0, 60.0], epochs=2)
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()  # also before the file is closed
    assert [(event.step, event.value) for event in events.Scalars("heads/validation_score/a")] == [(5, 50), (10, 60)]
    assert [event.step for event in events.Scalars("finetune/loss/a")] == [1, 2, 3, 4, 5]
    callback.close()


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed")
def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = WandbCallback(project="tests", mode="offline", dir=str(tmp_path))
    train(callback, epochs=1, stage="finetune")
    train(callback, [50.0, 60.0], epochs=2)
    summary = dict(callback._run.summary)
    assert summary["heads/validation_score/a"] == 60.0 and summary["heads/step"] == 10
    assert summary["finetune/step"] == 5
    callback.close()
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not find_spec("trackio"), reason="trackio is not installed")
def test_trackio(tmp_path, monkeypatch):
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path)
    with pytest.raises(BertVisionError, match="needs the name of a project"):
        TrackioCallback()
    callback = TrackioCallback(project="tests", embed=False)
    train(callback, [50.0, 60.0], epochs=2)
    callback.close()
    database = next(tmp_path.rglob("*.db"))
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select step, metrics from metrics order by step").fetchall()
    scores = [(step, json.loads(metrics).get("heads/validation_score/a")) for step, metrics in rows]
    assert [(step, score) for step, score in scores if score is not None] == [(5, 50.0), (10, 60.0)]


def test_the_saved_state_is_reported_as_a_save(tmp_path, monkeypatch):
    from bertvision.training import checkpointer

    monkeypatch.setattr(checkpointer, "MIN_SECONDS", -1.0)
    recording = Recording()
    options = FitOptions(callbacks=[TransformersCallback(recording)])
    configs = {"a": TrainingConfig(learning_rate=1e-2, epochs=1)}
    fit({"a": Linear()}, RandomStates(), loss, configs, options, Checkpointer(tmp_path / "resume.safetensors"))
    assert [step for name, step, _ in recording.calls if name == "on_save"][0] == 1
