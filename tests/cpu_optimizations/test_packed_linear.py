import os
import subprocess
import sys

import pytest
import torch

from bertvision import devices
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.cpu_optimizations.packed_linear import PackedLinear
from bertvision.encoders import load_encoder
from conftest import FAMILIES, save_tiny
from encoders.test_encoders import TEXTS, batch

needs_bfloat16 = pytest.mark.skipif(
    not devices.onednn_multiplies_bfloat16(), reason="LOUD: oneDNN has no bfloat16 products here"
)


def is_packed(encoder):
    return any(isinstance(module, PackedLinear) for module in encoder.modules())


@needs_bfloat16
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights_give_the_plain_states(family, tmp_path):
    encoder = load_encoder(str(save_tiny(tmp_path / family, family)), "bfloat16").encoder.eval()
    tokens, mask = batch(load_encoder(str(tmp_path / family)).tokenizer, TEXTS)
    with torch.no_grad(), encoder.packed():  # weights that are trained are not packed
        assert not is_packed(encoder)
    encoder.requires_grad_(False)
    names = list(encoder.state_dict())
    plain = encoder(tokens, mask)
    with use_cpu_optimizations(False), encoder.packed():
        assert not is_packed(encoder)
    with encoder.packed():
        assert is_packed(encoder)
        assert list(encoder.state_dict()) == names
        torch.testing.assert_close(encoder(tokens, mask), plain, atol=2e-2, rtol=2e-2)
    assert not is_packed(encoder)
    assert torch.equal(encoder(tokens, mask), plain)


@needs_bfloat16
def test_the_states_of_a_real_encoder_are_equal_bit_for_bit():
    loaded = load_encoder("minilm", "bfloat16")
    encoder = loaded.encoder.eval().requires_grad_(False)
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    plain = encoder(tokens, mask)
    with encoder.packed():
        assert torch.equal(encoder(tokens, mask), plain)


def test_nothing_is_packed_where_onednn_may_not_multiply_bfloat16(tiny):
    code = f"""
import torch
from bertvision import devices
from bertvision.encoders import load_encoder
assert devices.resolve_precision("auto") == "float32" and not devices.onednn_multiplies_bfloat16()
encoder = load_encoder({str(tiny)!r}, "bfloat16").encoder.eval().requires_grad_(False)
with encoder.packed():
    print(encoder({{"input_ids": torch.tensor([[2, 9, 3]])}}, torch.ones(1, 3, dtype=torch.bool)).shape[-1])
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "32", done.stderr
