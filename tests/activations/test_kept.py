import pytest
import torch
from test_streamed import stream
from test_tokens import PAD, features

from bertvision.activations import Kept, Streamed, Tokens, choose, keep
from bertvision.errors import BertVisionError


def test_kept_equals_streamed(tiny):
    _, _, streamed = stream(tiny, pooled=True)
    shuffled = Tokens(streamed.tokens.features, 3, PAD, seed=4)
    again = Streamed(streamed.backbone, shuffled, pool=streamed.pool)
    kept = Kept(keep(streamed), shuffled)
    assert len(kept) == len(again) and kept.rows == again.rows
    for number in (0, 1):
        for one, other in zip(kept.epoch(number), again.epoch(number), strict=True):
            assert torch.equal(one.mask, other.mask) and torch.equal(one.labels, other.labels)
            assert one.rows.tolist() == other.rows.tolist()
            real = one.mask[:, None, :, None]
            torch.testing.assert_close(one.inputs * real, other.inputs * real, atol=1e-5, rtol=1e-4)


def test_states_are_the_same_to_the_last_bit_each_time(tiny):
    _, _, streamed = stream(tiny)
    assert torch.equal(keep(streamed), keep(streamed))


def test_choice(tiny, monkeypatch):
    _, _, streamed = stream(tiny)
    tokens = Tokens(features([3, 4]), 2, PAD, seed=0)
    assert isinstance(choose("auto", streamed, streamed.tokens, 4, 32), Kept)
    assert isinstance(choose("stream", streamed, tokens, 4, 32), Streamed)
    monkeypatch.setattr("bertvision.activations.kept.MEMORY", 10)
    assert isinstance(choose("auto", streamed, tokens, 4, 32), Streamed)
    with pytest.raises(BertVisionError, match="Did you mean 'stream'"):
        choose("steam", streamed, tokens, 4, 32)
    with pytest.raises(BertVisionError, match="of memory are free"):
        choose("memory", streamed, tokens, 10**9, 10**9)
