"""Whatever is in HEADS is held to this, on both output shapes, with every gather."""

from dataclasses import replace

import pytest
import torch

from bertvision.heads import HEADS, TOKEN_POOLINGS, build_head, set_training_precision, training_dtype
from bertvision.types import HeadShape, call_head

SPAN = HeadShape(num_layers=5, max_tokens=12, hidden_size=16, num_outputs=2, per_token=True)
SENTENCE = replace(SPAN, num_outputs=3, per_token=False)


def small(name: str, more: str = "") -> str:
    """Name a head with an adapter small enough to test quickly; the sizes of the paper are tested as counts."""
    options = [each for each in ("size=24" if "386" in name else "", more) if each]
    return f"{name}:{','.join(options)}" if options else name


# Gathers are tried with a few heads, all heads with two gathers: the parts do not know of one another.
CASES = [(small(name), SPAN) for name in HEADS]
CASES += [("bert-head", SENTENCE), ("adapter-pooler", SENTENCE)]
PAIRS = ("compare", "align")  # which say nothing of a text that is alone
TRIED = [f"max+{gather}" if gather in PAIRS else gather for gather in TOKEN_POOLINGS]
CASES += [(f"{name}:token_pooling={g}", SENTENCE) for name in ("learned", "adapter-skip") for g in TRIED]
CASES += [
    (small(name, f"token_pooling={g}"), SENTENCE) for name in HEADS if name != "bert-head" for g in ("cls", "max")
]
CASES += [("adapter:norm=true,init_std=0.05,token_pooling=cls+mean+max", SENTENCE), ("adapter-skip:norm=true", SPAN)]
CASES += [
    ("adapter:layers=last,token_pooling=max", SENTENCE),
    ("adapter:layers=0,2,4", SPAN),
    ("learned:layers=last2", SPAN),
]
CASES += [
    ("learned:pooler_output=true", replace(SENTENCE, pooler_output=True)),
    ("learned", replace(SENTENCE, pooler_output=True)),
]
CASES += [
    ("adapter:members=3,token_pooling=max+compare+align", SENTENCE),
    ("adapter-skip:layers=last3,members=2", SPAN),
]
CASES += [(f"{name}:end_given_start=true", SPAN) for name in ("bert-head", "adapter-skip", "question-attention")]
CASES = list(dict.fromkeys(CASES))
IDS = [f"{n}-{'span' if s.per_token else 'sentence'}{'-pooled' * s.pooler_output}" for n, s in CASES]
every_case = pytest.mark.parametrize(("spec", "shape"), CASES, ids=IDS)
# Convolutions are trained for up to 20 seconds a case.
trained_case = pytest.mark.parametrize(
    ("spec", "shape"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if "cnn" in case[0] or "ception" in case[0] else [])
        for case in CASES
    ],
    ids=IDS,
)


