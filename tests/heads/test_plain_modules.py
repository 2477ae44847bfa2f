"""Heads of users: a plain nn.Module is a head, with or without an input specification."""

import numpy as np
import pytest
import torch
from torch import nn

import bertvision
from bertvision.heads import HEADS, HeadConfig, InputSpec, build_head, input_spec_of, register_head, required_view
from bertvision.training import TrainingConfig, fit
from bertvision.types import Batch, HeadShape

ROWS, TOKENS, WIDTH = 24, 5, 8
SHAPE = HeadShape(num_layers=4, max_tokens=TOKENS, hidden_size=WIDTH, num_outputs=2, per_token=False)


class MeanOfTokens(nn.Module):
    """The mean of the tokens and of the layers, then a linear layer."""

    def __init__(self, shape: HeadShape, bias: bool = True):
        super().__init__()
        self.read = nn.Linear(shape.hidden_size, shape.num_outputs, bias=bias)

    def forward(self, hidden, attention_mask):
        assert hidden.dtype == torch.float32 and attention_mask.dtype == torch.bool
        return self.read((hidden.mean(dim=1) * attention_mask.unsqueeze(-1)).mean(dim=1))


class LastOfTwoTexts(MeanOfTokens):
    """A head that declares what it reads."""

    input_spec = InputSpec(layers="last2", tokens="cls")

    def forward(self, hidden, attention_mask, text_ids=None):
        return self.read(hidden[:, -1, 0])


@pytest.fixture(autouse=True)
def registered():
    register_head("mean-of-tokens")(MeanOfTokens)
    register_head("declared", "what it reads is declared")(LastOfTwoTexts)
    yield
    HEADS.unregister("mean-of-tokens")
    HEADS.unregister("declared")


class Batches:
    """Two batches of random hidden states; the first feature depends on the label."""

    rows = ROWS

    def __init__(self):
        self.hidden = torch.randn(ROWS, 4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
        self.labels = torch.arange(ROWS) % 2
        self.hidden[..., 0] += 2.0 * self.labels[:, None, None] - 1

    def __len__(self):
        return 2

    def epoch(self, number, start=0):
        for rows in np.arange(ROWS).reshape(2, -1)[start:]:
            mask = torch.ones(len(rows), TOKENS, dtype=torch.bool)
            yield Batch(rows=rows, inputs=self.hidden[rows], attention_mask=mask, labels=self.labels[rows])


def accuracy(head: nn.Module, batches: Batches) -> float:
    logits = head.eval()(batches.hidden, torch.ones(ROWS, TOKENS, dtype=torch.bool))
    return float((logits.argmax(dim=1) == batches.labels).float().mean())


def test_plain_modules_are_trained():
    torch.manual_seed(0)
    heads = {"plain": MeanOfTokens(SHAPE), "registered": build_head("mean-of-tokens:members=2", SHAPE)}
    config = TrainingConfig(learning_rate=0.1, epochs=30)
    fit(
        heads,
        Batches(),
        lambda logits, labels, mask: nn.functional.cross_entropy(logits, labels),
        dict.fromkeys(heads, config),
    )
    assert all(accuracy(head, Batches()) > 0.9 for head in heads.values())


def test_input_specifications():
    assert input_spec_of(MeanOfTokens(SHAPE)) == InputSpec()
    assert input_spec_of(build_head("adapter:layers=last,members=2", SHAPE)).tokens == "cls"
    declared = HeadConfig("declared")
    assert declared.layers == "last2" and str(declared) == "declared"
    assert required_view([declared], SHAPE) == required_view([HeadConfig("learned", layers="last2")], SHAPE)
    both = [declared, HeadConfig("mean-of-tokens")]
    assert required_view(both, SHAPE) == required_view([HeadConfig("learned", token_pooling="max")], SHAPE)


def test_from_text_to_answers(tiny, reviews, tmp_path):
    settings = {"fractions": [0.2], "controls": False, "train": {"epochs": 1}}
    heads = ["mean-of-tokens:bias=false", "declared", "default:size=4"]
    result = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=heads, root=tmp_path, **settings)
    assert [run.name for run in result.runs if run.kind == "head"] == [
        "mean-of-tokens:bias=false",
        "declared",
        "adapter:members=3,size=4,token_pooling=max",
    ]
    for run in result.runs[:3]:
        assert "label" in bertvision.load(run.directory).predict("good film")
