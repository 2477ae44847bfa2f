import numpy as np
import pytest
import torch
from fakes import assert_close
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bertvision.errors import BertVisionError
from bertvision.states import FORMATS

types = pytest.mark.parametrize("type", FORMATS)
WIDTHS = [1, 2, 31, 32, 33, 64, 70]
LARGEST = torch.finfo(torch.float32).max


def there_and_back(type, x):
    form = FORMATS[type]
    parts = form.encode(x)
    assert [part.dtype for part in parts] == [part.dtype for part in form.parts]
    assert [part.shape for part in parts] == [(*x.shape[:-1], part.width(x.shape[-1])) for part in form.parts]
    assert sum(part.nbytes for part in parts) == x[..., 0].numel() * form.state_bytes(x.shape[-1])
    out = torch.full_like(x, torch.nan)
    form.decode(parts, out)
    return out


numbers = st.floats(-60_000, 60_000, width=32) | st.floats(-1, 1, width=32) | st.sampled_from([0.0, -0.0, 1e-40, 1e-8])
states = st.sampled_from(WIDTHS).flatmap(lambda width: arrays(np.float32, (2, 3, width), elements=numbers))


@types
@given(states)
def test_every_number_comes_back_within_the_type_s_precision(type, x):
    assert_close(type, there_and_back(type, torch.from_numpy(x)), torch.from_numpy(x))


@types
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1e-30, 1e-7, 1e-3, 1.0, 300.0, 60_000.0])
def test_hard_rows(type, width, size):
    random = torch.randn(width, generator=torch.manual_seed(0))
    one = torch.zeros(width)
    one[width // 2] = -1
    rows = [one * 0, torch.ones(width), -torch.ones(width), one, one * 1000 + random, torch.linspace(-1, 1, width)]
    x = torch.stack(rows)
    x *= size / x.abs().max()
    found = there_and_back(type, x)
    assert_close(type, found, x)
    assert not found[0].any()  # zeros stay zeros


@pytest.mark.parametrize("type", ["float32", "bfloat16", "int8"])
def test_an_outlier_of_any_size(type):
    x = torch.randn(3, 40, generator=torch.manual_seed(0))
    x[1, 7] = -1e38
    assert_close(type, there_and_back(type, x), x)


@pytest.mark.parametrize("type", ["float32", "float16", "bfloat16"])
def test_what_a_float_type_can_hold_is_held_exactly(type):
    dtype = getattr(torch, type)
    bits = torch.randint(-(2**15), 2**15, (2000, 7), generator=torch.manual_seed(0), dtype=torch.int16)
    x = bits.view(torch.bfloat16 if type == "bfloat16" else torch.float16).float()
    x = x.where(torch.isfinite(x), torch.finfo(dtype).max)
    assert torch.equal(there_and_back(type, x), x)


@types
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("width", [1, 33])
def test_what_is_not_a_number_is_refused(type, value, width):
    x = torch.ones(2, 3, width)
    x[1, 2, -1] = value
    with pytest.raises(BertVisionError, match="hidden state is (too large|not a number)"):
        FORMATS[type].encode(x)


def test_float16_refuses_what_it_cannot_hold_and_names_what_can():
    with pytest.raises(BertVisionError, match="too large for float16.* 70000.* Use bfloat16, int8 or float32"):
        FORMATS["float16"].encode(torch.tensor([[1.0, -70_000.0]]))
    with pytest.raises(BertVisionError, match="too large to store"):
        FORMATS["int4"].encode(torch.tensor([[1.0, 600_000.0]]))


@types
@pytest.mark.parametrize("value", [LARGEST, -LARGEST, LARGEST * (1 - 2**-20)])
def test_the_largest_numbers_come_back_finite_or_are_refused(type, value):
    x = torch.tensor([[value, 1.0, 0.0]])
    try:
        found = there_and_back(type, x)
    except BertVisionError:
        return
    assert_close(type, found, x)


@types
@pytest.mark.parametrize("width", WIDTHS)
def test_decoding_into_a_part_of_a_tensor(type, width):
    """The reader decodes into the batch it pads: what lies around must not change."""
    form = FORMATS[type]
    x = torch.randn(2, 5, width, generator=torch.manual_seed(0))
    parts, plain = form.encode(x), there_and_back(type, x)
    targets = {
        "a corner": (big := torch.full((4, 9, width), 7.0), lambda t: t[1:3, :5]),
        "every other token": (torch.full((2, 10, width), 7.0), lambda t: t[:, ::2]),
        "a part of the width": (torch.full((2, 5, width + 3), 7.0), lambda t: t[..., 1 : width + 1]),
        "width apart": (torch.full((2, 5, 2 * width), 7.0), lambda t: t[..., ::2]),
        "width first": (torch.full((width, 2, 5), 7.0), lambda t: t.permute(1, 2, 0)),
    }
    for name, (whole, view) in targets.items():
        form.decode(parts, view(whole))
        assert torch.equal(view(whole), plain), name
        view(whole).fill_(7.0)
        assert (whole == 7.0).all(), name
    assert big.is_contiguous()


@types
def test_parts_of_a_row_decode_alone(type):
    """Layers and tokens may be picked from the encoded parts before they are decoded."""
    form = FORMATS[type]
    x = torch.randn(4, 6, 33, generator=torch.manual_seed(0))
    picked = [part[[0, 3], :2] for part in form.encode(x)]
    out = torch.empty(2, 2, 33)
    form.decode(picked, out)
    assert torch.equal(out, there_and_back(type, x)[[0, 3], :2])


@types
def test_states_that_are_not_contiguous_encode_the_same(type):
    x = torch.randn(33, 4, 6, generator=torch.manual_seed(0)).permute(1, 2, 0)
    for one, other in zip(FORMATS[type].encode(x), FORMATS[type].encode(x.contiguous()), strict=True):
        assert torch.equal(one, other)
