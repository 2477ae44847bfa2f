"""What several processes get of the batches: together everything, once."""

import numpy as np
import pytest

from bertvision.states import TokenBatches
from bertvision.states.partition import ProcessPartition
from bertvision.types import Features


def tokens(rows: int, batch_size: int, **more) -> TokenBatches:
    lengths = np.random.default_rng(0).integers(1, 9, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    features = Features(
        ids=[str(i) for i in range(rows)],
        tokens={"input_ids": np.arange(offsets[-1])},
        offsets=offsets,
        labels=np.arange(rows),
        example_ids=[str(row) for row in range(rows)],
    )
    return TokenBatches(features, batch_size, {}, **more)


@pytest.mark.parametrize("of", [3, 4, 8])
@pytest.mark.parametrize("start", [0, 3])
def test_rows_of_each_batch_are_dealt_out(of, start):
    whole = tokens(42, 5, seed=1)
    parts = [list(ProcessPartition(whole, rank, of).epoch(2, start)) for rank in range(of)]
    expected = list(whole.epoch(2, start))
    assert {len(part) for part in parts} == {len(expected)}  # all take the same steps
    for step, batch in enumerate(expected):
        mine = [part[step] for part in parts]
        assert sorted(row for each in mine for row in each.rows) == sorted(batch.rows)
        assert max(len(each.rows) for each in mine) - min(len(each.rows) for each in mine) <= 1
        for each in mine:
            assert each.labels.tolist() == each.rows.tolist() and len(each.attention_mask) == len(each.rows)
    # One batch has two rows only; in this epoch it is among the first three.
    assert any(len(each.rows) == 0 for part in parts for each in part) == (start == 0 or of == 8)


@pytest.mark.parametrize("of", [2, 3, 20])
def test_whole_batches_are_dealt_out(of):
    whole = tokens(42, 5, budget=40)
    parts = [list(ProcessPartition(whole, rank, of, whole=True).epoch(0)) for rank in range(of)]
    found = sorted(tuple(batch.rows) for part in parts for batch in part)
    assert found == sorted(tuple(batch.rows) for batch in whole.epoch(0))
