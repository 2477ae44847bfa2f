import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertvision.states import BatchPlan
from bertvision.states.batch_plan import POOL

plans = given(st.integers(1, 700), st.integers(1, 9), st.integers(1, 300), st.integers(0, 3))


def some_lengths(rows):
    return np.random.default_rng(rows).integers(1, 60, rows)


@plans
def test_blocks_every_row_once_and_always_the_same(rows, size, block, number):
    plan = BatchPlan(some_lengths(rows), size, seed=5, block=block)
    batches = plan(number)
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    assert len(batches) == len(plan) == -(-rows // size) and max(map(len, batches)) <= size
    again = BatchPlan(some_lengths(rows), size, seed=5, block=block)(number)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


@plans
def test_pools_are_whole_blocks(rows, size, block, number):
    """No block is needed again after its pool: what a slow disk has to have at hand at once is one pool."""
    batches = BatchPlan(some_lengths(rows), size, seed=5, block=block)(number)
    block = -(-block // size) * size
    when = np.empty(rows, dtype=int)
    for i, batch in enumerate(batches):
        when[batch] = i
    of_block = np.arange(rows) // block
    spans = sorted((int(when[of_block == b].min()), int(when[of_block == b].max())) for b in range(of_block[-1] + 1))
    pools = [spans[0]]
    for first, last in spans[1:]:
        if first <= pools[-1][1]:
            pools[-1] = (pools[-1][0], max(last, pools[-1][1]))
        else:
            pools.append((first, last))
    for first, last in pools:
        assert sum(map(len, batches[first : last + 1])) <= max(block, size * POOL)


def test_blocks_are_shuffled_in_every_epoch_and_rows_within_their_pool():
    plan = BatchPlan(np.full(4000, 5), 8, seed=1, block=80)
    one, other = plan(0), plan(1)
    assert [b.tolist() for b in one] != [b.tolist() for b in other]
    assert len({row // 80 for row in one[0].tolist()}) > 1  # a batch is not a run of neighbours
    blocks = [{row // 80 for batch in epoch[:POOL] for row in batch.tolist()} for epoch in (one, other)]
    assert blocks[0] != blocks[1] and all(len(found) == 5 for found in blocks)


def test_blocks_are_bucketed_by_length():
    lengths = np.random.default_rng(0).integers(5, 128, size=8000)
    batches = BatchPlan(lengths, 16, seed=0, block=160)(0)
    assert sum(len(b) * lengths[b].max() for b in batches) / lengths.sum() < 1.05


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=80), st.integers(1, 9), st.sampled_from([None, 0, 3]), st.data()
)
def test_an_epoch_may_be_some_rows_alone(lengths, size, seed, data):
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))))
    for block in (0, 4):
        plan = BatchPlan(np.array(lengths), size, seed=seed, block=block, chosen=rows)
        for number in range(2):
            batches = plan(number)
            assert len(batches) == len(plan)
            np.testing.assert_array_equal(np.sort(np.concatenate(batches)), rows)
