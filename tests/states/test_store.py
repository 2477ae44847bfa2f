"""What is written is what is read, whatever the lengths, types, shards, views and order."""

import resource
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import IDENTITY, Made, assert_close, files, place
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.lab.store_maintenance import verify_store
from bertvision.states import FORMATS, BatchPlan, Layout, RowTable, StoredStates, is_store
from bertvision.states.layout import ALIGN, MOST_SHARDS, SHARD, shard_name, view_from_manifest, view_to_manifest
from bertvision.types import StateView

lengths = st.lists(st.integers(1, 40) | st.integers(1, 512), min_size=1, max_size=24)
types = st.sampled_from(list(FORMATS))
shards = st.sampled_from([1, 700, 20_000, SHARD])
layers = st.sets(st.integers(0, 12), min_size=1, max_size=4).map(lambda some: tuple(sorted(some)))
bi_layers = st.sets(st.integers(0, 12), max_size=3).map(lambda some: tuple(sorted(some)))
views = st.builds(
    StateView,
    cross_layers=layers,
    bi_layers=bi_layers,
    pooler_output=st.booleans(),
    first_token_only=st.booleans(),
    num_layers=st.just(13),
)


@st.composite
def parts_of(draw, view: StateView) -> StateView:
    """A view that a store of `view` can serve."""
    cross = draw(st.sets(st.sampled_from(view.cross_layers), min_size=1))
    bi = draw(st.sets(st.sampled_from(view.bi_layers))) if view.bi_layers else set()
    return StateView(
        cross_layers=tuple(sorted(cross)),
        bi_layers=tuple(sorted(bi)),
        pooler_output=view.pooler_output and draw(st.booleans()),
        first_token_only=view.first_token_only or draw(st.booleans()),
    )


@st.composite
def plans(draw, lengths) -> BatchPlan:
    size = draw(st.integers(1, 9))
    kinds = {
        "shuffled": {"seed": draw(st.integers(0, 3))},
        "by length": {},
        "by length, bounded": {"budget": draw(st.integers(1, 2000))},
    }
    return BatchPlan(lengths, size, **kinds[draw(st.sampled_from(list(kinds)))])


def seen(source: Made, row: int, part: StateView) -> torch.Tensor:
    """A row's states as a view of the source's."""
    channels = [source.view.bi_layers.index(layer) for layer in part.bi_layers]
    channels += [len(source.view.bi_layers) + source.view.cross_layers.index(layer) for layer in part.cross_layers]
    channels += [source.view.num_channels - 1] if part.pooler_output else []
    state = source.state(row)[channels]
    return state[:, :1] if part.first_token_only else state


@given(st.data(), lengths, types, shards, views, st.sampled_from([1, 5, 32, 33]), st.integers(1, 9))
@settings(max_examples=120, deadline=None)
def test_every_row_is_read_once_as_it_was_written(data, lengths, type, shard, view, width, size):
    source = Made([1] * len(lengths) if view.first_token_only else lengths, view, width)
    part, plan = data.draw(parts_of(view)), data.draw(plans(source.lengths))
    with place() as folder:
        store = source.write(folder / "s", type=type, shard=shard, batch_size=size)
        assert sorted(source.asked) == list(range(source.rows))
        assert store.row_table.ids == source.row_table.ids and np.array_equal(store.row_table.labels, source.labels)
        found = []
        for batch in StoredStates(store, plan, part).epoch(1):
            tokens = 1 if part.first_token_only else int(source.lengths[batch.rows].max())
            assert batch.inputs.shape == (len(batch.rows), part.num_channels, tokens, width)
            assert batch.labels.tolist() == source.labels[batch.rows].tolist()
            assert (batch.text_ids is None) == (source.second_text_starts is None)
            text_ids = torch.zeros_like(batch.attention_mask) if batch.text_ids is None else batch.text_ids
            texts = batch.attention_mask * (1 + text_ids.long())
            for hidden, text, row in zip(batch.inputs, texts, batch.rows.tolist(), strict=True):
                length = 1 if part.first_token_only else source.lengths[row]
                second = length if source.second_text_starts is None else source.second_text_starts[row]
                assert text.tolist() == [(token < length) * (1 + (token >= second)) for token in range(tokens)]
                assert not hidden[:, length:].any()
                assert_close(type, hidden[:, :length], seen(source, row, part))
                found.append(row)
        assert sorted(found) == list(range(source.rows))
        assert [wrong for _, wrong in verify_store(store) if wrong] == []
        assert sum(rows for rows, _ in verify_store(store)) == store.rows


