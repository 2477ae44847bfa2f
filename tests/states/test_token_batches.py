import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertvision.states import TokenBatches
from bertvision.types import Features

PAD = {"input_ids": 99, "token_type_ids": 0}


def features(lengths) -> Features:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = np.arange(offsets[-1], dtype=np.int32)
    return Features(
        ids=[str(i) for i in range(len(lengths))],
        tokens={"input_ids": flat, "token_type_ids": flat % 2},
        offsets=offsets,
        labels=np.arange(len(lengths)),
        example_ids=[str(row) for row in range(len(lengths))],
    )


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=120)


@given(lengths, st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_row_once_and_is_always_the_same(lengths, size, number):
    batches = TokenBatches(features(lengths), size, PAD, seed=7)
    plan = batches.plan(number)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths)))
    assert len(plan) == len(batches) and max(map(len, plan)) <= size
    again = TokenBatches(features(lengths), size, PAD, seed=7).plan(number)
    assert all(np.array_equal(a, b) for a, b in zip(plan, again, strict=True))


@given(lengths, st.integers(1, 9), st.integers(40, 200))
def test_predicting_keeps_to_the_budget(lengths, size, budget):
    batches = TokenBatches(features(lengths), size, PAD, budget=budget)
    seen = []
    for batch in batches.epoch(0):
        assert batch.attention_mask.numel() <= budget and len(batch.rows) <= size
        seen += batch.rows.tolist()
    assert sorted(seen) == list(range(len(lengths)))


@given(lengths, st.integers(1, 9))
def test_rows_survive_padding(lengths, size):
    rows = features(lengths)
    for batch in TokenBatches(rows, size, PAD, seed=1).epoch(0):
        assert batch.attention_mask.any(dim=0).all()  # padded to the longest row, no further
        for i, row in enumerate(batch.rows):
            kept = batch.inputs["input_ids"][i][batch.attention_mask[i] > 0].tolist()
            assert kept == list(range(rows.offsets[row], rows.offsets[row + 1]))
            assert set(batch.inputs["input_ids"][i][batch.attention_mask[i] == 0].tolist()) <= {99}
        assert batch.labels.tolist() == batch.rows.tolist()


def test_start_skips_without_work():
    batches = TokenBatches(features([3] * 20), 4, PAD, seed=0)
    whole = [batch.rows.tolist() for batch in batches.epoch(2)]
    assert [batch.rows.tolist() for batch in batches.epoch(2, start=3)] == whole[3:]


def test_epochs_differ_and_seeds_differ():
    rows = features([5] * 64)
    orders = {tuple(np.concatenate(TokenBatches(rows, 8, PAD, seed=s).plan(e))) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4


def test_buckets_waste_little():
    lengths = np.random.default_rng(0).integers(5, 128, size=2000)
    batches = TokenBatches(features(lengths), 16, PAD, seed=0)
    padded = sum(batch.attention_mask.numel() for batch in batches.epoch(0))
    assert padded / lengths.sum() < 1.05
