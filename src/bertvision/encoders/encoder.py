"""An encoder that returns the hidden states of all its layers, alone and with heads."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertvision import cpu_optimizations, devices
from bertvision.cpu_optimizations.attention import ATTENTION, replace_attention
from bertvision.cpu_optimizations.dropout import replace_dropout
from bertvision.cpu_optimizations.packed_linear import packed
from bertvision.cpu_optimizations.partial_embedding import full_table, restrict_vocabulary
from bertvision.encoders.bi_encoding import encode_in_one_row, encode_in_two_rows
from bertvision.encoders.model_parts import (
    ModuleAdapter,
    bert_head_weights,
    first_position,
    model_body,
    quiet,
    without_peft,
)
from bertvision.encoders.table import ENCODERS
from bertvision.errors import BertVisionError
from bertvision.files import require_space, save_tensors, write_json
from bertvision.types import call_head, require_bool

BERT_HEAD_FILE = "last.safetensors"
"""The weights of BERT's own head, in the directory of the encoder it belongs to."""
REGISTERED_FILE = "registered_encoder.json"
"""The registered name of an encoder whose code is not part of transformers, in the directory of its weights."""

# Families that take positions and attend exactly as a mask of pairs of tokens says.
_PLACED = {"bert", "electra", "albert", "roberta", "xlm-roberta", "camembert"}


