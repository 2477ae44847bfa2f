"""Weights of rows in the training loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_training import OPTIM, ROWS, TOKENS, WIDTH, Probe, States, weights
from torch import nn

from bertvision.computed_states import ComputedStates
from bertvision.states import BatchPlan, InMemoryStates, RowTable, Store, StoredStates, TokenBatches
from bertvision.states import write as write_store
from bertvision.tasks import SquadTask, TextTask
from bertvision.training import STOPPED, Callback, FitOptions, TrainingConfig, fit, loop
from bertvision.types import Batch, Features, StateView

CLASSES = TextTask(name="t", summary="", texts=("text",), classes=("a", "b"), metrics=("accuracy",))
SCORES = TextTask(name="t", summary="", texts=("text",), classes=(), metrics=("pearson",))
SPANS = SquadTask(name="s", summary="", answerable=False)
ANSWERABLE = SquadTask(name="s", summary="", answerable=True)
PLAIN = TrainingConfig(learning_rate=1e-2, epochs=2, weight_decay=0.0)


class WeightedStates(States):
    """The states with weights of rows, in one batch per epoch: repeated rows then stay in the batch of their row."""

    def __init__(self, row_weights=None, repeats=None, size: int = ROWS):
        super().__init__(size=size)
        self.row_weights, self.repeats = row_weights, repeats

    def epoch(self, number, start=0):
        for batch in super().epoch(number, start):
            if self.repeats is not None:
                chosen = np.repeat(np.arange(len(batch.rows)), self.repeats[batch.rows])
                yield replace(
                    batch,
                    rows=batch.rows[chosen],
                    inputs=batch.inputs[chosen],
                    attention_mask=batch.attention_mask[chosen],
                    labels=batch.labels[chosen],
                )
            elif self.row_weights is not None:
                yield replace(batch, weights=torch.from_numpy(self.row_weights[batch.rows]).float())
            else:
                yield batch


def trained(states, optim=PLAIN, task=CLASSES):
    model = Probe()
    return fit({"a": model}, states, task.loss, {"a": optim}, FitOptions())["a"]


def random_case(task, rows: int = 6):
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(TOKENS) < torch.tensor([6, 3, 5, 2, 6, 4])[:, None]
    if task is SPANS:
        return torch.randn(rows, TOKENS, 2, generator=generator), torch.randint(0, 2, (rows, 2)), mask
    if task is SCORES:
        return torch.randn(rows, 1, generator=generator), torch.randn(rows, generator=generator), mask
    return torch.randn(rows, 2, generator=generator), torch.randint(0, 2, (rows,), generator=generator), mask


@pytest.mark.parametrize("task", [CLASSES, SCORES, SPANS, ANSWERABLE], ids=["classes", "scores", "spans", "answerable"])
def test_a_weight_counts_as_repetitions_in_the_loss(task):
    repeats = torch.tensor([2, 0, 1, 3, 1, 0])
    case = random_case(task)
    repeated = task.loss(*(values.repeat_interleave(repeats, dim=0) for values in case))
    torch.testing.assert_close(task.loss(*case, repeats.float()), repeated)
    torch.testing.assert_close(task.loss(*case, torch.ones(6)), task.loss(*case))


@pytest.mark.parametrize("parts", [1, 3])
def test_a_weight_counts_as_repetitions_in_training(parts):
    repeats = np.random.default_rng(0).integers(0, 4, ROWS)
    weighted = trained(WeightedStates(row_weights=repeats), replace(PLAIN, gradient_accumulation_steps=parts))
    repeated = trained(WeightedStates(repeats=repeats))
    torch.testing.assert_close(weights(weighted.model), weights(repeated.model), atol=1e-5, rtol=1e-4)
    assert weighted.losses == pytest.approx(repeated.losses, abs=1e-5)
    assert not torch.allclose(weights(weighted.model), weights(trained(WeightedStates()).model), atol=1e-3)


def test_weights_are_exact_where_batches_are_split_to_save_memory(monkeypatch):
    row_weights = np.random.default_rng(0).random(ROWS) * np.repeat([0, 1], ROWS // 2)
    whole = trained(WeightedStates(row_weights, size=10), OPTIM)
    monkeypatch.setattr(loop, "MAX_TOKENS", 3 * TOKENS)
    parts = trained(WeightedStates(row_weights, size=10), OPTIM)
    torch.testing.assert_close(weights(whole.model), weights(parts.model), atol=1e-5, rtol=1e-4)


def test_batches_of_weight_zero_change_nothing():
    model = Probe()
    before = weights(model).clone()
    train_state = fit({"a": model}, WeightedStates(np.zeros(ROWS), size=8), CLASSES.loss, {"a": OPTIM})["a"]
    assert torch.equal(weights(model), before) and not train_state.failed


def test_several_logits_are_weighted_alike():
    """A model that returns several logits in training, as an ensemble does."""

    class Twice(Probe):
        def forward(self, hidden, mask):
            logits = super().forward(hidden, mask)
            return [logits, logits] if self.training else logits

    row_weights = np.random.default_rng(0).random(ROWS)
    once, twice = Probe(), Twice()
    for model in (once, twice):
        fit({"a": model}, WeightedStates(row_weights), CLASSES.loss, {"a": PLAIN})
    torch.testing.assert_close(weights(once), weights(twice))


def features(row_weights) -> Features:
    lengths = np.array([3, 5, 2, 4])
    return Features(
        ids=list("abcd"),
        tokens={"input_ids": np.arange(14)},
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        labels=np.array([0, 1, 0, 1]),
        example_ids=list("abcd"),
        weights=row_weights,
    )


class Embedding(nn.Module):
    """An encoder of one layer that is as small as an encoder can be."""

    num_layers = 1

    def forward(self, inputs, attention_mask, text_ids=None, *, cross_layers, bi_layers):
        return inputs["input_ids"][:, None, :, None].float().expand(-1, 1, -1, WIDTH)

    def packed(self):
        return torch.no_grad()


def test_every_source_of_batches_passes_weights_by_row(tmp_path):
    row_weights = np.array([0.5, 2.0, 0.0, 1.0])
    split, view = features(row_weights), StateView(cross_layers=(0,), num_layers=1)
    tokens = TokenBatches(split, 3, {}, seed=0)
    computed = ComputedStates(Embedding(), tokens, view)
    row_table = RowTable(lengths=split.lengths, labels=split.labels, ids=split.ids, weights=split.weights)
    write_store(tmp_path / "store", ComputedStates(Embedding(), TokenBatches(split, 3, {}), view), row_table, {}, WIDTH)
    store = Store(tmp_path / "store", 1)
    assert store.row_table.weights is None  # the hidden states of rows do not depend on their weights
    hidden = [torch.zeros(1, length, WIDTH) for length in split.lengths]
    plan = BatchPlan(split.lengths, 3, seed=0)
    sources = [tokens, computed, InMemoryStates(hidden, row_table, plan)]
    sources += [StoredStates(store, plan, threads=threads, weights=row_weights) for threads in (0, 2)]
    for source in sources:
        batches = list(source.epoch(0))
        assert sorted(np.concatenate([batch.rows for batch in batches]).tolist()) == [0, 1, 2, 3]
        for batch in batches:
            assert batch.weights.dtype == torch.float32 and batch.weights.tolist() == row_weights[batch.rows].tolist()
    store.close()


def test_weights_of_examples_become_weights_of_their_rows():
    split = replace(features(None), example_ids=["x", "y", "x", "y"])
    assert split.weights is None
    weighted = split.with_weights({"x": 0.5, "y": 2, "unused": 7})
    assert weighted.weights.dtype == np.float32 and weighted.weights.tolist() == [0.5, 2.0, 0.5, 2.0]


def test_a_training_stopped_among_rows_of_weight_zero_is_evaluated():
    class StopAtOnce(Callback):
        def should_stop(self):
            return True

    options = FitOptions(validate=lambda models: {"a": (1.0, 0.0)}, callbacks=[StopAtOnce()])
    states = WeightedStates(np.zeros(ROWS), size=8)
    train_state = fit({"a": Probe()}, states, CLASSES.loss, {"a": OPTIM}, options)["a"]
    assert train_state.stopped == STOPPED and train_state.validation_scores == [[1.0, 0.0]]


def test_batches_keep_weights_when_they_are_moved_and_split():
    batch = Batch(
        rows=np.arange(3),
        inputs=torch.zeros(3, 1, 2, 2),
        attention_mask=torch.ones(3, 2).bool(),
        labels=torch.zeros(3),
        weights=torch.tensor([0.5, 0.0, 2.0]),
    )
    assert batch.total_weight == 2.5 and replace(batch, weights=None).total_weight == 3
    part = batch.to(torch.device("cpu")).rows_between(1, 3)
    assert part.weights.tolist() == [0.0, 2.0] and part.total_weight == 2.0
