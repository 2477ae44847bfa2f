from dataclasses import replace

import numpy as np
import pytest
from test_computed import stream
from test_token_batches import PAD

from bertvision.computed_states import ComputedStates
from bertvision.errors import BertVisionError
from bertvision.pipeline.state_requests import StateRequest, open_states
from bertvision.states import (
    InMemoryStates,
    RowTable,
    StoredStates,
    TokenBatches,
)
from bertvision.types import StateView

IDENTITY = {"encoder": "a", "split": "train"}


def want(tiny, path, **more):
    _, _, streamed = stream(tiny)
    features = streamed.tokens.features
    rows = RowTable(lengths=features.lengths, labels=features.labels, ids=features.ids)
    settings = {"width": 32, "identity": IDENTITY, "type": "int8", "epochs": 5.0} | more
    return StateRequest(source=streamed, rows=rows, path=path / "train", **settings), TokenBatches(
        features, 2, PAD, seed=0
    )


def test_modes(tiny, tmp_path, monkeypatch, messages):
    wanted, tokens = want(tiny, tmp_path)
    assert isinstance(open_states("auto", wanted, tokens), InMemoryStates)
    assert isinstance(open_states("stream", wanted, tokens), ComputedStates)
    monkeypatch.setattr("bertvision.pipeline.state_requests.MEMORY", 10)
    assert isinstance(open_states("store", wanted, tokens), StoredStates)
    assert isinstance(open_states("auto", wanted, tokens), StoredStates)  # it is there now
    assert not messages
    with pytest.raises(BertVisionError, match="Did you mean 'stream'"):
        open_states("steam", wanted, tokens)


def test_auto_measures_and_says_why(tiny, tmp_path, monkeypatch, messages):
    monkeypatch.setattr("bertvision.pipeline.state_requests.MEMORY", 10)
    monkeypatch.setattr("bertvision.pipeline.state_requests.TRIAL", 0.0)
    for rates, kind, word in (((10.0, 100.0), StoredStates, "Storing"), ((100.0, 10.0), ComputedStates, "Streaming")):
        wanted, tokens = want(tiny, tmp_path / word)
        (tmp_path / word).mkdir()
        messages.clear()
        monkeypatch.setattr("bertvision.pipeline.state_requests.measure", lambda *given, rates=rates: rates)
        assert isinstance(open_states("auto", wanted, tokens), kind)
        assert len(messages) == 1 and messages[0].startswith(word) and "examples/s" in messages[0]


def test_the_trial_is_real_and_leaves_nothing(tiny, tmp_path, monkeypatch, messages):
    monkeypatch.setattr("bertvision.pipeline.state_requests.MEMORY", 10)
    wanted, tokens = want(tiny, tmp_path)
    open_states("auto", wanted, tokens)
    assert "examples/s" in messages[0]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".trial")] == []


def test_the_trial_may_be_larger_than_a_shard(tiny, tmp_path, monkeypatch, messages):
    monkeypatch.setattr("bertvision.pipeline.state_requests.MEMORY", 10)
    wanted, tokens = want(tiny, tmp_path)
    wanted = replace(wanted, shard=1)  # instead of hundreds of megabytes of states
    open_states("auto", wanted, tokens)
    assert "examples/s" in messages[0]


def test_a_full_disk_means_streaming(tiny, tmp_path, monkeypatch, messages):
    monkeypatch.setattr("bertvision.pipeline.state_requests.MEMORY", 10)
    wanted, tokens = want(tiny, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 5}))
    assert isinstance(open_states("auto", wanted, tokens), ComputedStates)
    assert "the disk has less free" in messages[0]


def test_memory_that_is_not_there(tiny, tmp_path):
    wanted, tokens = want(tiny, tmp_path, width=10**12)
    with pytest.raises(BertVisionError, match="of memory are free"):
        open_states("memory", wanted, tokens)


def test_a_store_of_other_states_is_refused(tiny, tmp_path):
    wanted, tokens = want(tiny, tmp_path)
    open_states("store", wanted, tokens)
    other, tokens = want(tiny, tmp_path, identity=IDENTITY | {"encoder": "b"})
    with pytest.raises(BertVisionError, match="encoder is a instead of b"):
        open_states("store", other, tokens)


@pytest.mark.parametrize("mode", ["auto", "store"])
def test_few_stored_states_are_read_into_memory_unless_a_store_is_asked_for(tiny, tmp_path, mode):
    wanted, tokens = want(tiny, tmp_path, type="float32")
    wanted.store()
    found, streamed = open_states(mode, wanted, tokens), open_states("stream", wanted, tokens)
    assert isinstance(found, InMemoryStates if mode == "auto" else StoredStates)
    for one, other in zip(found.epoch(0), streamed.epoch(0), strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        np.testing.assert_allclose(
            (one.inputs * (one.attention_mask > 0)[:, None, :, None]).numpy(),
            (other.inputs * (other.attention_mask > 0)[:, None, :, None]).numpy(),
            atol=1e-5,
        )


def beside(wanted, name, **more):
    """A store of the same states in the directory of the one that is wanted."""
    return replace(wanted, path=wanted.path.with_name(name), **more).store()


def test_a_neighbour_with_more_than_is_wanted_is_used(tiny, tmp_path):
    wanted, tokens = want(tiny, tmp_path)
    more = beside(wanted, "more")
    source = ComputedStates(
        wanted.source.encoder, wanted.source.tokens, StateView(cross_layers=(1, 3), first_token_only=True)
    )
    less = replace(wanted, source=source)
    found = less.find_store()
    assert found is not None and found.path == more.path
    other = replace(less, identity=IDENTITY | {"encoder": "b"})
    assert other.find_store() is None
    pooled = replace(
        wanted, source=ComputedStates(source.encoder, source.tokens, StateView(cross_layers=(1,), pooler_output=True))
    )
    assert pooled.find_store() is None


def test_of_two_neighbours_the_one_of_the_type_asked_for_is_used(tiny, tmp_path):
    wanted, _ = want(tiny, tmp_path)
    for type in ("bfloat16", "int8", "int4"):
        beside(wanted, f"train-{type}", type=type)
    for type in ("bfloat16", "int8", "int4"):
        found = replace(wanted, type=type).find_store()
        assert found is not None and found.layout.type == type


def test_neighbours_that_are_no_stores_are_left_alone(tiny, tmp_path):
    wanted, _ = want(tiny, tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text('{"name": "my web app"}')
    assert wanted.find_store() is None
