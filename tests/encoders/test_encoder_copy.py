"""`Encoder(model)` never changes the model of the caller."""

import copy
import hashlib

import pytest
import torch
from transformers import AutoModel

from bertvision.encoders import Encoder, EncoderWithHead, load_encoder
from bertvision.heads import BertHead
from bertvision.training.optimizers import build_optimizer
from conftest import FAMILIES, save_tiny
from encoders.test_encoders import SENTENCE, TEXTS, batch


def describe(model):
    """Everything about a model that must stay the same."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    modules = [(name, type(module), id(module)) for name, module in model.named_modules()]
    parameters = [(name, id(p), p.requires_grad, p.grad is None) for name, p in model.named_parameters()]
    config = copy.deepcopy(model.config.to_dict()), model.config._attn_implementation
    return digest.hexdigest(), modules, parameters, config, id(getattr(model, "pooler", None)), model.training


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_of_the_caller_is_unchanged(family, tmp_path):
    place = save_tiny(tmp_path / family, family)
    model, tokenizer = AutoModel.from_pretrained(place).eval(), load_encoder(str(place)).tokenizer
    tokens, mask = batch(tokenizer, TEXTS)
    before, answers = describe(model), model(**tokens, attention_mask=mask)
    encoder = Encoder(model)
    torch.testing.assert_close(encoder(tokens, mask)[:, -1], answers.last_hidden_state, atol=1e-5, rtol=1e-4)
    encoder.restrict_vocabulary(tokens["input_ids"].unique())
    bert = EncoderWithHead(encoder, BertHead(SENTENCE)).train()
    optimizer = build_optimizer(bert, 1e-2, 0.0)
    bert(tokens, mask).square().sum().backward()
    optimizer.step()
    encoder.freeze(1)
    assert not torch.equal(encoder.eval()(tokens, mask)[:, -1], answers.last_hidden_state)
    assert describe(model) == before
    after = model(**tokens, attention_mask=mask)
    assert torch.equal(after.last_hidden_state, answers.last_hidden_state)
    if getattr(answers, "pooler_output", None) is not None:
        assert torch.equal(after.pooler_output, answers.pooler_output)


def test_a_loaded_encoder_holds_its_weights_once(tiny, monkeypatch):
    monkeypatch.setattr("bertvision.encoders.encoder.deepcopy", None)  # loading must not copy
    assert load_encoder(str(tiny)).encoder.model.pooler is None
