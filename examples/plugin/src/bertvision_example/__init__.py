"""A head, a task and an encoder that bertvision finds through entry points."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizerFast

from bertvision import Encoder, HeadShape
from bertvision.tasks import TextTask, UserFiles

DATA = Path(__file__).with_name("colours.csv")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


class MaxMeanHead(nn.Module):
    """Maximum over the tokens of the mean of all layers, then a linear layer."""

    def __init__(self, shape: HeadShape, dropout: float = 0.1):
        super().__init__()
        self.shape = shape
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(shape.hidden_size, shape.num_outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits. hidden (B, L, T, W), attention_mask bool (B, T) -> (B, C), or (B, T, C) per token"""
        x = hidden.mean(dim=1)
        if not self.shape.per_token:
            x = x.masked_fill(~attention_mask.unsqueeze(-1), torch.finfo(x.dtype).min).amax(dim=1)
        return self.classifier(self.dropout(x))


def colours() -> TextTask:
    """Return a task: does a text name a warm or a cold colour?"""
    return TextTask(
        name="colours",
        summary="Is the colour of the text warm or cold?",
        texts=("text",),
        classes=("cold", "warm"),
        metrics=("accuracy",),
        max_tokens=32,
        data_source=UserFiles(train=str(DATA)),
    )


def random_tiny() -> Encoder:
    """A small BERT with random weights that reads letters."""
    with tempfile.TemporaryDirectory() as directory:
        vocabulary = Path(directory, "vocab.txt")
        vocabulary.write_text("\n".join([*PIECES, *(f"##{letter}" for letter in PIECES[5:])]))
        tokenizer = BertTokenizerFast(str(vocabulary), model_max_length=64)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):  # the same weights whenever the encoder is loaded
        torch.manual_seed(0)
        return Encoder(BertModel(config), tokenizer, name="random-tiny", copy=False)
