"""An encoder that returns the hidden states of all its layers, alone and with heads."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import cpu_optimizations
from bertvision.cpu_optimizations.attention import ATTENTION, replace_attention
from bertvision.cpu_optimizations.dropout import replace_dropout
from bertvision.cpu_optimizations.packed_linear import packed
from bertvision.cpu_optimizations.partial_embedding import full_table, restrict_vocabulary
from bertvision.encoders.bi_encoding import encode_in_one_row, encode_in_two_rows
from bertvision.errors import BertVisionError
from bertvision.types import call_head, require_bool

# Families that take positions and see just what a mask of pairs of tokens says.
_PLACED = {"bert", "electra", "albert", "roberta", "xlm-roberta", "camembert"}
# Position 0 .. pad_token_id are never used by these families.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


def first_position(config: Any) -> int:
    """The position of a text's first token."""
    return (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0


class Encoder(nn.Module):
    """An encoder without its pooler: tokens -> hidden states of every layer.

    Args:
        model: An encoder of transformers. It is copied, so that the caller's model is never changed.
        precision: The number type of matrix products. Weights, sums, norms and hidden states are float32.
        copy: Whether to copy the model. Pass False to give the model away, which saves its memory.
    """

    def __init__(self, model: Any, precision: str = "float32", *, copy: bool = True):
        super().__init__()
        self.precision = precision
        self.model = deepcopy(model) if copy else model
        self.model.pooler = None  # the head has a pooler of its own; this one would be a parameter without a gradient
        self.num_layers: int = model.config.num_hidden_layers + 1
        self.hidden_size: int = model.config.hidden_size
        if cpu_optimizations.enabled():
            replace_dropout(self.model)
            replace_attention(self.model)

    def forward(
        self,
        tokens: dict[str, Tensor],
        attention_mask: Tensor,
        text_ids: Tensor | None = None,
        *,
        cross_layers: Sequence[int] | None = None,
        bi_layers: Sequence[int] = (),
    ) -> Tensor:
        """Return the hidden states of layers. Layer 0 is the embedding output. (B, T) -> (B, L, T, W)

        Args:
            tokens: the inputs of the model except its attention mask, each (B, T).
            attention_mask: bool (B, T).
            text_ids: (B, T), 1 for the tokens of a pair's second text. Only the bi-encoding reads them.
            cross_layers: layers of the cross-encoding, which reads a pair as one sequence; all by default.
            bi_layers: layers of the bi-encoding, which reads each text separately; they come first in the result.
        """
        require_bool(attention_mask)
        cross_layers = range(self.num_layers) if cross_layers is None else cross_layers
        states: list[Tensor] = []
        if bi_layers:
            bi_layer = self._read_bi(tokens, attention_mask, text_ids)
            states += [bi_layer(layer) for layer in bi_layers]
        if cross_layers:
            cross = self._read(tokens, attention_mask)
            states += [cross[layer] for layer in cross_layers]
        return torch.stack(states, dim=1).float()

    def _read(self, tokens: dict[str, Tensor], mask: Tensor) -> list[Tensor]:
        """Return the states of each layer, (B, T, W). `mask`: bool (B, T), or (B, 1, T, T) for pairs of tokens."""
        with self._autocast(mask):
            output = self.model(**tokens, attention_mask=mask, output_hidden_states=True)
        # Some families normalize after the last layer. The last of the states must be the input of BERT's own head.
        return [*output.hidden_states[:-1], output.last_hidden_state]

    def _read_bi(
        self, tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor | None
    ) -> Callable[[int], Tensor]:
        """Encode each text of a pair separately; return a function from layer to states. -> (B, T, W)"""
        config = self.model.config
        text_ids = torch.zeros_like(attention_mask) if text_ids is None else text_ids
        if config.model_type in _PLACED and config._attn_implementation in ("sdpa", ATTENTION):
            inputs, mask, put_back = encode_in_one_row(tokens, attention_mask, text_ids, first_position(config))
        else:
            inputs, mask, put_back = encode_in_two_rows(tokens, attention_mask, text_ids)
        states = self._read(inputs, mask)
        return lambda layer: put_back(states[layer])

    def packed(self) -> AbstractContextManager[None]:
        """Speed up a frozen encoder with bfloat16 products on a CPU inside a `with` block; the states are the same."""
        usable = self.precision == "bfloat16" and cpu_optimizations.enabled()
        return packed(self.model) if usable else nullcontext()

    def last(self, tokens: dict[str, Tensor], attention_mask: Tensor) -> Tensor:
        """Return the last layer alone, for fine-tuning. (B, T) -> (B, 1, T, W)"""
        require_bool(attention_mask)
        with self._autocast(attention_mask):
            output = self.model(**tokens, attention_mask=attention_mask)
        return output.last_hidden_state.float().unsqueeze(1)

    def restrict_vocabulary(self, vocabulary: Tensor) -> None:
        """Announce the ids of all tokens that training will meet, so that only their embeddings are trained.

        A second call adds tokens. Without the optimizations for CPUs all embeddings are trained.
        """
        if cpu_optimizations.enabled():
            restrict_vocabulary(self.model, vocabulary)

    def full_table(self) -> AbstractContextManager[None]:
        """Put the full embedding table back inside a `with` block, so that the model is saved as an ordinary one."""
        return full_table(self.model)

    def freeze(self, lowest: int) -> None:
        """Exclude the lowest layers from training: 1 freezes the embeddings, 2 also the first layer, and so on."""
        blocks = [
            each
            for each in self.model.modules()
            if isinstance(each, nn.ModuleList)
            and len(each) == self.num_layers - 1  # ALBERT has one block for all layers
        ]
        parts = [self.model.embeddings, *(blocks[0] if blocks else [])]
        if not 0 <= lowest <= len(parts):
            raise BertVisionError(f"0 to {len(parts)} layers of this encoder can be frozen, got {lowest}.")
        for part in parts[:lowest]:
            part.requires_grad_(False)

    def _autocast(self, mask: Tensor) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(mask.device.type, getattr(torch, self.precision))


class EncoderWithHead(nn.Module):
    """An encoder with a head on its last layer, for fine-tuning."""

    def __init__(self, encoder: Encoder, head: nn.Module):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        """Tokens -> logits."""
        return call_head(self.head, self.encoder.last(tokens, attention_mask), attention_mask, text_ids)


class TwoHeadModel(nn.Module):
    """An encoder with BERT's own head and an auxiliary head on all layers, for fine-tuning with both."""

    def __init__(self, bert: EncoderWithHead, auxiliary_head: nn.Module, lr_scale: float):
        """`lr_scale`: the learning rate of the auxiliary head, as a multiple of the encoder's."""
        super().__init__()
        self.bert = bert
        self.auxiliary_head = auxiliary_head
        self.lr_scale = lr_scale

    def forward(
        self, tokens: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor | None = None
    ) -> list[Tensor]:
        """Tokens -> logits of each head."""
        hidden = self.bert.encoder(tokens, attention_mask)
        return [call_head(head, hidden, attention_mask, text_ids) for head in (self.bert.head, self.auxiliary_head)]

    def learning_rate_scales(self) -> list[tuple[nn.Module, float]]:
        """Return the modules with multiples of the learning rate."""
        return [(self.bert, 1.0), (self.auxiliary_head, self.lr_scale)]
