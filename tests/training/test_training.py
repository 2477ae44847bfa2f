import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from bertvision.errors import BertVisionError
from bertvision.heads.head_ensemble import HeadEnsemble
from bertvision.prediction import predict
from bertvision.training import (
    Checkpointer,
    FitOptions,
    TrainingConfig,
    checkpointer,
    fit,
    loop,
)
from bertvision.types import Batch

ROWS, TOKENS, WIDTH = 40, 6, 8
OPTIM = TrainingConfig(learning_rate=1e-2, epochs=3, batch_size=8)


class States:
    """Real batches from memory; with `fail_at`, the process "dies" there."""

    def __init__(self, size: int = 8, fail_at: int = -1, seed: int = 0):
        random = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(ROWS, 2, TOKENS, WIDTH, generator=random)
        self.labels = (self.hidden[:, 0, 0, 0] > 0).long()
        self.rows, self.size, self.fail_at, self.served = ROWS, size, fail_at, 0

    def __len__(self) -> int:
        return -(-ROWS // self.size)

    def epoch(self, number, start=0):
        order = np.random.default_rng(number).permutation(ROWS)
        for first in range(start * self.size, ROWS, self.size):
            if self.served == self.fail_at:
                raise Killed
            self.served += 1
            rows = order[first : first + self.size]
            yield Batch(
                rows=rows,
                inputs=self.hidden[rows],
                attention_mask=torch.ones(len(rows), TOKENS).bool(),
                labels=self.labels[rows],
            )


class Killed(Exception):
    pass


class Probe(nn.Module):
    def __init__(self, dropout: float = 0.0, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 2))

    def forward(self, hidden, mask):
        return self.layers(hidden[:, 0, 0])


def loss(logits, labels, mask):
    return nn.functional.cross_entropy(logits, labels)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def validation_scores(states):
    def validate(models):
        found = predict(models, states, [str(i) for i in range(ROWS)])
        labels = states.labels.numpy()
        return {name: (float((p.logits.argmax(1) == labels).mean()), 0.0) for name, p in found.items()}

    return validate


def save_always(monkeypatch):
    monkeypatch.setattr(checkpointer, "MIN_SECONDS", -1.0)
    monkeypatch.setattr(checkpointer, "MAX_SHARE", math.inf)


def test_learns():
    model = Probe()
    train_state = fit({"a": model}, States(), loss, {"a": TrainingConfig(learning_rate=1e-2, epochs=20)})["a"]
    assert train_state.losses[-1] < 0.2 < train_state.losses[0]
    assert len(train_state.losses) == 20 and train_state.stopped == "finished"


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_rate(schedule):
    optim = TrainingConfig(learning_rate=1, epochs=4, warmup_epochs=0.5, schedule=schedule)
    rates = [optim.rate_factor(step, 10) for step in range(40)]
    assert rates[0] == pytest.approx(0.2) and rates[4] == 1.0  # five steps of warm-up
    assert all(0 < r <= 1 for r in rates)
    if schedule == "constant":
        assert set(rates[4:]) == {1.0}
    else:
        assert rates[5:] == sorted(rates[5:], reverse=True) and rates[-1] < 0.05


def test_warmup_does_not_depend_on_the_run_s_length():
    """A fraction is a point on one curve: at a constant rate, a longer run passes through the same weights."""
    points = {}
    for epochs in (1.0, 3.0):
        model = Probe(dropout=0.1)
        optim = TrainingConfig(learning_rate=1e-2, epochs=epochs, schedule="constant")
        fit(
            {"a": model},
            States(),
            loss,
            {"a": optim},
            FitOptions(fractions=[1.0], on_fraction=lambda record, e=epochs, m=model: points.update({e: weights(m)})),
        )
    assert torch.equal(points[1.0], points[3.0])


def test_pauses_report_loss_and_time():
    seen = []
    fit(
        {"a": Probe()},
        States(),
        loss,
        {"a": OPTIM},
        FitOptions(
            fractions=[0, 0.2, 0.4, 1, 3], on_fraction=lambda record: seen.append((record.fraction, record.steps))
        ),
    )
    assert seen == [(0, 0), (0.2, 1), (0.4, 2), (1, 5), (3, 15)]


def test_two_fractions_on_one_step_are_both_kept():
    seen = []
    fit(
        {"a": Probe()},
        States(size=40),
        loss,
        {"a": OPTIM},
        FitOptions(fractions=[0.1, 0.2, 1], on_fraction=lambda record: seen.append((record.fraction, record.steps))),
    )
    assert seen == [(0.1, 1), (0.2, 1), (1, 1)]


def test_accumulation_gives_the_same_gradient():
    whole, pieces = Probe(), Probe()
    fit({"a": whole}, States(), loss, {"a": OPTIM})
    fit(
        {"a": pieces},
        States(),
        loss,
        {"a": TrainingConfig(learning_rate=1e-2, epochs=3, gradient_accumulation_steps=3)},
    )
    torch.testing.assert_close(weights(whole), weights(pieces), atol=1e-5, rtol=1e-4)