@given(lengths, types, shards, views, st.integers(1, 40))
@settings(deadline=None)
def test_the_layout_is_the_store(lengths, type, shard, view, width):
    """Sizes are known before anything is computed, rows are aligned, and nothing lies between them."""
    source = Made(lengths, view, width)
    layout = Layout(type=type, view=view, width=width, lengths=source.lengths, shard=shard)
    with place() as folder:
        store = source.write(folder / "s", type=type, shard=shard)
        sizes = {name: len(data) for name, data in files(store.path).items() if name.endswith(".states")}
    assert sizes == {shard_name(n): layout.shard_bytes(n) for n in range(len(layout.bounds))}
    assert sum(sizes.values()) == layout.bytes
    assert sum(each["bytes"] for each in store.manifest["shards"]) == layout.bytes
    ends = [0, *(b for _, b in layout.bounds)]
    assert [a for a, _ in layout.bounds] == ends[:-1] and ends[-1] == len(lengths)
    for first, last in layout.bounds:
        edges = np.cumsum([0, *layout.sizes[first:last]])
        assert (layout.starts[first:last] == edges[:-1]).all() and not (edges % ALIGN).any()
        assert edges[-1] <= max(shard, layout.sizes[first], 2 * layout.bytes / MOST_SHARDS)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=3000) | st.integers(1, 3000).map(lambda n: [9] * n))
@settings(deadline=None)
def test_a_reader_can_keep_all_shards_open(lengths):
    layout = Layout(type="int8", view=StateView(cross_layers=(0,)), width=60, lengths=np.array(lengths), shard=1)
    assert len(layout.bounds) <= MOST_SHARDS


def test_a_thousand_rows_in_the_smallest_shards_are_read_with_few_files():
    source = Made([3] * 1000, StateView(cross_layers=(0,)), 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with place() as folder:
        store = source.write(folder / "s", shard=1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 900), hard))
        try:
            store.advise(np.arange(1000))
            assert (
                sum(len(batch.rows) for batch in StoredStates(store, BatchPlan(source.lengths, 50, seed=0)).epoch(0))
                == 1000
            )
        finally:
            store.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_same_states_make_the_same_files(tmp_path):
    one, other = (Made([5, 9, 2, 7, 30]).write(tmp_path / name) for name in "ab")
    assert files(one.path) == files(other.path) and is_store(one.path)
    assert set(files(one.path)) == {"manifest.json", "rows.safetensors", "00000.states"}


def test_labels_of_every_task_survive(tmp_path):
    for i, labels in enumerate([np.array([1, 0, 2]), np.array([0.5, 4, 2], dtype=np.float32), np.ones((3, 2), int)]):
        source = Made([4, 2, 3])
        source.labels = labels
        batch = next(StoredStates(source.write(tmp_path / str(i)), BatchPlan(source.lengths, 2)).epoch(0))
        assert batch.labels.numpy().dtype == labels.dtype and np.array_equal(batch.labels, labels[batch.rows])


@given(st.lists(st.text(), min_size=1, max_size=9))
def test_any_text_may_be_an_id(ids):
    rows = RowTable(lengths=np.ones(len(ids)), labels=np.zeros(len(ids)), ids=ids)
    again = RowTable.from_bytes(rows.to_bytes())
    assert again.ids == ids and again.to_bytes() == rows.to_bytes()


def test_what_a_store_lacks_is_named(tmp_path):
    store = Made([4, 2], StateView(cross_layers=(1, 2), first_token_only=True)).write(tmp_path / "s")
    assert store.lacks(IDENTITY, store.view) == ""
    wanted = StateView(cross_layers=(0, 2, 3), pooler_output=True)
    text = store.lacks(IDENTITY | {"split": "dev", "encoder": "b" * 64}, wanted)
    assert "split is train instead of dev" in text and "encoder is aaaaaaaa instead of bbbbbbbb" in text
    assert "of the cross-encoded layers it holds [1, 2], but not [0, 3]" in text and "bi-encoded" not in text
    assert "it holds only the first token" in text and "it does not hold the pooler output" in text
    assert "pooler" not in store.lacks({}, replace(wanted, pooler_output=False))
    assert "of the bi-encoded layers it holds none, but not [1]" in store.lacks({}, StateView(bi_layers=(1,)))


@given(views)
def test_a_view_is_read_back_from_a_manifest(view):
    stored = view_to_manifest(view)
    assert view_from_manifest(stored, 13) == view
    guessed = view_from_manifest(stored)  # the number of layers is not in the manifest
    assert view_to_manifest(guessed) == stored and guessed.cross_layers == view.cross_layers
    assert guessed == view or not (12 in view.cross_layers or 0 in view.bi_layers)


def test_bi_encoded_layers_are_stored_below_0():
    view = StateView(cross_layers=(3,), bi_layers=(0, 3), num_layers=4)
    assert view_to_manifest(view) == {"layers": [-4, -1, 3], "pooled": False, "tokens": "all"}
    with pytest.raises(ValueError, match="num_layers"):
        view_to_manifest(replace(view, num_layers=0))
