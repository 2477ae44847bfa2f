"""Encoders given as objects: models of transformers, models wrapped by peft, and modules of the user's own."""

import hashlib
import sys

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from bertvision.encoders import (
    ENCODERS,
    Encoder,
    EncoderEntry,
    EncoderWithHead,
    load_encoder,
    load_encoder_info,
    register_encoder,
    save_encoder,
    weights_hash,
)
from bertvision.errors import BertVisionError
from bertvision.heads import BertHead
from bertvision.training.optimizers import build_optimizer
from conftest import FAMILIES, save_tiny, tiny_tokenizer
from encoders.test_encoders import SENTENCE, TEXTS, batch


def state_hash(model) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def finetune(encoder: Encoder, steps: int = 3) -> EncoderWithHead:
    """Take a few optimizer steps with BERT's own head."""
    tokens, mask = batch(encoder.tokenizer, TEXTS)
    torch.manual_seed(0)
    bert = EncoderWithHead(encoder, BertHead(SENTENCE, dropout=0.0)).train()
    optimizer = build_optimizer(bert, 1e-2, 0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        bert(tokens, mask).square().sum().backward()
        optimizer.step()
    return bert.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_object_equals_the_same_encoder_loaded_by_name(family, tmp_path):
    directory = save_tiny(tmp_path / family, family)
    by_name = Encoder.from_pretrained(directory, device="cpu")
    model = AutoModel.from_pretrained(directory).train()
    before = state_hash(model)
    encoder = Encoder(model, by_name.tokenizer)
    tokens, mask = batch(encoder.tokenizer, TEXTS)
    assert torch.equal(encoder(tokens, mask), by_name(tokens, mask))
    assert weights_hash(encoder) == weights_hash(by_name) and encoder.name == by_name.name == str(directory)
    assert encoder.info == by_name.info
    assert encoder.bert_head.keys() == by_name.bert_head.keys()
    loaded = load_encoder(encoder)
    finetune(loaded.encoder)
    assert weights_hash(loaded.encoder) != weights_hash(encoder) == weights_hash(by_name)
    assert state_hash(model) == before and model.training


def test_objects_are_saved_and_loaded(tiny, tmp_path):
    encoder = Encoder.from_pretrained(tiny)
    assert load_encoder_info(encoder) == encoder.info and encoder.info.pad_ids == {"input_ids": 0, "token_type_ids": 0}
    encoder.save_pretrained(tmp_path / "saved")
    again = Encoder.from_pretrained(tmp_path / "saved", precision="auto")
    assert weights_hash(again) == weights_hash(encoder) and again.precision in ("float32", "bfloat16")
    assert set(again.bert_head) == {"pooler.weight", "pooler.bias"}
    assert all(torch.equal(again.bert_head[key], value) for key, value in encoder.bert_head.items())


def test_the_head_of_a_classifier_is_kept(tmp_path):
    directory = save_tiny(tmp_path / "m", "roberta", AutoModelForSequenceClassification, num_labels=3)
    model = AutoModelForSequenceClassification.from_pretrained(directory).half()
    encoder = Encoder(model, tiny_tokenizer(tmp_path / "t", "roberta"))
    assert {p.dtype for p in encoder.parameters()} == {torch.float32} and model.dtype == torch.float16
    assert load_encoder(encoder).last.keys() == load_encoder(str(directory)).last.keys() != set()


def test_models_that_cannot_be_encoders_are_refused(tiny):
    from transformers import AutoConfig

    config = AutoConfig.for_model("gpt2", n_embd=32, n_layer=2, n_head=4, vocab_size=99)
    for model, message in [
        (AutoModelForCausalLM.from_config(config), "not a bidirectional text encoder"),
        (nn.Linear(2, 2), "`num_layers`, `hidden_size` and a `forward`"),
        ("minilm", r"Encoder.from_pretrained\('minilm'\) loads"),
    ]:
        with pytest.raises(BertVisionError, match=message):
            Encoder(model)
    with pytest.raises(BertVisionError, match="no tokenizer"):
        Encoder(AutoModel.from_pretrained(tiny)).info  # noqa: B018


class BagOfEmbeddings(nn.Module):
    """An encoder that follows the protocol: every layer mixes a token with the mean of its text."""

    def __init__(self, vocabulary: int, stacked: bool, width: int = 32, depth: int = 3):
        super().__init__()
        self.num_layers, self.hidden_size, self.max_tokens, self.stacked = depth + 1, width, 64, stacked
        self.table = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def forward(self, input_ids, attention_mask):
        states = [self.table(input_ids)]
        weights = attention_mask.float()[..., None]
        for layer in self.layers:
            mean = (states[-1] * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
            states.append(torch.tanh(layer(torch.cat([states[-1], mean.expand_as(states[-1])], dim=-1))))
        return torch.stack(states, dim=1) if self.stacked else tuple(states)


@pytest.fixture
def tokenizer(tmp_path):
    return tiny_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def registered(tokenizer):
    """Register functions for one test."""
    names = []

    def register(name, entry):
        register_encoder(name, entry)
        names.append(name)

    yield register
    for name in names:
        ENCODERS.unregister(name)


@pytest.mark.parametrize("stacked", [True, False])
def test_a_module_of_the_protocol_is_an_encoder(tokenizer, stacked):
    module = BagOfEmbeddings(len(tokenizer), stacked)
    before = state_hash(module)
    encoder = Encoder(module, tokenizer)
    tokens, mask = batch(tokenizer, TEXTS)
    assert "token_type_ids" in tokens  # which the module does not take
    expected = module(tokens["input_ids"], mask)
    expected = expected if stacked else torch.stack(expected, dim=1)
    assert torch.equal(encoder(tokens, mask), expected)
    assert torch.equal(encoder.last(tokens, mask), expected[:, -1:])
    assert (encoder.num_layers, encoder.hidden_size, encoder.info.max_tokens, encoder.name) == (
        4,
        32,
        64,
        "BagOfEmbeddings",
    )
    pair = tokenizer([TEXTS[0]], [TEXTS[1]], return_tensors="pt")
    pair_mask = pair.pop("attention_mask").bool()
    text_ids = torch.tensor([[id == 1 for id in pair.sequence_ids(0)]]).cummax(1).values
    apart = encoder(dict(pair), pair_mask, text_ids, cross_layers=(), bi_layers=[3])
    alone = encoder(*batch(tokenizer, [TEXTS[1]]))[:, 3]
    torch.testing.assert_close(apart[0, 0, text_ids[0]], alone[0, 1:])
    encoder.restrict_vocabulary(tokens["input_ids"].unique())
    finetune(encoder)
    assert weights_hash(encoder) != weights_hash(Encoder(module)) and state_hash(module) == before
    with pytest.raises(BertVisionError, match="0 to 0 layers"):
        encoder.freeze(1)


def test_a_registered_module_is_saved_and_loaded(tokenizer, registered, tmp_path, cli):
    def bag():
        """A bag of embeddings."""
        torch.manual_seed(1)
        return Encoder(BagOfEmbeddings(len(tokenizer), stacked=True), tokenizer)

    with pytest.raises(BertVisionError, match="register_encoder"):
        load_encoder(bag())
    registered("bag", bag)
    loaded = load_encoder("bag")
    assert loaded.name == "bag" and weights_hash(loaded.encoder) == weights_hash(bag())
    assert load_encoder_info("bag").num_layers == 4 and Encoder.from_pretrained("bag").name == "bag"
    bert = finetune(loaded.encoder)
    save_encoder(tmp_path / "saved", bert, loaded.tokenizer)
    again = load_encoder(str(tmp_path / "saved"))
    assert weights_hash(again.encoder) == weights_hash(bert.encoder) != weights_hash(bag())
    assert torch.equal(again.last["classifier.weight"], bert.head.state_dict()["classifier.weight"])
    assert load_encoder_info(str(tmp_path / "saved")).max_tokens == 64
    _, listing, _ = cli("encoders")
    assert "A bag of embeddings." in listing and "registered function" in listing
    ENCODERS.unregister("bag")
    with pytest.raises(BertVisionError, match="whose code is not part of transformers"):
        load_encoder(str(tmp_path / "saved"))
    ENCODERS.register("bag", lambda: "no encoder")
    with pytest.raises(BertVisionError, match="returned str instead of an `Encoder`"):
        load_encoder("bag")


def test_entries_and_decorated_functions_are_registered(tiny, registered):
    registered("tiny-entry", EncoderEntry(hub=str(tiny), learning_rate=1e-3))
    assert load_encoder_info("tiny-entry").learning_rate == Encoder.from_pretrained("tiny-entry").learning_rate == 1e-3

    @register_encoder("tiny-function")
    def tiny_function():
        return Encoder.from_pretrained(tiny)

    assert load_encoder("tiny-function").name == "tiny-function"
    ENCODERS.unregister("tiny-function")
    for wrong in (EncoderEntry(), 7):
        with pytest.raises(BertVisionError, match="registered as a function"):
            register_encoder("wrong", wrong)
    with pytest.raises(BertVisionError, match="already registered"):
        register_encoder("minilm")


def test_a_module_with_the_wrong_number_of_layers_gets_a_sentence(tokenizer):
    module = BagOfEmbeddings(len(tokenizer), stacked=True)
    module.num_layers = 7
    with pytest.raises(BertVisionError, match="num_layers=7 and hidden_size=32, but returned 4 hidden states"):
        Encoder(module, tokenizer)(*batch(tokenizer, TEXTS))


@pytest.fixture
def peft():
    return pytest.importorskip("peft")


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_peft_models_are_encoders(peft, family, tmp_path):
    directory = save_tiny(tmp_path / family, family)
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer", family)
    model = AutoModel.from_pretrained(directory)
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    ).eval()
    before = state_hash(wrapped)
    tokens, mask = batch(tokenizer, TEXTS)
    encoder = Encoder(wrapped, tokenizer)
    expected = wrapped(**tokens, attention_mask=mask, output_hidden_states=True)
    torch.testing.assert_close(encoder(tokens, mask)[:, -1], expected.last_hidden_state, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder(tokens, mask)[:, 1], expected.hidden_states[1], atol=1e-5, rtol=1e-4)
    loaded = load_encoder(encoder)
    old = {name: p.clone() for name, p in loaded.encoder.named_parameters()}
    bert = finetune(loaded.encoder)
    changed = {name for name, p in loaded.encoder.named_parameters() if not torch.equal(p, old[name])}
    assert changed and all("lora_" in name for name in changed)
    save_encoder(tmp_path / "saved", bert, tokenizer)
    again = load_encoder(str(tmp_path / "saved")).encoder
    assert not any("lora_" in name for name in again.state_dict())
    torch.testing.assert_close(again(tokens, mask), bert.encoder(tokens, mask), atol=1e-4, rtol=1e-3)
    assert state_hash(wrapped) == before


def test_prompt_learning_is_refused(peft, tiny):
    model = AutoModel.from_pretrained(tiny)
    config = peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=2)
    with pytest.raises(BertVisionError, match="virtual tokens"):
        Encoder(peft.get_peft_model(model, config))


def test_peft_is_not_imported(tiny):
    if "peft" not in sys.modules:
        Encoder.from_pretrained(tiny)
        assert "peft" not in sys.modules
