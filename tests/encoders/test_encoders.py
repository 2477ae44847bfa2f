import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from bertvision.encoders import (
    ENCODERS,
    EncoderWithHead,
    TwoHeadModel,
    load_encoder,
    load_encoder_info,
    save_encoder,
    weights_hash,
)
from bertvision.errors import BertVisionError
from bertvision.heads import BertHead, build_head
from bertvision.training.optimizers import build_optimizer
from bertvision.types import Batch, HeadShape
from conftest import FAMILIES, save_tiny

SENTENCE = HeadShape(num_layers=4, max_tokens=16, hidden_size=32, num_outputs=3, per_token=False)
SPAN = HeadShape(num_layers=4, max_tokens=16, hidden_size=32, num_outputs=2, per_token=True)


def batch(tokenizer, texts):
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    mask = encoded.pop("attention_mask").bool()
    return dict(encoded), mask


TEXTS = ["the film was very good", "a bad plot"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_the_contract(family, tmp_path):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    encoder = loaded.encoder.eval()
    hidden = encoder(tokens, mask)
    output = encoder.model(**tokens, attention_mask=mask, output_hidden_states=True)
    assert hidden.shape == (2, 4, mask.shape[1], 32) == (2, encoder.num_layers, mask.shape[1], encoder.hidden_size)
    assert torch.equal(hidden[:, -1], output.last_hidden_state)
    assert torch.equal(hidden[:, 0], output.hidden_states[0])
    torch.testing.assert_close(encoder.last(tokens, mask)[:, 0], hidden[:, -1])
    # Alone or beside a longer text, a text has the same states.
    alone, alone_mask = batch(loaded.tokenizer, TEXTS[1:])
    length = alone_mask.shape[1]
    torch.testing.assert_close(hidden[1:, :, :length], encoder(alone, alone_mask), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "separators"), [*((family, 1) for family in FAMILIES), ("roberta", 2), ("mpnet", 2)]
)
def test_texts_of_a_pair_read_apart_are_read_as_if_alone(family, separators, tmp_path):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    if separators == 2:  # as the tokenizers of these families have between the texts of a pair
        special = [(token, loaded.tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
        template = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", special)
        loaded.tokenizer.backend_tokenizer.post_processor = template
    encoder = loaded.encoder.eval()
    pairs = [("the film was very good", "a bad plot"), ("quite fine", "this story is not great at all")]
    encoded = loaded.tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    mask = encoded.pop("attention_mask").bool()
    seconds = [encoded.sequence_ids(row).index(1) for row in range(len(pairs))]
    text_ids = mask & (torch.arange(mask.shape[1]) >= torch.tensor(seconds)[:, None])
    found = encoder(dict(encoded), mask, text_ids, cross_layers=(), bi_layers=range(encoder.num_layers))
    assert found.shape == (2, encoder.num_layers, mask.shape[1], encoder.hidden_size)
    both = encoder(dict(encoded), mask, text_ids, cross_layers=[0, 2], bi_layers=[0, 3])
    together = encoder(dict(encoded), mask, text_ids)
    torch.testing.assert_close(both, torch.stack([found[:, 0], found[:, 3], together[:, 0], together[:, 2]], dim=1))
    for row, (texts, second) in enumerate(zip(pairs, seconds, strict=True)):
        here = [slice(0, second - separators + 1), slice(second, int(mask[row].sum()))]
        if separators == 2:  # the second separator has the states of the first
            torch.testing.assert_close(found[row, :, second - 1], found[row, :, second - 2])
        for text, place, lead in zip(texts, here, (0, 1), strict=True):  # the second has no [CLS] in the pair
            alone = encoder(*batch(loaded.tokenizer, [text]))[0, :, lead:]
            torch.testing.assert_close(found[row, :, place], alone, atol=1e-5, rtol=1e-4)


def test_a_mask_that_is_not_boolean_is_refused(tiny):
    loaded = load_encoder(str(tiny))
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    for call in (loaded.encoder, loaded.encoder.last):
        with pytest.raises(TypeError, match=r"must be of type torch.bool, got torch.int64"):
            call(tokens, mask.long())
    with pytest.raises(TypeError, match="torch.bool"):
        Batch(rows=np.arange(2), inputs=tokens, attention_mask=mask.to(torch.uint8), labels=torch.zeros(2))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_a_reader_learns(family, tmp_path):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    reader = EncoderWithHead(loaded.encoder, BertHead(SENTENCE, dropout=0.0))
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    reader(tokens, mask).square().sum().backward()
    assert [name for name, p in reader.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_layers_get_no_gradient_and_all_others_do(family, tmp_path):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    encoder = loaded.encoder
    most = 1 if family == "albert" else encoder.num_layers
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    before: set[str] = set()
    for lowest in range(most):  # with all frozen there would be no gradient at all
        encoder.zero_grad()
        encoder.requires_grad_(True).freeze(lowest)
        states = encoder(tokens, mask)
        states[:, -1].square().sum().backward()
        frozen = {name for name, p in encoder.named_parameters() if p.grad is None}
        assert frozen == {name for name, p in encoder.named_parameters() if not p.requires_grad}
        assert any("embeddings" in name for name in frozen) == bool(lowest)
        assert len(frozen) > len(before) or not lowest
        before = frozen
    for wrong in (-1, most + 1):
        with pytest.raises(BertVisionError, match=f"0 to {most} layers"):
            encoder.freeze(wrong)


def test_two_heads_on_one_backbone_learn_at_their_own_pace(tiny):
    loaded = load_encoder(str(tiny))
    reader = EncoderWithHead(loaded.encoder, BertHead(SENTENCE, dropout=0.0))
    joint = TwoHeadModel(reader, build_head("adapter:size=4,token_pooling=max", SENTENCE), 10.0).eval()
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    both = joint(tokens, mask)
    torch.testing.assert_close(both[0], reader(tokens, mask))
    torch.testing.assert_close(both[1], joint.auxiliary_head(loaded.encoder(tokens, mask), mask))
    (both[0].square().sum() + both[1].square().sum()).backward()
    assert [name for name, p in joint.named_parameters() if p.grad is None] == []
    learning_rate_scales = {
        id(p): group["lr_scale"] for group in build_optimizer(joint, 1e-4, 0.01).param_groups for p in group["params"]
    }
    assert {learning_rate_scales[id(p)] for p in joint.auxiliary_head.parameters()} == {10.0}
    assert {learning_rate_scales[id(p)] for p in reader.parameters()} == {1.0} and len(learning_rate_scales) == len(
        list(joint.parameters())
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_lower_layers_learn_more_slowly(family, tmp_path):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    encoder = loaded.encoder
    model = TwoHeadModel(EncoderWithHead(encoder, BertHead(SENTENCE)), build_head("learned", SENTENCE), 10.0)
    if family == "albert":
        with pytest.raises(BertVisionError, match="separate layers"):
            build_optimizer(model, 1e-4, 0.01, 0.5)
        return
    groups = build_optimizer(model, 1e-4, 0.01, 0.5).param_groups
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert len(scales) == len(list(model.parameters())) == sum(len(group["params"]) for group in groups)
    expected = {"embeddings": 0.5**4, "0": 0.5**3, "1": 0.5**2, "2": 0.5, "bert head": 1.0, "auxiliary head": 10.0}
    reached = set()
    for name, parameter in model.named_parameters():
        number = re.search(r"layers?\.(\d)\.", name)
        part = "embeddings" if ".embeddings." in name else number[1] if number else "bert head"
        part = "auxiliary head" if name.startswith("auxiliary_head") else part
        assert scales[id(parameter)] == expected[part], name
        reached.add(part)
    assert reached == set(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_backbone_comes_back(family, tmp_path):
    loaded = load_encoder(str(save_tiny(tmp_path / family, family)))
    reader = EncoderWithHead(loaded.encoder, BertHead(SENTENCE))
    save_encoder(tmp_path / "saved", reader, loaded.tokenizer)
    again = load_encoder(str(tmp_path / "saved"))
    assert weights_hash(again.encoder) == weights_hash(loaded.encoder)
    assert all(torch.equal(again.last[key], value) for key, value in reader.head.state_dict().items())
    assert again.tokenizer(TEXTS)["input_ids"] == loaded.tokenizer(TEXTS)["input_ids"]


@pytest.mark.parametrize("family", ["bert", "albert", "roberta", "mpnet"])
def test_last_head_equals_sequence_classification(family, tmp_path):
    place = save_tiny(tmp_path / "m", family, AutoModelForSequenceClassification, num_labels=3)
    loaded = load_encoder(str(place))
    head = BertHead(SENTENCE)
    head.load_state_dict(loaded.last)
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    theirs = AutoModelForSequenceClassification.from_pretrained(place).eval()(**tokens, attention_mask=mask).logits
    torch.testing.assert_close(EncoderWithHead(loaded.encoder, head).eval()(tokens, mask), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["bert", "albert", "roberta", "electra", "distilbert", "mpnet", "deberta-v2"])
def test_last_head_equals_question_answering(family, tmp_path):
    place = save_tiny(tmp_path / "m", family, AutoModelForQuestionAnswering)
    loaded = load_encoder(str(place))
    head = BertHead(SPAN)
    head.load_state_dict({key: value for key, value in loaded.last.items() if key.startswith("classifier.")})
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    theirs = AutoModelForQuestionAnswering.from_pretrained(place).eval()(**tokens, attention_mask=mask)
    ours = EncoderWithHead(loaded.encoder, head).eval()(tokens, mask)
    torch.testing.assert_close(ours, torch.stack([theirs.start_logits, theirs.end_logits], -1), atol=1e-5, rtol=0)


def test_pooler_of_the_checkpoint_is_kept(tmp_path):
    assert set(load_encoder(str(save_tiny(tmp_path / "bert"))).last) == {"pooler.weight", "pooler.bias"}
    assert load_encoder(str(save_tiny(tmp_path / "electra", "electra"))).last == {}


def test_positions_set_the_longest_input(tmp_path):
    assert load_encoder_info(str(save_tiny(tmp_path / "bert"))).max_tokens == 128
    roberta = save_tiny(tmp_path / "roberta", "roberta", max_position_embeddings=64)
    assert load_encoder_info(str(roberta)).max_tokens == 63  # pad_token_id is 0 here, so one position is never used


def test_decoders_are_refused(tmp_path):
    from transformers import AutoConfig

    config = AutoConfig.for_model("gpt2", n_embd=32, n_layer=2, n_head=4, vocab_size=99)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(BertVisionError, match="not a bidirectional text encoder"):
        load_encoder(str(tmp_path))


def test_unknown_names_and_architectures_are_refused(tmp_path):
    with pytest.raises(BertVisionError, match="no such directory, and the Hub did not return it"):
        load_encoder("nobody/nothing")
    with pytest.raises(BertVisionError, match="Did you mean 'bert-base'"):
        load_encoder("bert-bsae")
    (tmp_path / "config.json").write_text('{"model_type": "martian"}')
    with pytest.raises(BertVisionError, match="Cannot read the checkpoint"):
        load_encoder(str(tmp_path))


def test_a_known_encoder_without_the_hub(monkeypatch, tmp_path):
    from bertvision.encoders.table import EncoderEntry

    entry = EncoderEntry(hub="nobody/nothing", layers=13, width=768, parameters=110_000_000)
    monkeypatch.setitem(ENCODERS._entries, "absent", entry)
    with pytest.raises(BertVisionError, match="'absent' .nobody/nothing. is not in the local cache") as caught:
        load_encoder("absent")
    assert "Did you mean" not in str(caught.value) and "`minilm`" in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "garbage", "missing tensor", "missing file"])
def test_damaged_checkpoints_get_a_sentence(tmp_path, damage):
    from safetensors.torch import load_file, save_file

    place = save_tiny(tmp_path / "bert")
    weights = place / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "garbage":
        weights.write_bytes(b"not a checkpoint")
    elif damage == "missing file":
        weights.unlink()
    else:
        tensors = load_file(weights)
        del tensors["encoder.layer.1.output.dense.weight"]
        save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(BertVisionError, match=r"Cannot read the checkpoint|lacks 1 of the encoder's tensors"):
        load_encoder(str(place))


def test_pickled_weights_are_refused(tmp_path):
    from safetensors.torch import load_file

    place = save_tiny(tmp_path / "bert")
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    with pytest.raises(BertVisionError, match="Cannot read the checkpoint"):
        load_encoder(str(place))


@pytest.mark.parametrize("kind", ["bert", "their-own"])
def test_code_in_a_model_directory_is_never_executed(kind, tmp_path, monkeypatch):
    place = save_tiny(tmp_path / "bert")
    config = json.loads((place / "config.json").read_text())
    config |= {"model_type": kind, "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\nConfig = Model = None\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("transformers asked for permission"))
    for load in (load_encoder, load_encoder_info):
        with pytest.raises(BertVisionError, match="never executes|custom code"):
            load(str(place))
    assert not (tmp_path / "executed").exists()


def test_half_precision_checkpoints_compute_in_float32(tmp_path):
    from transformers import AutoModel

    place = save_tiny(tmp_path / "bert")
    AutoModel.from_pretrained(place).half().save_pretrained(place)
    assert {p.dtype for p in load_encoder(str(place)).encoder.parameters()} == {torch.float32}


def test_weights_hash_names_content(tiny):
    first, second = load_encoder(str(tiny)).encoder, load_encoder(str(tiny)).encoder
    assert weights_hash(first) == weights_hash(second)
    with torch.no_grad():
        next(second.parameters()).view(-1)[0] += 1e-3
    assert weights_hash(first) != weights_hash(second)


def test_minilm_is_the_real_one():
    """The real encoder from the package registry, verified by hash."""
    loaded = load_encoder("minilm")
    known = ENCODERS["minilm"]
    assert (loaded.encoder.num_layers, loaded.encoder.hidden_size) == (known.layers + 1, known.width)
    assert sum(p.numel() for p in loaded.encoder.parameters()) == known.parameters
    assert loaded.last == {}  # its pooler was never trained
    tokens, mask = batch(
        loaded.tokenizer, ["A man plays a guitar.", "Someone plays an instrument.", "Stocks fell sharply."]
    )
    with torch.no_grad():
        states = loaded.encoder.eval()(tokens, mask)[:, -1]
    vectors = torch.nn.functional.normalize((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.5 > 0.2 > far


@pytest.mark.slow
def test_mpnet_is_the_real_one():
    """Downloads 405 MB on first use. The states are those of transformers, also for pairs of texts."""
    loaded, known = load_encoder("mpnet"), ENCODERS["mpnet"]
    assert (loaded.encoder.num_layers, loaded.encoder.hidden_size) == (known.layers + 1, known.width)
    assert sum(p.numel() for p in loaded.encoder.parameters()) == known.parameters == ENCODERS["mpnet-base"].parameters
    assert loaded.last == {}  # its pooler was never trained
    texts = ["A man plays a guitar.", "Someone plays an instrument.", "Stocks fell sharply."]
    tokens, mask = batch(loaded.tokenizer, texts)
    with torch.no_grad():
        states = loaded.encoder.eval()(tokens, mask)[:, -1]
    vectors = torch.nn.functional.normalize((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)
    assert vectors[0] @ vectors[1] > 0.5 > 0.2 > vectors[0] @ vectors[2]
    encoded = loaded.tokenizer([texts[0]], [texts[1]], return_tensors="pt")
    second = encoded.sequence_ids(0).index(1)
    text_ids = (torch.arange(encoded["input_ids"].shape[1]) >= second)[None].byte()
    mask = encoded.pop("attention_mask").bool()
    with torch.no_grad():
        apart = loaded.encoder(dict(encoded), mask, text_ids, cross_layers=(), bi_layers=[12])[0, 0]
        first, other = (loaded.encoder(*batch(loaded.tokenizer, [text]))[0, -1] for text in texts[:2])
    torch.testing.assert_close(apart[: second - 1], first, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(apart[second:], other[1:], atol=1e-4, rtol=1e-4)


def test_hub_names_come_from_the_library_s_cache(tmp_path):
    """The real Hub code of transformers, on a cache as a download leaves it."""
    revision = "0123456789012345678901234567890123456789"
    repository = tmp_path / "hub" / "models--someone--tiny"
    save_tiny(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    code = "from bertvision import load_encoder; print(load_encoder('someone/tiny').encoder.hidden_size)"
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "32", done.stderr


def test_half_precision_products_give_float32_states(tiny):
    """Weights, sums and states stay float32; only the products lose digits."""
    exact, half = (load_encoder(str(tiny), precision).encoder.eval() for precision in ("float32", "bfloat16"))
    tokens, mask = {"input_ids": torch.tensor([[2, 9, 11, 3]])}, torch.ones(1, 4, dtype=torch.bool)
    first, second = exact(tokens, mask), half(tokens, mask)
    assert second.dtype == half.last(tokens, mask).dtype == torch.float32
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert 0 < (first - second).abs().max() < 0.05
