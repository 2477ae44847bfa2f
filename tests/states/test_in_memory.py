import torch
from test_computed import stream
from test_token_batches import PAD

from bertvision.states import InMemoryStates, RowTable, TokenBatches, read_into_memory


def test_kept_equals_streamed(tiny):
    _, _, streamed = stream(tiny, pooled=True)
    shuffled = TokenBatches(streamed.tokens.features, 3, PAD, seed=4)
    again = streamed.over(shuffled)
    of = shuffled.features
    rows = RowTable(lengths=of.lengths, labels=of.labels, ids=of.ids, second_text_starts=of.second_text_starts)
    kept = InMemoryStates(read_into_memory(streamed, streamed.tokens.plan), rows, shuffled.plan)
    assert len(kept) == len(again) and kept.rows == again.rows
    for number in (0, 1):
        for one, other in zip(kept.epoch(number), again.epoch(number), strict=True):
            assert torch.equal(one.attention_mask, other.attention_mask) and torch.equal(one.labels, other.labels)
            assert one.rows.tolist() == other.rows.tolist()
            real = (one.attention_mask > 0)[:, None, :, None]
            torch.testing.assert_close(one.inputs * real, other.inputs * real, atol=1e-5, rtol=1e-4)
            assert not (one.inputs * ~real).any()


def test_states_are_the_same_to_the_last_bit_each_time(tiny):
    _, _, streamed = stream(tiny)
    one, other = (read_into_memory(streamed, streamed.tokens.plan) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