class Normed(Probe):
    """Counts the rows that it sees at once."""

    def __init__(self, normed: bool):
        super().__init__()
        self.norm, self.seen = nn.BatchNorm1d(WIDTH) if normed else nn.Identity(), set()

    def forward(self, hidden, mask):
        self.seen |= {len(hidden)}
        return self.layers(self.norm(hidden[:, 0, 0]))


def test_long_batches_of_states_are_learned_in_pieces(monkeypatch):
    """The descent is the same; what a batch norm sees is never cut."""
    whole, pieces, normed = Normed(False), Normed(False), Normed(True)
    fit({"a": whole}, States(), loss, {"a": OPTIM})
    monkeypatch.setattr(loop, "MAX_TOKENS", 3 * TOKENS)
    fit({"a": pieces, "b": normed}, States(), loss, {"a": OPTIM, "b": OPTIM})
    assert (whole.seen, pieces.seen, normed.seen) == ({8}, {2, 3}, {8})
    torch.testing.assert_close(weights(whole), weights(pieces), atol=1e-5, rtol=1e-4)


def test_each_of_several_models_trains_as_if_alone():
    """Learning rate, clipping, early stopping and dropout of a model do not depend on the others."""
    states = States()
    configs = {
        "a": TrainingConfig(learning_rate=1e-2, epochs=6, patience=1),
        "b": TrainingConfig(learning_rate=3e-3, epochs=4, max_grad_norm=0.05),
        "c": TrainingConfig(learning_rate=1e-3, epochs=2),
    }
    make = {"a": lambda: Probe(0.3, 1), "b": lambda: Probe(0.0, 2), "c": lambda: Probe(0.1, 3)}
    together = fit(
        {n: m() for n, m in make.items()}, states, loss, configs, FitOptions(validate=validation_scores(states), seed=5)
    )
    for name, build in make.items():
        alone = fit(
            {name: build()}, states, loss, {name: configs[name]}, FitOptions(validate=validation_scores(states), seed=5)
        )[name]
        assert torch.equal(weights(together[name].model), weights(alone.model))
        assert (
            together[name].validation_scores == alone.validation_scores
            and together[name].best_epoch == alone.best_epoch
        )


def test_a_model_that_answers_several_times_learns_from_each_answer():
    optim = TrainingConfig(learning_rate=1e-2, epochs=2, max_grad_norm=0.0)
    copies = HeadEnsemble([Probe(seed=1), Probe(seed=2)])
    fit({"a": copies}, States(), loss, {"a": optim})
    for seed, copy in zip((1, 2), copies.members, strict=True):
        alone = Probe(seed=seed)
        fit({"a": alone}, States(), loss, {"a": optim})
        torch.testing.assert_close(weights(copy), weights(alone), atol=1e-4, rtol=1e-3)


def test_best_epoch_is_kept():
    given = iter([0.5, 0.9, 0.7, 0.6])
    kept = {}

    def validate(models):
        value = next(given)
        kept[value] = weights(models["a"])
        return {"a": (value, 0.0)}

    train_state = fit(
        {"a": Probe()},
        States(),
        loss,
        {"a": TrainingConfig(learning_rate=1e-2, epochs=9, patience=2)},
        FitOptions(validate=validate),
    )["a"]
    assert (
        train_state.best_epoch == 2 and len(train_state.validation_scores) == 4 and "no better" in train_state.stopped
    )
    assert torch.equal(weights(train_state.model), kept[0.9])


def test_a_diverging_model_is_dropped_the_others_go_on(messages):
    class Bad(Probe):
        def forward(self, hidden, mask):
            return super().forward(hidden, mask) * math.nan

    states = States()
    train_states = fit(
        {"bad": Bad(), "good": Probe()},
        states,
        loss,
        {"bad": OPTIM, "good": OPTIM},
        FitOptions(validate=validation_scores(states)),
    )
    assert train_states["bad"].failed and not train_states["good"].failed and len(train_states["good"].losses) == 3
    assert len(messages) == 1 and "bad is dropped" in messages[0]


