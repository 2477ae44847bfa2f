import threading
from contextlib import nullcontext

import pytest
import torch
from test_token_batches import PAD, features

from bertvision.computed_states import ComputedStates
from bertvision.encoders import load_encoder
from bertvision.heads import BertHead
from bertvision.states import TokenBatches
from bertvision.types import HeadShape, StateView


def stream(tiny, pooled=False):
    loaded = load_encoder(str(tiny))
    encoder = loaded.encoder.eval().requires_grad_(False)
    rows = features([4, 7, 2, 5])
    rows.tokens["input_ids"] %= 50
    last = BertHead(HeadShape(num_layers=4, max_tokens=8, hidden_size=32, num_outputs=2, per_token=False)).eval()
    view = StateView(cross_layers=(0, 1, 2, 3), pooler_output=pooled)
    return encoder, last, ComputedStates(encoder, TokenBatches(rows, 2, PAD, budget=100), view, pool=last.pooler_output)


def test_states_are_the_backbone_s(tiny):
    encoder, _, streamed = stream(tiny)
    for tokens, batch in zip(streamed.tokens.epoch(0), streamed.epoch(0), strict=True):
        assert torch.equal(batch.inputs, encoder(tokens.inputs, tokens.attention_mask))
        assert batch.rows.tolist() == tokens.rows.tolist()
    assert len(streamed) == 2 and streamed.rows == 4


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def test_two_batches_at_a_time_come_in_order(tiny, cores):
    """Each is computed on half of the cores; the second, which waits for none, must not overtake the first."""
    encoder, _, streamed = stream(tiny)
    seen, second = [], threading.Event()

    def slow(inputs, mask, text_ids, **layers):
        seen.append(torch.get_num_threads())
        first = mask.shape[1] == streamed.tokens.collate(streamed.plan(0)[0]).attention_mask.shape[1]
        if first:
            assert second.wait(30), "nobody reads the second batch beside the first"
        else:
            second.set()
        return encoder(inputs, mask, text_ids, **layers)

    slow.packed = encoder.packed
    streamed.encoder = slow
    found = list(streamed.epoch(0))
    assert seen == [cores // 2] * 2 and torch.get_num_threads() == cores
    for tokens, batch in zip(streamed.tokens.epoch(0), found, strict=True):
        assert batch.rows.tolist() == tokens.rows.tolist()
        torch.testing.assert_close(batch.inputs, encoder(tokens.inputs, tokens.attention_mask))


def test_an_error_in_a_reader_reaches_the_caller(tiny, cores):
    _, _, streamed = stream(tiny)

    def broken(inputs, mask, text_ids, **layers):
        raise ValueError("no such layer")

    broken.packed = nullcontext
    streamed.encoder = broken
    with pytest.raises(ValueError, match="no such layer"):
        list(streamed.epoch(0))
    assert torch.get_num_threads() == cores


def test_gradients_stay_on_in_the_caller(tiny):
    """A generator that yields inside no_grad would switch the caller's gradients off while it sleeps."""
    _, _, streamed = stream(tiny)
    for batch in streamed.epoch(0):
        assert torch.is_grad_enabled()
        weight = torch.ones(32, requires_grad=True)
        (batch.inputs @ weight).sum().backward()  # states of inference_mode would refuse this
        assert weight.grad is not None and not batch.inputs.requires_grad


def test_pooled_channel(tiny):
    encoder, last, streamed = stream(tiny, pooled=True)
    for batch in streamed.epoch(0):
        assert batch.inputs.shape[1] == encoder.num_layers + 1
        torch.testing.assert_close(batch.inputs[:, -1, 0], last.pooler_output(batch.inputs[:, -2]))
        assert not batch.inputs[:, -1, 1:].any()


def test_a_view_is_a_part_of_the_states(tiny):
    encoder, last, whole = stream(tiny, pooled=True)
    part = ComputedStates(
        encoder,
        whole.tokens,
        StateView(cross_layers=(1, 3), pooler_output=True, first_token_only=True),
        pool=last.pooler_output,
    )
    for one, other in zip(whole.epoch(0), part.epoch(0), strict=True):
        assert torch.equal(other.inputs, one.inputs[:, [1, 3, 4], :1])
        assert torch.equal(other.attention_mask, one.attention_mask[:, :1]) and other.attention_mask.all()
