import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertvision.states import BatchPlan


@given(st.integers(1, 700), st.integers(1, 9), st.integers(0, 3))
def test_every_row_occurs_once_and_always_in_the_same_batch(rows, size, number):
    lengths = np.random.default_rng(rows).integers(1, 60, rows)
    plan = BatchPlan(lengths, size, seed=5)
    batches = plan(number)
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    assert len(batches) == len(plan) == -(-rows // size) and max(map(len, batches)) <= size
    again = BatchPlan(lengths, size, seed=5)(number)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_rows_are_shuffled_in_every_epoch_and_sorted_by_length():
    lengths = np.random.default_rng(0).integers(5, 128, size=8000)
    plan = BatchPlan(lengths, 16, seed=0)
    batches = plan(0)
    assert [batch.tolist() for batch in batches] != [batch.tolist() for batch in plan(1)]
    assert sum(len(batch) * lengths[batch].max() for batch in batches) / lengths.sum() < 1.05


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=80), st.integers(1, 9), st.sampled_from([None, 0, 3]), st.data()
)
def test_an_epoch_may_be_some_rows_alone(lengths, size, seed, data):
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))))
    plan = BatchPlan(np.array(lengths), size, seed=seed, chosen=rows)
    for number in range(2):
        batches = plan(number)
        assert len(batches) == len(plan)
        np.testing.assert_array_equal(np.sort(np.concatenate(batches)), rows)
