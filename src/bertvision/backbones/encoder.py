"""An encoder with all its layers kept, and its attention."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertvision.backbones.apart import in_one_row, in_two_rows
from bertvision.backbones.dropout import drop, quicken
from bertvision.backbones.packed import packed
from bertvision.backbones.words import Words
from bertvision.errors import BertVisionError


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The library's attention, but for dropout on a CPU: there no fused kernel takes it, and its draws are slow."""
    special = rest.get("position_bias") is not None or key.shape[1] != query.shape[1]  # biases, shared keys
    if not dropout or query.device.type != "cpu" or special:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **rest)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    return (drop(scores.softmax(dim=-1), dropout) @ value).transpose(1, 2).contiguous(), None


# Families that take positions and see just what a mask of pairs of tokens says.
_PLACED = {"bert", "electra", "albert", "roberta", "xlm-roberta", "camembert"}
# Position 0 .. pad_token_id are never used by these families.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


def first_position(config: Any) -> int:
    """The position of a text's first token."""
    return (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0


ATTENTION = "bertvision"
AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class Backbone(nn.Module):
    """An encoder without its pooler: tokens -> hidden states of every layer."""

    def __init__(self, encoder: Any, precision: str = "float32"):
        super().__init__()
        self.precision = precision
        """Of its products; sums, norms, weights and the states themselves are float32."""
        encoder.pooler = None  # it belongs to the `last` head; here it would be a parameter without a gradient
        quicken(encoder)
        if encoder.config._attn_implementation == "sdpa":
            encoder.set_attn_implementation(ATTENTION)
        self.encoder = encoder
        self.layers: int = encoder.config.num_hidden_layers + 1
        self.width: int = encoder.config.hidden_size

    def forward(self, tokens: dict[str, Tensor], mask: Tensor, layers: Sequence[int] | None = None) -> Tensor:
        """Return every layer, embedding output first, `last_hidden_state` last, or those asked for by their numbers,
        which rise; below 0 are the layers of texts read apart, counted from behind. (B, T) -> (B, L, T, W)"""
        numbers = range(self.layers) if layers is None else layers
        found: list[Tensor] = []
        if numbers[0] < 0:
            apart = self._apart(tokens, mask)
            found += [apart(number) for number in numbers if number < 0]
        if numbers[-1] >= 0:
            together = self._read(tokens, mask > 0)
            found += [together[number] for number in numbers if number >= 0]
        return torch.stack(found, dim=1).float()

    def _read(self, tokens: dict[str, Tensor], seen: Tensor) -> list[Tensor]:
        """Each layer: (B, T, W). `seen`: which tokens are seen, (B, T), or by whom, (B, 1, T, T)."""
        with self._autocast(seen):
            output = self.encoder(**tokens, attention_mask=seen, output_hidden_states=True)
        # Some families normalize once more after the last layer; what BERT's own head reads must come last.
        return [*output.hidden_states[:-1], output.last_hidden_state]

    def _apart(self, tokens: dict[str, Tensor], mask: Tensor) -> Callable[[int], Tensor]:
        """Read each text of a pair by itself; return what gives a layer by its number. -> (B, T, W)"""
        config = self.encoder.config
        if config.model_type in _PLACED and config._attn_implementation == ATTENTION:
            inputs, seen, put_back = in_one_row(tokens, mask, first_position(config))
        else:
            inputs, seen, put_back = in_two_rows(tokens, mask)
        read = self._read(inputs, seen)
        return lambda number: put_back(read[number])

    def packed(self) -> AbstractContextManager[None]:
        """Be quicker for a while, if it is frozen and multiplies in bfloat16 on a CPU; the states are the same."""
        return packed(self.encoder) if self.precision == "bfloat16" else nullcontext()

    def last(self, tokens: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Return the last layer alone, for fine-tuning. (B, T) -> (B, 1, T, W)"""
        with self._autocast(mask):
            output = self.encoder(**tokens, attention_mask=mask > 0)
        return output.last_hidden_state.float().unsqueeze(1)

    def narrow(self, words: Tensor) -> None:
        """Train the embeddings of these words only, all that training will meet; called again, of these, too."""
        table = self.encoder.get_input_embeddings()
        if isinstance(table, Words):
            words, table = torch.cat([table.words, words]).unique(), table.fold()
        if table.weight.requires_grad:
            self.encoder.set_input_embeddings(Words(table, words))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Put the whole table of embeddings back for a while, to save it as other programs know it."""
        words = self.encoder.get_input_embeddings()
        if not isinstance(words, Words):
            yield
            return
        self.encoder.set_input_embeddings(words.fold())
        try:
            yield
        finally:
            self.encoder.set_input_embeddings(words)

    def freeze(self, lowest: int) -> None:
        """Let training leave the lowest layers, counted as `forward` does, as they are: 1 is the embeddings."""
        blocks = [
            each
            for each in self.encoder.modules()
            if isinstance(each, nn.ModuleList) and len(each) == self.layers - 1  # ALBERT has one block for all layers
        ]
        parts = [self.encoder.embeddings, *(blocks[0] if blocks else [])]
        if not 0 <= lowest <= len(parts):
            raise BertVisionError(f"Of this backbone 0 to {len(parts)} layers can be frozen, got {lowest}.")
        for part in parts[:lowest]:
            part.requires_grad_(False)

    def _autocast(self, mask: Tensor) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(mask.device.type, getattr(torch, self.precision))


class Reader(nn.Module):
    """A backbone with a head that reads its last layer: what fine-tuning trains."""

    def __init__(self, backbone: Backbone, head: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, tokens: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Tokens -> logits."""
        return self.head(self.backbone.last(tokens, mask), mask)


class Joint(nn.Module):
    """BERT with its own head and another that reads every layer: what fine-tuning through that head trains."""

    def __init__(self, reader: Reader, beside: nn.Module, pace: float):
        """`pace`: the rate at which the other head, which starts anew, learns, in the backbone's."""
        super().__init__()
        self.reader = reader
        self.beside = beside
        self.pace = pace

    def forward(self, tokens: dict[str, Tensor], mask: Tensor) -> list[Tensor]:
        """Tokens -> logits of each."""
        hidden = self.reader.backbone(tokens, mask)
        return [self.reader.head(hidden, mask), self.beside(hidden, mask)]

    def paces(self) -> list[tuple[nn.Module, float]]:
        """How fast each part learns."""
        return [(self.reader, 1.0), (self.beside, self.pace)]
