"""Names, options and exact sizes."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from bertvision.cli.options import split_specs
from bertvision.errors import BertVisionError
from bertvision.heads import (
    DEFAULT_HEADS,
    HEADS,
    TOKEN_POOLINGS,
    HeadConfig,
    LayerSelect,
    build_for_view,
    build_head,
    count_parameters,
    default_head,
    options_of,
    register_head,
    required_view,
    resolve_heads,
    select_layers,
    upgrade_state_dict,
)
from bertvision.heads.config import COMMON_OPTIONS, WRAPPER_OPTIONS
from bertvision.types import HeadShape, StateView

BERT_LARGE = 335_141_888
SPAN = HeadShape(num_layers=25, max_tokens=386, hidden_size=1024, num_outputs=2, per_token=True)
SENTENCE = HeadShape(num_layers=26, max_tokens=386, hidden_size=1024, num_outputs=1, per_token=False)


def count(spec: str, shape: HeadShape) -> tuple[int, int]:
    return count_parameters(HeadConfig.parse(spec), shape)


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("learned", 2_076),
        ("mean", 2_050),
        ("adapter", 68_802),
        ("adapter-skip", 70_850),
        ("adapter-independent", 1_643_202),
        ("adapter-independent-skip", 1_645_250),
        ("adapter-386", 414_952),
        ("adapter-386-skip", 417_000),
        ("adapter-386-independent", 9_910_552),
        ("adapter-386-independent-skip", 9_912_600),
        ("adapter:size=386", 414_952),
        ("adapter-386:size=64", 68_802),
        ("learned-adapter-386-skip", 398_498),
    ],
)
def test_published_sizes_of_span_heads(spec, parameters):
    assert count(spec, SPAN) == (parameters, parameters)


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ("adapter-386-skip-learned", 809_000, 813_000),
        ("cnn-1xn", 330_000, 334_000),
        ("cnn-1xn-dropout", 330_000, 334_000),
        ("cnn-1xn-dilated", 403_000, 408_000),
        ("learned-cnn-1xn", 310_000, 314_000),
        ("mean-cnn-1xn", 310_000, 314_000),
        ("learned-adapter-386-cnn-1xn", 692_000, 696_000),
        ("learned-adapter-386-cnn-nxn", 1_110_000, 1_115_000),
        ("learned-adapter-386-inception", 0.019935 * BERT_LARGE, 0.019945 * BERT_LARGE),
        ("learned-adapter-386-xception", 0.019695 * BERT_LARGE, 0.019705 * BERT_LARGE),
    ],
)
def test_budgets_of_span_heads_whose_filters_are_lost(spec, low, high):
    assert low <= count(spec, SPAN)[0] <= high


@pytest.mark.parametrize(
    ("spec", "parameters", "trainable"),
    [
        ("learned", 2_077, 2_077),
        ("learned-adapter-386-skip", 398_499, 398_499),
        ("mean-adapter-386-skip", 398_472, 398_472),
        ("xception-small", 267_010, 264_066),
        ("xception-small-skip", 269_058, 266_114),
        ("xception", 20_716_634, 20_662_106),
    ],
)
def test_published_sizes_of_sentence_heads(spec, parameters, trainable):
    shape = HeadShape(num_layers=26, max_tokens=386, hidden_size=1024, num_outputs=2, per_token=False)
    assert count(spec, shape) == (parameters, trainable)


@pytest.mark.parametrize(
    ("layers", "width", "outputs", "parameters"),
    [(13, 768, 2, 524_418), (13, 768, 3, 737_411), (13, 768, 1, 311_425), (25, 1024, 2, 950_402)],
)
def test_published_sizes_of_adapter_pooler(layers, width, outputs, parameters):
    shape = HeadShape(num_layers=layers, max_tokens=128, hidden_size=width, num_outputs=outputs, per_token=False)
    assert count("adapter-pooler", shape)[0] == parameters


@pytest.mark.parametrize(("layers", "width", "parameters"), [(13, 768, 305_282), (25, 1024, 412_802)])
def test_published_sizes_of_adapter_pooler_for_spans(layers, width, parameters):
    shape = HeadShape(num_layers=layers, max_tokens=384, hidden_size=width, num_outputs=2, per_token=True)
    assert count("adapter-pooler", shape)[0] == parameters


def test_specifications_are_parsed_and_written_one_way():
    config = HeadConfig.parse("adapter:layers=0,6,12,size=8")
    assert config == HeadConfig("adapter", size=8, layers="0,6,12")
    assert (config.name, dict(config.given)) == ("adapter", {"layers": "0,6,12", "size": 8})
    assert config.options == options_of("adapter") | {"layers": "0,6,12", "size": 8}
    assert str(HeadConfig.parse("adapter: token_pooling=max,size=8")) == "adapter:size=8,token_pooling=max"
    assert str(HeadConfig.parse("learned:pooler_output=True")) == "learned:pooler_output=true"
    assert str(HeadConfig("learned")) == "learned"


def test_configurations_are_values():
    config = HeadConfig.parse("adapter:pooler_output=true,size=8,token_pooling=max")
    assert str(config.last_layer_only()) == "adapter:layers=last,size=8,token_pooling=max"
    assert str(config.replace(size=4, norm=True)) == "adapter:norm=true,pooler_output=true,size=4,token_pooling=max"
    assert HeadConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config and eval(repr(config)) == config
    assert len({config, HeadConfig.parse(str(config)), config.replace(size=9)}) == 2
    with pytest.raises(FrozenInstanceError):
        config.name = "mean"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("adapter:gather=max+all,copies=3", "adapter:members=3,token_pooling=max+flatten"),
        ("adapter:texts=apart,gather=max", "adapter:encoding=bi,token_pooling=max"),
        ("adapter:texts=together,start=0.05", "adapter:encoding=cross,init_std=0.05"),
        ("adapter:texts=both,gather=mean", "adapter:encoding=both,token_pooling=mean"),
        ("learned:pooled=true,layers=all", "learned:layers=all,pooler_output=true"),
    ],
)
def test_option_names_of_the_previous_version(old, new):
    assert str(HeadConfig.parse(old)) == new


def test_weights_of_the_previous_version():
    head = build_head(
        "adapter:layers=last2,members=2,size=4,token_pooling=attention+max", replace(SPAN, per_token=False)
    )
    new = head.state_dict()
    names = {"members": "copies", "adapter": "adapt", "token_pooling": "gather", "poolings": "gathers"}
    names |= {"classifier": "read", "layer_pooling": "pool"}
    old = {".".join(names.get(part, part) for part in key.split(".")): value for key, value in new.items()}
    assert "head.copies.1.gather.gathers.0.score.weight" in old and "head.copies.0.read.bias" in old
    assert upgrade_state_dict(old, new).keys() == new.keys()
    assert upgrade_state_dict({"read.weight": 1}) == {"classifier.weight": 1}
    assert upgrade_state_dict({"read.weight": 1}, {"read.weight"}) == {"read.weight": 1}  # a part of a user's own head


def test_lists_of_heads():
    assert split_specs("learned,adapter:layers=0,6,size=8,token_pooling=max,mean") == [
        "learned",
        "adapter:layers=0,6,size=8,token_pooling=max",
        "mean",
    ]
    assert set(split_specs("adapter*")) == {name for name in HEADS if name.startswith("adapter")}
    assert set(split_specs("all")) == set(HEADS) - {"bert-head"}


def test_the_recommended_head_of_a_kind_of_task_is_called_default():
    for kind in DEFAULT_HEADS:
        default = HeadConfig.parse("default", kind)
        assert default == default_head(kind) and default.label(kind) == "default"
        assert HeadConfig.parse("default:layers=last", kind) == default.last_layer_only()
        for config in (default, default.last_layer_only(), HeadConfig("learned"), HeadConfig("adapter", size=7)):
            assert HeadConfig.parse(config.label(kind), kind) == config
    assert HeadConfig("learned").label("pair") == "learned"
    assert split_specs("default,adapter:size=8,layers=1,2") == ["default", "adapter:size=8,layers=1,2"]
    assert resolve_heads([], "text") == [*DEFAULT_HEADS["text"].values()] and len(DEFAULT_HEADS["text"]) == 3
    assert resolve_heads(["default", str(default_head("text"))], "text") == [default_head("text")]
    assert str(HeadConfig.parse("last")) == "bert-head"
    with pytest.raises(BertVisionError, match="depends on the kind of task"):
        HeadConfig.parse("default")


@pytest.fixture
def registry():
    """Forget what a test registers."""
    names = set(HEADS)
    yield
    for name in set(HEADS) - names:
        HEADS.unregister(name)


@pytest.mark.usefixtures("registry")
def test_registered_heads():
    @register_head("first-token")
    class FirstToken(torch.nn.Module):
        """A linear map of the first token."""

        def __init__(self, shape: HeadShape, bias: bool = True, scale: float = 1.0):
            super().__init__()
            self.read = torch.nn.Linear(shape.hidden_size, shape.num_outputs, bias=bias)
            self.scale = scale

        def forward(self, hidden, attention_mask):
            return self.read(hidden[:, -1, 0]) * self.scale

    @register_head("with-options", "a builder that passes options on")
    def build(shape, size=4, **anything):
        return HEADS["adapter"].build(shape, size=size, **anything)

    assert HEADS["first-token"].summary == "A linear map of the first token."
    config = HeadConfig.parse("first-token:scale=2,members=2,bias=false,layers=last")
    assert str(config) == "first-token:bias=false,layers=last,members=2,scale=2.0"
    assert count_parameters(config, SENTENCE)[0] == 2 * 1024
    assert options_of("with-options") == COMMON_OPTIONS | {"size": 4} | WRAPPER_OPTIONS
    assert count("with-options:token_pooling=max", SENTENCE) == count("adapter:size=4,token_pooling=max", SENTENCE)
    for name in ("first-token", "default", "a:b", ""):
        with pytest.raises(BertVisionError, match="already registered|cannot name"):
            register_head(name)


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
        ("adapter:token_pooling=maximum", "Unknown token_pooling"),
        ("adapter:gather", "form name:option=value"),
        ("adapter:layers=9", "do not exist"),
        ("adapter:layers=first", "not understood"),
        ("learned:pooler_output=true", "pooled"),
        ("adapter:members=0", "members from 1 to"),
        ("adapter:members=1000000", "members from 1 to"),
    ],
)
def test_mistakes_get_a_sentence(spec, words):
    with pytest.raises(BertVisionError, match=words):
        count(spec, HeadShape(num_layers=4, max_tokens=8, hidden_size=8, num_outputs=2, per_token=False))


def masks(*rows):
    """Attention mask and text ids of rows in which 1 and 2 are tokens of the first and second text, 0 is padding."""
    texts = torch.tensor(rows)
    return texts > 0, texts == 2


def test_comparing_tells_two_texts_apart_and_leaves_one_alone():
    gather = TOKEN_POOLINGS["compare"](SENTENCE, 2)
    x = torch.tensor([[3.0, 4.0], [1.0, 2.0], [0.0, 5.0], [9.0, 9.0]]).expand(3, 4, 2).clone().requires_grad_()
    found = gather(x, *masks([1, 1, 2, 0], [1, 2, 2, 2], [1, 1, 1, 0]))
    u, v = torch.tensor([0.6, 0.8]), torch.tensor([0.0, 1.0])  # the largest, of length 1; then of mean square 1
    torch.testing.assert_close(found[0, :4], torch.cat([(u - v).abs() * 2**0.5, u * v * 2]))
    u, v = torch.tensor([2.0, 3.0]) / 13**0.5, torch.tensor([0.0, 1.0])  # the means
    torch.testing.assert_close(found[0, 4:], torch.cat([(u - v).abs() * 2**0.5, u * v * 2]))
    u, v = torch.tensor([0.6, 0.8]), torch.tensor([9.0, 9.0]) / 162**0.5
    torch.testing.assert_close(found[1, :4], torch.cat([(u - v).abs() * 2**0.5, u * v * 2]))
    assert not found[2].any()
    found.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and not x.grad[2].any()


def test_aligning_finds_what_one_text_lacks():
    gather = TOKEN_POOLINGS["align"](SENTENCE, 3)
    a, b, c = torch.eye(3)
    x = torch.stack([torch.stack(row) for row in ([a, b, a, c], [a, b, b, a], [a, 5 * b, c, c])]).requires_grad_()
    found = gather(x, *masks([1, 1, 2, 0], [1, 1, 2, 2], [1, 1, 1, 0]))
    # The first text has b, which the second lacks; beside its like, a, it differs in both. The second lacks little.
    e = torch.tensor(-24.0).exp()
    torch.testing.assert_close(found[0, :3], torch.tensor([1.0, 1.0, 0.0]) * 3**0.5)
    torch.testing.assert_close(found[0, 3:], torch.tensor([1.0, 1.0, 0.0]) * e / (1 + e) * 3**0.5)
    assert found[1].max() < 0.001  # the same words in another order
    assert not found[2].any()
    swapped = gather(x[:1, [2, 0, 1, 3]], *masks([1, 2, 2, 0]))
    torch.testing.assert_close(swapped, found[:1].roll(3, dims=1))
    found.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and not x.grad[2].any()


def test_copies_begin_apart_and_their_mean_answers():
    shape = HeadShape(num_layers=4, max_tokens=8, hidden_size=8, num_outputs=3, per_token=False)
    torch.manual_seed(0)
    head = build_head("adapter:layers=last2,members=3,size=4,token_pooling=max", shape)
    hidden, mask = torch.randn(5, 4, 6, 8), torch.ones(5, 6, dtype=torch.bool)
    each = head.train()(hidden, mask)
    assert len(each) == 3 and not torch.equal(each[0], each[1])
    torch.testing.assert_close(head.eval()(hidden, mask), (each[0] + each[1] + each[2]) / 3)
    assert count("adapter:members=3,size=4", shape)[0] == 3 * count("adapter:size=4", shape)[0]


PAIR = HeadShape(num_layers=5, max_tokens=16, hidden_size=8, num_outputs=2, per_token=False, bi_encoding=True)


def test_heads_find_the_layers_of_texts_read_apart():
    hidden, mask = torch.randn(3, 10, 6, 8), masks(*[[1, 1, 1, 2, 2, 2]] * 3)
    for texts, layers in (("cross", slice(5, 10)), ("bi", slice(0, 5))):
        head = build_head(f"adapter:size=4,token_pooling=max,encoding={texts}", PAIR).eval()
        plain = build_head("adapter:size=4,token_pooling=max", replace(PAIR, bi_encoding=False)).eval()
        plain.load_state_dict({key.removeprefix("head."): value for key, value in head.state_dict().items()})
        assert torch.equal(head(hidden, *mask), plain(hidden[:, layers], *mask))
    last = build_head("adapter:encoding=bi,layers=last,size=4,token_pooling=max", PAIR)
    assert isinstance(last, LayerSelect) and last.selection == StateView(bi_layers=(4,))


def test_a_head_of_both_readings_is_one_of_each():
    hidden, mask = torch.randn(3, 10, 6, 8), masks(*[[1, 1, 1, 2, 2, 2]] * 3)
    spec = "adapter:encoding=both,members=2,size=4,token_pooling=max+compare"
    head = build_head(spec, PAIR)
    assert (
        count(spec, PAIR)[0]
        == 4 * count("adapter:size=4,token_pooling=max+compare", replace(PAIR, bi_encoding=False))[0]
    )
    assert [len(each) for each in head.train()(hidden, *mask)] == [2, 2]
    answer = head.eval()(hidden, *mask)
    hidden[:, 0] += 1.0  # a layer of the texts read apart
    assert not torch.equal(head(hidden, *mask), answer)
    config = HeadConfig.parse(spec).replace(layers="1,3")
    view = required_view([config], PAIR)
    assert (view.bi_layers, view.cross_layers) == ((1, 3), (1, 3, 4))
    seen = build_for_view(config, PAIR, view).eval()
    whole = build_head(config, PAIR).eval()
    whole.load_state_dict(seen.state_dict())
    among = PAIR.view.positions(view)
    assert among == [1, 3, 6, 8, 9]
    assert torch.equal(seen(hidden[:, among], *mask), whole(hidden, *mask))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("adapter:encoding=bi", "first text only"),
        ("adapter:encoding=beside", "value of encoding"),
        ("learned:encoding=both,pooler_output=true,token_pooling=max", "pooler_output"),
        ("bert-head:encoding=bi", "option of head"),
    ],
)
def test_readings_that_make_no_sense_are_refused(spec, why):
    with pytest.raises(BertVisionError, match=why):
        build_head(spec, PAIR)


def test_states_of_texts_read_together_are_refused():
    with pytest.raises(BertVisionError, match="hold none"):
        build_head("adapter:encoding=bi,token_pooling=max", replace(PAIR, bi_encoding=False))


@pytest.mark.parametrize(
    ("text", "layers", "chosen"),
    [("every2", 7, [0, 2, 4, 6]), ("every2", 4, [1, 3]), ("every3", 13, [0, 3, 6, 9, 12]), ("every9", 4, [3])],
)
def test_every_so_many_layers_down_from_the_last(text, layers, chosen):
    assert select_layers(text, layers) == chosen
    with pytest.raises(BertVisionError, match="not understood"):
        select_layers("every0", layers)
