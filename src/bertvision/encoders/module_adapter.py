"""Models that are not from transformers: the protocol that they follow, and the adapter through which they are used."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from bertvision.errors import BertVisionError
from bertvision.files import save_tensors

WEIGHTS_FILE = "model.safetensors"


@runtime_checkable
class HiddenStateModel(Protocol):
    """The protocol of own encoders: an `nn.Module` that returns the hidden states of all its layers.

    `num_layers` counts the hidden states that `forward` returns; the first is the embedding output. An optional
    attribute `max_tokens` limits the length of inputs (default: 512).
    """

    num_layers: int
    hidden_size: int

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Sequence[Tensor] | Tensor:
        """Return the hidden states of all layers: `num_layers` tensors (B, T, W), or one tensor (B, L, T, W).

        `input_ids` is int64 (B, T), `attention_mask` bool (B, T). Other outputs of the tokenizer, such as
        `token_type_ids`, are passed if `forward` has parameters of their names.
        """
        ...


class ModuleAdapter(nn.Module):
    """Gives a `HiddenStateModel` the part of the interface of transformers that `Encoder` uses."""

    def __init__(self, module: Any):
        super().__init__()
        self.module = module
        self.config = SimpleNamespace(
            model_type="module",
            num_hidden_layers=module.num_layers - 1,
            hidden_size=module.hidden_size,
            max_position_embeddings=getattr(module, "max_tokens", 512),
            name_or_path=type(module).__name__,
            _attn_implementation="",
        )
        parameters = inspect.signature(module.forward).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._accepted = None if takes_all else set(parameters)

    def forward(self, attention_mask: Tensor, output_hidden_states: bool = True, **tokens: Tensor) -> SimpleNamespace:
        """Return an object with `hidden_states` and `last_hidden_state`."""
        inputs = {name: x for name, x in tokens.items() if self._accepted is None or name in self._accepted}
        states = self.module(attention_mask=attention_mask, **inputs)
        layers = states.unbind(dim=1) if isinstance(states, Tensor) else tuple(states)
        num_layers, width = self.module.num_layers, self.module.hidden_size
        if len(layers) != num_layers or layers[-1].shape != (*attention_mask.shape, width):
            raise BertVisionError(
                f"{self.config.name_or_path} has num_layers={num_layers} and hidden_size={width}, but returned "
                f"{len(layers)} hidden states, the last of shape {tuple(layers[-1].shape)}. Its `forward` must return "
                f"{num_layers} hidden states of shape (batch, tokens, {width}), embedding output included."
            )
        return SimpleNamespace(hidden_states=layers, last_hidden_state=layers[-1])

    def get_input_embeddings(self) -> None:
        """Return None: the embedding table of the module is not known."""

    def save_pretrained(self, directory: Path) -> None:
        """Write the weights of the module. Its code is not saved."""
        tensors = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        save_tensors(Path(directory) / WEIGHTS_FILE, tensors)