@pytest.mark.parametrize("die_at", [1, 4, 5, 6, 11, 14])
def test_resumed_equals_undisturbed(tmp_path, monkeypatch, die_at):
    save_always(monkeypatch)
    checker = States(seed=1)

    def train(states, resume=None):
        models = {"a": Probe(0.2, 1), "b": Probe(0.0, 2)}
        configs = {"a": TrainingConfig(learning_rate=1e-2, epochs=3, patience=1), "b": OPTIM}
        return fit(
            models,
            states,
            loss,
            configs,
            FitOptions(validate=validation_scores(checker), seed=3),
            Checkpointer(resume, "x") if resume else None,
        )

    calm = train(States())
    file = tmp_path / "resume.safetensors"
    with pytest.raises(Killed):
        train(States(fail_at=die_at), file)
    again = States()
    resumed = train(again, file)
    assert again.served < States().__len__() * 3  # what was done before is not repeated
    for name in calm:
        assert torch.equal(weights(calm[name].model), weights(resumed[name].model))
        assert (
            calm[name].losses == resumed[name].losses
            and calm[name].validation_scores == resumed[name].validation_scores
        )


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_state_says_what_to_delete(damage, tmp_path, monkeypatch):
    save_always(monkeypatch)
    file = tmp_path / "resume.safetensors"
    with pytest.raises(Killed):
        fit({"a": Probe()}, States(fail_at=3), loss, {"a": OPTIM}, checkpointer=Checkpointer(file, "one"))
    content = file.read_bytes()
    file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other": save({"x": torch.zeros(1)})}[damage])
    with pytest.raises(BertVisionError, match=f"Delete {file} to start this training from the beginning"):
        fit({"a": Probe()}, States(), loss, {"a": OPTIM}, checkpointer=Checkpointer(file, "one"))
    file.unlink()
    fit({"a": Probe()}, States(), loss, {"a": OPTIM}, checkpointer=Checkpointer(file, "one"))


def test_another_run_s_state_is_refused(tmp_path, monkeypatch):
    save_always(monkeypatch)
    file = tmp_path / "resume.safetensors"
    with pytest.raises(Killed):
        fit({"a": Probe()}, States(fail_at=3), loss, {"a": OPTIM}, checkpointer=Checkpointer(file, "one"))
    with pytest.raises(BertVisionError, match="another training run"):
        fit({"a": Probe()}, States(), loss, {"a": OPTIM}, checkpointer=Checkpointer(file, "two"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BertVisionError, match="not a readable saved training state"):
        fit({"a": Probe()}, States(), loss, {"a": OPTIM}, checkpointer=Checkpointer(file, "one"))


def test_saving_is_spaced_by_its_cost(tmp_path, monkeypatch):
    """However slow the disk, saving takes a bounded share of the time."""
    now = [0.0]
    monkeypatch.setattr(checkpointer.time, "monotonic", lambda: now[0])
    saves: list[float] = []

    def slow_save(*given):
        saves.append(now[0])
        now[0] += 4.0

    monkeypatch.setattr(Checkpointer, "save", slow_save)

    def slow_loss(*given):
        now[0] += 5.0
        return loss(*given)

    configs = {"a": TrainingConfig(learning_rate=1e-3, epochs=60)}
    fit({"a": Probe()}, States(), slow_loss, configs, checkpointer=Checkpointer(tmp_path / "r"))
    gaps = np.diff(saves)
    assert saves[0] <= 30 and len(saves) > 5
    assert (4.0 / gaps <= 0.05).all()


def test_per_token_predictions_come_back_in_order():
    class Echo(nn.Module):
        def forward(self, hidden, mask):
            return hidden[:, 0, :, :2]

    lengths = np.array([3, 1, 5])
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    class Ragged:
        rows = 3

        def __len__(self):
            return 2

        def epoch(self, number, start=0):
            for rows in (np.array([2, 0]), np.array([1])):
                longest = lengths[rows].max()
                mask = torch.arange(longest) < torch.from_numpy(lengths[rows])[:, None]
                hidden = torch.full((len(rows), 1, longest, 2), -1.0)
                for i, row in enumerate(rows):
                    hidden[i, 0, : lengths[row]] = torch.arange(offsets[row], offsets[row + 1])[:, None].float()
                yield Batch(rows=rows, inputs=hidden, attention_mask=mask, labels=torch.zeros(len(rows)))

    found = predict({"echo": Echo()}, Ragged(), ["a", "b", "c"], offsets)["echo"]
    assert found.logits[:, 0].tolist() == list(range(9))
    assert found.row(1)[:, 1].tolist() == [3.0]


def test_state_holds_no_pickle(tmp_path, monkeypatch):
    save_always(monkeypatch)
    file = tmp_path / "resume.safetensors"
    with pytest.raises(Killed):
        fit({"a": Probe()}, States(fail_at=3), loss, {"a": OPTIM}, checkpointer=Checkpointer(file))
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["state"])["loop"]["step"] == 3


def test_what_is_not_graded_stops_there():
    states, models = States(), {"a": Probe(), "b": Probe(seed=1)}

    def validate(train_states):
        found = validation_scores(states)(train_states)
        return {
            name: validation_score
            for name, validation_score in found.items()
            if name == "a" or len(seen) == 0 and not seen.append(1)
        }

    seen: list[int] = []
    train_states = fit(models, states, loss, dict.fromkeys(models, OPTIM), FitOptions(validate=validate))
    assert len(train_states["a"].validation_scores) == 3 and train_states["a"].stopped == "finished"
    assert len(train_states["b"].validation_scores) == 1 and train_states["b"].stopped == "pruned"
    alone = fit({"a": Probe()}, States(), loss, {"a": OPTIM}, FitOptions(validate=validation_scores(states)))["a"]
    assert torch.equal(weights(alone.model), weights(train_states["a"].model))