def states(shape: HeadShape, tokens: int = 9, rows: int = 4, seed: int = 0):
    torch.manual_seed(seed)
    hidden = torch.randn(rows, shape.num_channels, tokens, shape.hidden_size)
    real = torch.arange(tokens) < torch.tensor([tokens, max(1, tokens - 3), max(1, tokens // 2), 1] * rows)[:rows, None]
    return hidden, (real, real & (torch.arange(tokens) >= 3))  # attention mask, text ids; short rows are single texts


def make(spec: str, shape: HeadShape, seed: int = 0):
    torch.manual_seed(seed)
    return build_head(spec, shape).eval()


def apart(found) -> list[torch.Tensor]:
    """What a head says in training: copies answer one by one."""
    return found if isinstance(found, list) else [found]


@every_case
def test_shape(spec, shape):
    hidden, mask = states(shape)
    expected = (4, 9, 2) if shape.per_token else (4, 3)
    assert call_head(make(spec, shape), hidden, *mask).shape == expected


@every_case
def test_every_parameter_learns(spec, shape):
    hidden, mask = states(shape, tokens=12)
    head = make(spec, shape)
    call_head(head, hidden, *mask).square().sum().backward()
    assert [key for key, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


@every_case
def test_state_dict_is_all_there_is(spec, shape):
    hidden, mask = states(shape)
    head, twin = make(spec, shape), make(spec, shape, seed=1)
    twin.load_state_dict(head.state_dict())
    assert torch.equal(call_head(head, hidden, *mask), call_head(twin, hidden, *mask))


@every_case
def test_padding_cannot_change_the_answer(spec, shape):
    hidden, mask = states(shape)
    head = make(spec, shape)
    dirty = torch.where(mask[0][:, None, :, None], hidden, torch.full_like(hidden, 1e4))
    more = torch.nn.functional.pad(dirty, (0, 0, 0, 3), value=-7.0)
    more_mask = [torch.nn.functional.pad(each, (0, 3)) for each in mask]
    clean, soiled, longer = (
        call_head(head, hidden, *mask),
        call_head(head, dirty, *mask),
        call_head(head, more, *more_mask),
    )
    if shape.per_token:
        clean, soiled, longer = clean[mask[0]], soiled[mask[0]], longer[:, :9][mask[0]]
    torch.testing.assert_close(soiled, clean)
    torch.testing.assert_close(longer, clean)


@every_case
def test_batch_norm_does_not_see_padding(spec, shape):
    """In training, where statistics are taken: dirty padding changes neither answer nor statistics."""
    hidden, mask = states(shape)
    dirty = torch.where(mask[0][:, None, :, None], hidden, torch.full_like(hidden, 1e4))
    one, other = make(spec, shape).train(), make(spec, shape).train()
    torch.manual_seed(0)
    clean = call_head(one, hidden, *mask)
    torch.manual_seed(0)
    soiled = call_head(other, dirty, *mask)
    for a, b in zip(apart(soiled), apart(clean), strict=True):
        torch.testing.assert_close(*((a[mask[0]], b[mask[0]]) if shape.per_token else (a, b)))
    for (name, a), (_, b) in zip(one.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


@every_case
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_input(spec, shape, kind):
    hidden, mask = states(shape)
    head = make(spec, shape)
    torch.testing.assert_close(call_head(head, hidden.to(kind), *mask), call_head(head, hidden.to(kind).float(), *mask))


@every_case
def test_learns_in_bfloat16_and_answers_in_float32(spec, shape):
    hidden, mask = states(shape, tokens=12)
    head, plain = set_training_precision("bfloat16", make(spec, shape)), make(spec, shape)
    assert torch.equal(call_head(head, hidden, *mask), call_head(plain, hidden, *mask))
    for found in (answers := apart(call_head(head.train(), hidden, *mask))):
        assert found.dtype == torch.float32
    sum(found.square().sum() for found in answers).backward()
    assert [key for key, p in head.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@every_case
def test_states_in_the_type_it_learns_in_are_as_good(spec, shape):
    hidden, mask = states(shape, tokens=12)
    assert training_dtype([make(spec, shape)]) == torch.float32
    head = set_training_precision("bfloat16", make(spec, shape)).train()
    kind = training_dtype([head])
    assert kind == (torch.float32 if spec.startswith("bert-head") else torch.bfloat16)
    assert training_dtype([head, make("bert-head", shape)]) == torch.float32

    def answers(given):
        torch.manual_seed(1)  # dropout
        return apart(call_head(head, given, *mask))

    assert all(torch.equal(a, b) for a, b in zip(answers(hidden), answers(hidden.to(kind)), strict=True))


def test_bfloat16_is_used_in_training():
    hidden, mask = states(SENTENCE)
    torch.manual_seed(0)
    head = build_head("adapter:members=2,size=8,init_std=0.5,token_pooling=max", SENTENCE).train()
    plain = [each.detach() for each in call_head(head, hidden, *mask)]
    half = [each.detach() for each in call_head(set_training_precision("bfloat16", head), hidden, *mask)]
    for a, b in zip(plain, half, strict=True):
        assert not torch.equal(a, b)
        torch.testing.assert_close(a, b, atol=0.05, rtol=0.05)


@trained_case
def test_overfits_eight_examples(spec, shape):
    hidden, mask = states(shape, rows=8)
    labels = torch.arange(8) % shape.num_outputs
    head = make(spec, shape).train()
    deep = any(isinstance(m, torch.nn.Conv1d | torch.nn.Conv2d) for m in head.modules())
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3 if deep else 0.05)
    for _ in range(300):
        found = [logits[:, 0] if shape.per_token else logits for logits in apart(call_head(head, hidden, *mask))]
        loss = sum(torch.nn.functional.cross_entropy(logits, labels) for logits in found) / len(found)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)  # as in training: without it deep ones may jump away
        optimizer.step()
        if loss < 0.05:
            break
    assert loss < 0.05


@every_case
def test_deterministic_under_a_seed(spec, shape):
    hidden, mask = states(shape)
    assert torch.equal(call_head(make(spec, shape), hidden, *mask), call_head(make(spec, shape), hidden, *mask))


@every_case
@pytest.mark.parametrize("tokens", [1, 512])
def test_any_length(spec, shape, tokens):
    hidden, mask = states(shape, tokens=tokens, rows=2)
    assert call_head(make(spec, replace(shape, max_tokens=tokens)), hidden, *mask).isfinite().all()
