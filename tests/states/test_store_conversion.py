import pytest
from fakes import IDENTITY, Made, files

from bertvision.errors import BertVisionError
from bertvision.lab.store_conversion import convert
from bertvision.lab.store_maintenance import verify_store
from bertvision.states import FORMATS, BatchPlan, StoredStates
from bertvision.types import StateView

WHOLE = StateView(cross_layers=(0, 1, 2, 3), pooler_output=True)
LENGTHS = [5, 30, 1, 17, 64, 2, 9, 9, 40, 3]


class Part(Made):
    """The same random states, seen through a smaller view: what a backbone would give for it."""

    def __init__(self, view):
        super().__init__([1] * len(LENGTHS) if view.first_token_only else LENGTHS, view, 33)
        self.whole = Made(LENGTHS, WHOLE, 33)

    def state(self, row):
        channels = [*self.view.cross_layers, *([4] if self.view.pooler_output else [])]
        return self.whole.state(row)[channels][:, : int(self.lengths[row])]


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A store that has lost nothing."""
    identity = IDENTITY | {"pooler": "p"}
    return Made(LENGTHS, WHOLE, 33).write(tmp_path_factory.mktemp("exact") / "s", type="float32", identity=identity)


@pytest.mark.parametrize("type", FORMATS)
@pytest.mark.parametrize(
    "view",
    [
        WHOLE,
        StateView(cross_layers=(1, 3)),
        StateView(cross_layers=(2,), pooler_output=True),
        StateView(cross_layers=(0, 3), pooler_output=True, first_token_only=True),
    ],
    ids=["everything", "layers", "a layer and pooled", "first tokens"],
)
def test_converting_float32_equals_writing_directly(exact, tmp_path, type, view):
    made = convert(exact, tmp_path / "made", type=type, view=view)
    direct = Part(view).write(
        tmp_path / "direct", type=type, identity=IDENTITY | ({"pooler": "p"} if view.pooler_output else {})
    )
    assert files(made.path) == files(direct.path)
    assert [wrong for _, wrong in verify_store(made) if wrong] == []


def test_converting_to_the_same_is_a_copy(exact, tmp_path):
    assert files(convert(exact, tmp_path / "copy").path) == files(exact.path)


def damaged(store, path, at):
    """A copy with one byte changed in its last shard."""
    copy = convert(store, path)
    shard = sorted(copy.path.glob("*.states"))[-1]
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)
    return copy


def test_a_damaged_store_is_not_converted_and_a_sound_one_goes_on_from_there(exact, tmp_path):
    whole = convert(exact, tmp_path / "whole", type="int8")
    row = exact.layout.bounds[-1][0]
    with pytest.raises(BertVisionError, match=f"row {row} .* is damaged"):
        convert(damaged(exact, tmp_path / "copy", at=0), tmp_path / "made", type="int8")
    begun = files(tmp_path / "made")
    assert "unfinished.json" in begun and "manifest.json" not in begun and "00000.states" in begun
    assert files(convert(exact, tmp_path / "made", type="int8").path) == files(whole.path)


def test_conversions_that_cannot_be_are_refused(exact, tmp_path):
    small = convert(exact, tmp_path / "small", view=StateView(cross_layers=(0, 2), first_token_only=True))
    for view, text in (
        (
            StateView(cross_layers=(0, 1), first_token_only=True),
            r"cross-encoded layers it holds \[0, 2\], but not \[1\]",
        ),
        (StateView(cross_layers=(0,)), "holds only the first token"),
        (StateView(cross_layers=(0,), pooler_output=True, first_token_only=True), "does not hold the pooler output"),
    ):
        with pytest.raises(BertVisionError, match=text):
            convert(small, tmp_path / "no", view=view)
    before = files(exact.path)
    for path in (exact.path, exact.path.parent / "x" / ".." / "s"):
        with pytest.raises(BertVisionError, match="in place"):
            convert(exact, path, type="int4")
    with pytest.raises(BertVisionError, match="Did you mean 'int4'"):
        convert(exact, tmp_path / "no", type="int44")
    with pytest.raises(BertVisionError, match="type is float32 instead of int4"):
        convert(exact, small.path, type="int4", view=small.view)
    assert not (tmp_path / "no").exists() and files(exact.path) == before


def test_a_conversion_is_read_like_its_source(exact, tmp_path):
    view = StateView(cross_layers=(1, 2), first_token_only=True)
    made = convert(exact, tmp_path / "made", view=view)
    plan = BatchPlan(exact.row_table.lengths, 3, seed=0)
    for one, other in zip(StoredStates(exact, plan, view).epoch(0), StoredStates(made, plan).epoch(0), strict=True):
        assert (one.inputs == other.inputs).all() and (one.attention_mask == other.attention_mask).all()
        assert (one.labels == other.labels).all()
