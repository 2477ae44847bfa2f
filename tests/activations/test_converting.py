import pytest
from made import IDENTITY, Made, files

from bertvision.activations import FORMATS, Plan, Stored, convert
from bertvision.errors import BertVisionError
from bertvision.types import View

WHOLE = View(layers=(0, 1, 2, 3), pooled=True)
LENGTHS = [5, 30, 1, 17, 64, 2, 9, 9, 40, 3]


class Part(Made):
    """The same random states, seen through a smaller view: what a backbone would give for it."""

    def __init__(self, view):
        super().__init__([1] * len(LENGTHS) if view.first else LENGTHS, view, 33)
        self.whole = Made(LENGTHS, WHOLE, 33)

    def state(self, row):
        channels = [*self.view.layers, *([4] if self.view.pooled else [])]
        return self.whole.state(row)[channels][:, : int(self.lengths[row])]


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A store that has lost nothing."""
    identity = IDENTITY | {"pooler": "p"}
    return Made(LENGTHS, WHOLE, 33).write(tmp_path_factory.mktemp("exact") / "s", type="float32", identity=identity)


@pytest.mark.parametrize("type", FORMATS)
@pytest.mark.parametrize(
    "view",
    [WHOLE, View(layers=(1, 3)), View(layers=(2,), pooled=True), View(layers=(0, 3), pooled=True, first=True)],
    ids=["everything", "layers", "a layer and pooled", "first tokens"],
)
def test_converting_float32_equals_writing_directly(exact, tmp_path, type, view):
    made = convert(exact, tmp_path / "made", type=type, view=view)
    direct = Part(view).write(
        tmp_path / "direct", type=type, identity=IDENTITY | ({"pooler": "p"} if view.pooled else {})
    )
    assert files(made.path) == files(direct.path)
    assert [wrong for _, wrong in made.verify() if wrong] == []


def test_converting_to_the_same_is_a_copy(exact, tmp_path):
    assert files(convert(exact, tmp_path / "copy").path) == files(exact.path)


def test_converting_goes_on_where_it_was_stopped(exact, tmp_path):
    whole, cut = (convert(exact, tmp_path / name, type="int8") for name in ("whole", "cut"))
    (cut.path / "manifest.json").rename(tmp_path / "moved")
    begun = tmp_path / "begun"
    with pytest.raises(BertVisionError):  # a begun store, by the same hand
        convert(_Failing(exact), begun, type="int8")
    (cut.path / "unfinished.json").write_bytes((begun / "unfinished.json").read_bytes())
    (cut.path / "00001.states").unlink()
    assert files(convert(exact, cut.path, type="int8").path) == files(whole.path)


class _Failing:
    """A store whose disk fails."""

    def __init__(self, store):
        self.__dict__.update(vars(store))
        self.lacks, self.advise = store.lacks, store.advise

    def bytes_of(self, rows):
        raise BertVisionError("gone")


def test_conversions_that_cannot_be_are_refused(exact, tmp_path):
    small = convert(exact, tmp_path / "small", view=View(layers=(0, 2), first=True))
    for view, text in (
        (View(layers=(0, 1), first=True), r"layers \[0, 2\] are there, \[1\] are not"),
        (View(layers=(0,)), "only the first token is there"),
        (View(layers=(0,), pooled=True, first=True), "pooled .* is not there"),
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


def test_a_damaged_store_is_not_converted(exact, tmp_path):
    copy = convert(exact, tmp_path / "copy")
    shard = copy.path / "00000.states"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    with pytest.raises(BertVisionError, match="row 0 .* is damaged"):
        convert(copy, tmp_path / "made", type="int8")
    assert not (tmp_path / "made" / "manifest.json").exists()


def test_a_conversion_is_read_like_its_source(exact, tmp_path):
    view = View(layers=(1, 2), first=True)
    made = convert(exact, tmp_path / "made", view=view)
    plan = Plan(exact.known.lengths, 3, seed=0)
    for one, other in zip(Stored(exact, plan, view).epoch(0), Stored(made, plan).epoch(0), strict=True):
        assert (one.inputs == other.inputs).all() and (one.mask == other.mask).all()
        assert (one.labels == other.labels).all()
