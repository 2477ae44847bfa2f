"""Names, options and exact sizes."""

import pytest

from bertvision.errors import BertVisionError
from bertvision.heads import HEADS, canonical, count, expand, last_layer_only, parse, select_layers
from bertvision.types import Shape

SPAN = Shape(layers=25, tokens=386, width=1024, outputs=2, per_token=True)


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("learned", 2_076),
        ("mean", 2_050),
        ("adapter:size=64", 68_802),
        ("adapter-skip:size=64", 70_850),
        ("adapter-independent:size=64", 1_643_202),
        ("adapter-independent-skip:size=64", 1_645_250),
        ("adapter:size=386", 414_952),
        ("adapter-skip:size=386", 417_000),
        ("adapter-independent:size=386", 9_910_552),
        ("adapter-independent-skip:size=386", 9_912_600),
    ],
)
def test_published_sizes_of_span_heads(spec, parameters):
    assert count(spec, SPAN) == parameters


@pytest.mark.parametrize(
    ("layers", "width", "outputs", "parameters"),
    [(13, 768, 2, 524_418), (13, 768, 3, 737_411), (13, 768, 1, 311_425), (25, 1024, 2, 950_402)],
)
def test_published_sizes_of_adapter_pooler(layers, width, outputs, parameters):
    shape = Shape(layers=layers, tokens=128, width=width, outputs=outputs, per_token=False)
    size = 128 if width == 768 else 128
    assert count(f"adapter:size={size},gather=all", shape) == parameters


def test_options_are_read_and_written_one_way():
    assert parse("adapter:layers=0,6,12,size=8") == ("adapter", {"layers": "0,6,12", "size": 8})
    assert canonical("adapter:size=8,gather=max") == "adapter:gather=max,size=8"
    assert canonical("learned:pooled=True") == "learned:pooled=true"
    assert last_layer_only("adapter:gather=max,pooled=true") == "adapter:gather=max,layers=last"


def test_lists_of_heads():
    assert expand("learned,adapter:size=8,gather=max,layers=0,6,mean") == [
        "learned",
        "adapter:gather=max,layers=0,6,size=8",
        "mean",
    ]
    assert set(expand("adapter*")) == {name for name in HEADS if name.startswith("adapter")}
    assert set(expand("all")) == set(HEADS) - {"last"}


@pytest.mark.parametrize(
    ("text", "expected"), [("all", [0, 1, 2, 3]), ("last", [3]), ("last2", [2, 3]), ("0,3", [0, 3]), ("1-2", [1, 2])]
)
def test_layer_selection(text, expected):
    assert select_layers(text, 4) == expected


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("adaptr", "Did you mean 'adapter'"),
        ("adapter:sizes=3", "Did you mean 'size'"),
        ("adapter:size=big", "must be int"),
        ("adapter:gather=maximum", "Unknown gather"),
        ("adapter:gather", "form name:option=value"),
        ("adapter:layers=9", "do not exist"),
        ("adapter:layers=first", "not understood"),
        ("learned:pooled=true", "pooled"),
    ],
)
def test_mistakes_get_a_sentence(spec, words):
    with pytest.raises(BertVisionError, match=words):
        count(spec, Shape(layers=4, tokens=8, width=8, outputs=2, per_token=False))
