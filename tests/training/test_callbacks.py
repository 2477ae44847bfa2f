import math
import threading
from dataclasses import FrozenInstanceError

import pytest
import torch
from test_training import OPTIM, Probe, States, loss, save_always, validation_scores, weights

from bertvision.errors import BertVisionError
from bertvision.training import (
    STOPPED,
    Callback,
    Cancellation,
    Checkpointer,
    FitOptions,
    TrainingConfig,
    fit,
)


class Recorder(Callback):
    """Records the name and the event of every call; stops at a step."""

    def __init__(self, stop_at: int = -1):
        self.calls: list[tuple[str, object]] = []
        self.stop_at = stop_at

    def on_train_begin(self, event):
        self.calls.append(("train_begin", event))

    def on_step(self, event):
        self.calls.append(("step", event))

    def on_evaluate(self, event):
        self.calls.append(("evaluate", event))

    def on_epoch(self, event):
        self.calls.append(("epoch", event))

    def on_checkpoint(self, event):
        self.calls.append(("checkpoint", event))

    def on_train_end(self, event):
        self.calls.append(("train_end", event))

    def should_stop(self):
        return self.calls[-1][1].step == self.stop_at

    def events(self, name):
        return [event for kind, event in self.calls if kind == name]


def train(callbacks=(), models=None, states=None, resume=None, **options):
    models = models or {"a": Probe(0.2, 1), "b": Probe(0.0, 2)}
    configs = dict.fromkeys(models, OPTIM)
    options = {"validate": validation_scores(States(seed=1)), "seed": 3} | options
    options = FitOptions(callbacks=callbacks, **options)
    return fit(models, states or States(), loss, configs, options, Checkpointer(resume, "x") if resume else None)


def test_events_of_a_whole_training():
    recorder = Recorder()
    train_states = train([recorder])
    epoch = ["step"] * 5 + ["evaluate", "epoch"]
    assert [kind for kind, _ in recorder.calls] == ["train_begin", *epoch * 3, "train_end"]
    steps, epochs = recorder.events("step"), recorder.events("epoch")
    assert [event.step for event in steps] == list(range(1, 16)) and {event.total_steps for event in steps} == {15}
    assert {event.stage for _, event in recorder.calls} == {"heads"}
    assert [event.epoch for event in epochs] == [1.0, 2.0, 3.0] and steps[1].epoch == 0.4
    for name, train_state in train_states.items():
        assert [event.losses[name] for event in epochs] == train_state.losses
        assert [list(event.validation_scores[name]) for event in recorder.events("evaluate")] == (
            train_state.validation_scores
        )
        step_losses = [event.losses[name] for event in steps]
        assert math.isclose(sum(step_losses[:5]) / 5, train_state.losses[0])
    rates = [event.learning_rates["a"] for event in steps]
    assert rates == [1e-2 * OPTIM.rate_factor(step, 5) for step in range(15)]
    seconds = [event.seconds for _, event in recorder.calls]
    assert seconds == sorted(seconds) and seconds[-1] > 0


def test_callbacks_do_not_change_the_result():
    plain, followed = train(), train([Recorder()])
    for name in plain:
        assert torch.equal(weights(plain[name].model), weights(followed[name].model))


def test_events_are_immutable():
    recorder = Recorder()
    train([recorder])
    with pytest.raises(FrozenInstanceError):
        recorder.calls[0][1].step = 5


def test_checkpoints_of_fractions_and_of_the_training_state(tmp_path, monkeypatch):
    save_always(monkeypatch)
    recorder, file = Recorder(), tmp_path / "resume.safetensors"
    train([recorder], resume=file, fractions=[0.4, 3.0], stage="finetune", validate=None)
    checkpoints = recorder.events("checkpoint")
    assert [event.step for event in checkpoints if event.fraction is not None] == [2, 15]
    assert [event.step for event in checkpoints if event.path == file] == list(range(1, 15))
    assert {event.stage for event in checkpoints} == {"finetune"} and not recorder.events("evaluate")


