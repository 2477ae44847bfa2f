import pytest
import torch

from bertvision.cpu_optimizations.partial_embedding import PartialEmbedding
from bertvision.encoders import EncoderWithHead, load_encoder, save_encoder
from bertvision.heads import BertHead
from bertvision.training.optimizers import build_optimizer
from conftest import FAMILIES, save_tiny
from encoders.test_encoders import SENTENCE, TEXTS, batch


def begin(directory, narrow: bool):
    """A reader without dropout, which would differ with the order of its draws, and the words of TEXTS."""
    loaded = load_encoder(str(directory))
    tokens, mask = batch(loaded.tokenizer, TEXTS)
    words = tokens["input_ids"].unique()
    if narrow:
        loaded.encoder.restrict_vocabulary(words)
    for module in loaded.encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)
    return (
        EncoderWithHead(loaded.encoder, BertHead(SENTENCE, dropout=0.0)).train(),
        loaded.tokenizer,
        tokens,
        mask,
        words,
    )


def train_encoder(reader, tokens, mask, steps: int = 3):
    optimizer = build_optimizer(reader, 1e-3, 0.0)
    for _ in range(steps):
        torch.nn.functional.cross_entropy(reader(tokens, mask), torch.tensor([0, 1])).backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("family", FAMILIES)
def test_training_the_words_that_occur_is_training_the_table(family, tmp_path):
    place = save_tiny(tmp_path / family, family)
    (whole, *_), (narrow, tokenizer, tokens, mask, words) = begin(place, False), begin(place, True)
    before = whole.encoder.model.get_input_embeddings().weight.detach().clone()
    for reader in (whole, narrow):
        train_encoder(reader, tokens, mask)
    # What is saved is an ordinary encoder, and training goes on afterwards as if nothing had been saved.
    save_encoder(tmp_path / "saved", narrow, tokenizer)
    assert isinstance(narrow.encoder.model.get_input_embeddings(), PartialEmbedding)
    saved = load_encoder(str(tmp_path / "saved")).encoder.model.state_dict()
    for name, value in whole.encoder.model.state_dict().items():
        torch.testing.assert_close(saved[name], value, atol=1e-6, rtol=1e-4, msg=name)
    table = narrow.encoder.model.get_input_embeddings().merge_rows().weight
    others = [word for word in range(len(table)) if word not in words.tolist()]
    assert torch.equal(table[others], before[others]) and not torch.equal(table[words], before[words])
    # Validation may meet any word, and sees what was learned.
    more, more_mask = batch(tokenizer, ["ann wrote the story in rome"])
    torch.testing.assert_close(narrow.eval()(more, more_mask), whole.eval()(more, more_mask), atol=1e-5, rtol=1e-4)
    train_encoder(narrow.train(), tokens, mask, steps=1)


def test_less_is_trained_and_saved(tmp_path):
    place = save_tiny(tmp_path / "bert", "bert")
    (whole, *_), (narrow, _, _, _, words) = begin(place, False), begin(place, True)
    rows = len(whole.encoder.model.get_input_embeddings().weight) - len(words)
    count = [sum(value.numel() for value in reader.state_dict().values()) for reader in (whole, narrow)]
    assert count[0] - count[1] == rows * whole.encoder.model.get_input_embeddings().weight.shape[1] > 0


def test_a_word_that_was_not_announced_is_an_error(tmp_path):
    narrow, tokenizer, *_ = begin(save_tiny(tmp_path / "bert", "bert"), True)
    more, mask = batch(tokenizer, ["ann wrote the story in rome"])
    with pytest.raises(IndexError):
        narrow(more, mask)


def test_more_words_may_come_and_frozen_tables_stay(tmp_path):
    narrow, tokenizer, tokens, mask, words = begin(save_tiny(tmp_path / "bert", "bert"), True)
    train_encoder(narrow, tokens, mask)
    learned = narrow.encoder.model.get_input_embeddings().rows.detach().clone()
    more, more_mask = batch(tokenizer, ["ann wrote the story in rome"])
    narrow.encoder.restrict_vocabulary(more["input_ids"].unique())
    found = narrow.encoder.model.get_input_embeddings()
    assert torch.equal(found.merge_rows().weight[words], learned)
    assert narrow(more, more_mask).isfinite().all() and narrow(tokens, mask).isfinite().all()
    frozen = load_encoder(str(tmp_path / "bert")).encoder
    frozen.freeze(1)
    frozen.restrict_vocabulary(words)
    assert not isinstance(frozen.model.get_input_embeddings(), PartialEmbedding)
