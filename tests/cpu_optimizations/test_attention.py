import pytest
import torch

from bertvision.cpu_optimizations import attention, dropout, use_cpu_optimizations
from bertvision.encoders import load_encoder
from conftest import FAMILIES, save_tiny
from encoders.test_encoders import TEXTS, batch


def set_dropout(encoder, p):
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = p
    return encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_training_equals_the_plain_path_but_for_the_dropped_elements(family, tmp_path, monkeypatch):
    place = str(save_tiny(tmp_path / family, family))
    loaded = load_encoder(place)
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    with use_cpu_optimizations(False):
        plain = load_encoder(place).encoder
        assert plain.model.config._attn_implementation != attention.ATTENTION
        # A probability of almost 0 drops nothing but takes the path of training.
        expected = set_dropout(plain, 1e-9).train()(tokens, mask)
    shapes = []

    def counted(x, p):
        shapes.append(x.shape)
        return dropout.drop(x, p)

    monkeypatch.setattr(attention, "drop", counted)
    encoder = set_dropout(loaded.encoder, 1e-9)
    torch.testing.assert_close(encoder.train()(tokens, mask), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.eval()(tokens, mask), expected, atol=1e-5, rtol=1e-4)
    if family in ("bert", "roberta", "electra"):
        length = mask.shape[1]
        assert [shape[-2:] for shape in shapes] == [(length, length)] * (encoder.num_layers - 1)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_switch_holds_for_encoders_that_were_built_before(family, tmp_path, monkeypatch):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    tokens, mask = batch(loaded.tokenizer, TEXTS)

    def fail(x, p):
        raise AssertionError("the plain path must not use fast dropout")

    monkeypatch.setattr(attention, "drop", fail)
    monkeypatch.setattr(dropout, "drop", fail)
    with use_cpu_optimizations(False):
        assert loaded.encoder.train()(tokens, mask).isfinite().all()
    with pytest.raises(AssertionError, match="fast dropout"):
        loaded.encoder.train()(tokens, mask)