@pytest.mark.parametrize("stop_at", [1, 3, 5, 7])
def test_a_stopped_training_keeps_the_best_weights_so_far(stop_at):
    recorder = Recorder(stop_at)
    kept = {}

    def validate(models):
        kept[len(kept) + 1] = {name: weights(model).clone() for name, model in models.items()}
        return validation_scores(States(seed=1))(models)

    train_states = train([recorder], validate=validate)
    assert [event.step for event in recorder.events("step")] == list(range(1, stop_at + 1))
    assert recorder.calls[-1][0] == "train_end" and len(recorder.events("evaluate")) == 1
    for name, train_state in train_states.items():
        assert train_state.stopped == STOPPED and not train_state.failed
        assert len(train_state.validation_scores) == len(train_state.losses) == train_state.best_epoch == 1
        assert torch.equal(weights(train_state.model), kept[1][name]) and not train_state.model.training


@pytest.mark.parametrize("stop_at", [2, 7, 10])
def test_a_stopped_training_can_be_resumed_to_the_result_of_an_undisturbed_one(tmp_path, monkeypatch, stop_at):
    save_always(monkeypatch)
    undisturbed = train()
    file = tmp_path / "resume.safetensors"
    train([Recorder(stop_at)], resume=file)
    recorder = Recorder()
    resumed = train([recorder], resume=file)
    assert recorder.events("train_begin")[0].step == stop_at - 1  # the state is saved after a step, not at the stop
    for name in undisturbed:
        assert torch.equal(weights(undisturbed[name].model), weights(resumed[name].model))
        assert undisturbed[name].validation_scores == resumed[name].validation_scores


def test_stopped_fine_tuning_reports_the_fraction_that_it_reached():
    records = []
    options = {"fractions": [0.4, 3.0], "on_fraction": records.append, "validate": None}
    train([Recorder(stop_at=3)], **options)
    assert [(record.fraction, record.steps) for record in records] == [(0.4, 2), (0.6, 3)]
    records.clear()
    train([Recorder(stop_at=2)], **options)
    assert [record.fraction for record in records] == [0.4]


def test_cancellation_from_another_thread():
    cancellation, reached = Cancellation(), threading.Event()

    class Signal(Callback):
        def on_step(self, event):
            reached.set()
            if event.step == 2:
                canceller.join()  # so that the test does not depend on the speed of the thread

    canceller = threading.Thread(target=lambda: (reached.wait(), cancellation.cancel()))
    canceller.start()
    recorder = Recorder()
    train_states = train([Signal(), cancellation, recorder])
    assert recorder.events("step")[-1].step <= 2
    assert {train_state.stopped for train_state in train_states.values()} == {STOPPED}


def test_an_exception_propagates_and_leaves_the_saved_state(tmp_path, monkeypatch):
    save_always(monkeypatch)

    class Failing(Callback):
        def on_step(self, event):
            if event.step == 8:
                raise ZeroDivisionError("of the user")

    undisturbed, file = train(), tmp_path / "resume.safetensors"
    with pytest.raises(ZeroDivisionError, match="of the user"):
        train([Failing()], resume=file)
    recorder = Recorder()
    resumed = train([recorder], resume=file)
    assert recorder.events("step")[0].step == 8
    for name in undisturbed:
        assert torch.equal(weights(undisturbed[name].model), weights(resumed[name].model))


def test_models_that_diverge_or_finish_leave_the_events():
    class Bad(Probe):
        def forward(self, hidden, mask):
            return super().forward(hidden, mask) * math.nan

    recorder = Recorder()
    configs = {"bad": OPTIM, "short": TrainingConfig(learning_rate=1e-2, epochs=1), "long": OPTIM}
    models = {"bad": Bad(), "short": Probe(), "long": Probe()}
    options = FitOptions(validate=validation_scores(States()), callbacks=[recorder])
    fit(models, States(), loss, configs, options)
    names = [set(event.losses) for event in recorder.events("step")]
    assert names == [{"short", "long"}] * 5 + [{"long"}] * 10


@pytest.mark.parametrize("wrong", [Recorder, print, {"on_step": print}])
def test_what_is_no_callback_is_refused(wrong):
    with pytest.raises(BertVisionError, match="must be instances of subclasses of bertvision.Callback, got"):
        FitOptions(callbacks=[wrong])
    with pytest.raises(BertVisionError, match="must be a list of callbacks, got a Recorder"):
        FitOptions(callbacks=Recorder())