@dataclass(frozen=True, kw_only=True)
class EncoderInfo:
    """The tokenizer and dimensions of an encoder, without its weights."""

    tokenizer: Any
    max_tokens: int
    num_layers: int
    """Embedding output included."""
    hidden_size: int
    learning_rate: float
    """The recommended learning rate of fine-tuning; 0: the default of the task."""

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any, learning_rate: float = 0.0) -> "EncoderInfo":
        """Read the dimensions of an encoder from its configuration."""
        positions = getattr(config, "max_position_embeddings", 512) - first_position(config)
        return cls(
            tokenizer=tokenizer,
            max_tokens=int(min(positions, tokenizer.model_max_length)),
            num_layers=config.num_hidden_layers + 1,
            hidden_size=config.hidden_size,
            learning_rate=learning_rate,
        )

    @property
    def pad_ids(self) -> dict[str, int]:
        """The padding value of each input."""
        return {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": 0}


class Encoder(nn.Module):
    """An encoder without its pooler: tokens -> hidden states of every layer.

    `model` is a bidirectional encoder of transformers, alone, with a task's head, or wrapped by peft; or any
    `nn.Module` that follows this protocol:

    - `num_layers` counts the hidden states that it returns. The first is the embedding output.
    - `hidden_size` is their size W. Optionally, `max_tokens` limits the length of inputs (default: 512).
    - `forward(input_ids, attention_mask)` takes int64 and bool tensors (B, T), and returns the hidden states of all
      layers: `num_layers` tensors (B, T, W), or one tensor (B, L, T, W). Other outputs of the tokenizer, such as
      `token_type_ids`, are passed if `forward` has parameters of their names.

    Args:
        model: The model. It is copied, so that the caller's model is never changed.
        tokenizer: The tokenizer of the model. Only the forward pass works without one.
        precision: The number type of matrix products: "float32", "bfloat16", "float16", or "auto" for the fastest
            that this machine supports. Weights, sums, norms and hidden states are float32.
        name: The name of the encoder in records. By default it is the name that the model was loaded by. The name of a
            module that is not from transformers must be registered before it can be saved (`register_encoder`).
        learning_rate: The recommended learning rate of fine-tuning; 0: the default of the task.
        copy: Whether to copy the model. Pass False to give the model away, which saves its memory.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        precision: str = "float32",
        name: str = "",
        learning_rate: float = 0.0,
        copy: bool = True,
    ):
        super().__init__()
        model = deepcopy(model) if copy else model
        self._peft_model = [model] if hasattr(model, "peft_config") else []  # in a list, so that it is no submodule
        with_head = without_peft(model)
        self.model: Any = model_body(with_head).float()
        self.tokenizer = tokenizer
        self.precision: str = devices.resolve_precision(precision)
        self.name: str = name or self.model.config.name_or_path or type(self.model).__name__
        self.learning_rate = learning_rate
        self.bert_head: dict[str, Tensor] = bert_head_weights(with_head)
        """Weights of BERT's own head, if the model has them: `pooler.*` and/or `classifier.*`."""
        self.model.pooler = None  # the head has a pooler of its own; this one would be a parameter without a gradient
        self.num_layers: int = self.model.config.num_hidden_layers + 1
        self.hidden_size: int = self.model.config.hidden_size
        if cpu_optimizations.enabled():
            replace_dropout(self.model)
            replace_attention(self.model)
        self.eval()

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, device: str | torch.device | None = None, precision: str = "float32"
    ) -> "Encoder":
        """Load an encoder by a name of ENCODERS, a Hub name, or the path of a directory in the Hugging Face layout.

        `device` is where the weights are put, e.g. "cuda"; by default it is the CPU.
        """
        from bertvision.encoders.loading import load_encoder  # that module imports this one

        encoder = load_encoder(str(name), precision).encoder
        return encoder if device is None else encoder.to(device)

    def save_pretrained(
        self, directory: str | Path, *, tokenizer: Any = None, bert_head: Mapping[str, Tensor] | None = None
    ) -> None:
        """Write encoder, tokenizer and the weights of BERT's own head in the Hugging Face layout.

        Adapters of peft are merged, so that the directory holds an ordinary encoder. Another tokenizer and other
        weights of the head can be given.
        """
        directory, tokenizer = Path(directory), tokenizer or self.tokenizer
        bert_head = self.bert_head if bert_head is None else bert_head
        self.require_saveable()
        with quiet(), self.full_table():
            size = sum(p.numel() * p.element_size() for p in self.parameters())
            require_space(directory, size, "The encoder")
            model = model_body(deepcopy(self._peft_model[0]).merge_and_unload()) if self._peft_model else self.model
            model.save_pretrained(directory)
            if isinstance(model, ModuleAdapter):
                write_json(directory / REGISTERED_FILE, {"name": self.name})
            if tokenizer is not None:
                tokenizer.save_pretrained(directory)
        if bert_head:
            save_tensors(directory / BERT_HEAD_FILE, dict(bert_head))

    def require_saveable(self) -> None:
        """Raise an error if the encoder could not be loaded again after it was saved."""
        entry = ENCODERS.get(self.name)
        if isinstance(self.model, ModuleAdapter) and not (entry and entry.factory):
            raise BertVisionError(
                f"The encoder {self.name!r} is not part of transformers, so it can be saved only under a registered "
                "name. Call `register_encoder(NAME, FUNCTION)` with a function that builds the encoder, and give "
                "`Encoder` that name: Encoder(module, tokenizer, name=NAME)."
            )

    @property
    def info(self) -> EncoderInfo:
        """The tokenizer, the padding, and the dimensions."""
        if self.tokenizer is None:
            raise BertVisionError("This encoder has no tokenizer. Create it with Encoder(model, tokenizer).")
        return EncoderInfo.from_config(self.model.config, self.tokenizer, self.learning_rate)

    @property
    def dropout(self) -> float:
        """The dropout before the classifier, from the configuration of the model."""
        config = self.model.config
        dropout = getattr(config, "classifier_dropout", None)
        return float(getattr(config, "hidden_dropout_prob", 0.1) if dropout is None else dropout)

    def weights_hash(self) -> str:
        """Return the SHA-256 of all tensors, in order of their names."""
        digest = hashlib.sha256()
        for key, tensor in sorted(self.model.state_dict().items()):
            digest.update(key.encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

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
        if cpu_optimizations.enabled() and self.model.get_input_embeddings() is not None:
            restrict_vocabulary(self.model, vocabulary)

    def full_table(self) -> AbstractContextManager[None]:
        """Put the full embedding table back inside a `with` block, so that the model is saved as an ordinary one."""
        return full_table(self.model)

    def freeze(self, lowest: int) -> None:
        """Exclude the lowest layers from training: 1 freezes the embeddings, 2 also the first layer, and so on."""
        parts = self._parts()
        if not 0 <= lowest <= len(parts):
            raise BertVisionError(f"0 to {len(parts)} layers of this encoder can be frozen, got {lowest}.")
        for part in parts[:lowest]:
            part.requires_grad_(False)

    def layer_scales(self, layer_decay: float) -> list[tuple[nn.Module, float]]:
        """Return the embeddings and the layers with multiples of the learning rate, which fall from layer to layer."""
        if len(parts := self._parts()) != self.num_layers:
            raise BertVisionError(f"{self.name} has no separate layers for layer_decay={layer_decay:g}; use 1.")
        return [(part, layer_decay ** (len(parts) - index)) for index, part in enumerate(parts)]

    def _parts(self) -> list[nn.Module]:
        lists = (module for module in self.model.modules() if isinstance(module, nn.ModuleList))
        layers = next((blocks for blocks in lists if len(blocks) == self.num_layers - 1), [])  # none in ALBERT
        return [self.model.embeddings, *layers] if hasattr(self.model, "embeddings") else []

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
