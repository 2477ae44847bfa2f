"""Parts of models: the bare encoder, the adapters of peft, the head, and modules that are not from transformers."""

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from bertvision.errors import BertVisionError
from bertvision.files import save_tensors

WEIGHTS_FILE = "model.safetensors"
# Positions 0 .. pad_token_id are never used by these families.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}
# Their classification head is BERT's pooler (dense, tanh) and classifier under other names.
_TANH_HEADS = {"roberta", "xlm-roberta", "camembert", "mpnet"}


def first_position(config: Any) -> int:
    """Return the position of a text's first token."""
    return (config.pad_token_id or 0) + 1 if config.model_type in _OFFSET_POSITIONS else 0


def without_peft(model: Any) -> Any:
    """Return the model inside a wrapper of peft, with the adapters in its layers; any other model as it is."""
    if not hasattr(model, "peft_config"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise BertVisionError(
            f"The peft method {model.active_peft_config.peft_type} adds virtual tokens to the input, which is not "
            "supported. Use a method that changes the layers, such as LoRA."
        )
    return model.get_base_model()


def model_body(model: Any) -> Any:
    """Return the bare encoder of a model with or without a head of its own."""
    if not isinstance(model, transformers.PreTrainedModel):
        if isinstance(model, nn.Module) and hasattr(model, "num_layers") and hasattr(model, "hidden_size"):
            return ModuleAdapter(model)
        if isinstance(model, str | os.PathLike):
            raise BertVisionError(
                f"Encoder takes a loaded model and its tokenizer, got the name {os.fspath(model)!r}. "
                f"Encoder.from_pretrained({os.fspath(model)!r}) loads an encoder by its name or directory."
            )
        raise BertVisionError(
            f"An encoder is a model of transformers, or an nn.Module with `num_layers`, `hidden_size` and a `forward` "
            f"that returns all hidden states; got {type(model).__name__}."
        )
    require_encoder(model.config.name_or_path or type(model).__name__, model.config)
    return getattr(model, model.base_model_prefix, model)


def require_encoder(name: str, config: Any) -> None:
    """Raise an error unless the model is a bidirectional text encoder that needs no code of its own."""
    kind = config.model_type
    if getattr(config, "auto_map", None):
        raise BertVisionError(
            f"Encoder {name!r} comes with Python code of its own (`auto_map` in config.json), which bertvision never "
            "executes. Use an encoder that transformers itself implements."
        )
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False):
        raise BertVisionError(f"Encoder {name!r} ({kind}) has a decoder; bertvision supports encoders such as BERT.")
    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise BertVisionError(
            f"Encoder {name!r} is of type {kind!r}, which is not a bidirectional text encoder; "
            "BERT, RoBERTa, ELECTRA, DistilBERT, ALBERT, ModernBERT, DeBERTa and MPNet are."
        )


def bert_head_weights(model: Any, missing: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return the weights of a model's pooler and classifier; the pooler is left out if the checkpoint lacked it."""
    if not isinstance(model, transformers.PreTrainedModel):
        return {}
    weights: dict[str, Tensor] = {}
    pooler = getattr(getattr(model, model.base_model_prefix, model), "pooler", None)
    pooler = getattr(pooler, "dense", pooler)
    if isinstance(pooler, nn.Linear) and not any("pooler." in key for key in missing):
        weights |= _linear("pooler", pooler)
    qa, classifier = getattr(model, "qa_outputs", None), getattr(model, "classifier", model)
    if isinstance(qa, nn.Linear):
        weights |= _linear("classifier", qa)
    elif isinstance(classifier, nn.Linear) and "pooler.weight" in weights:
        weights |= _linear("classifier", classifier)
    elif model.config.model_type in _TANH_HEADS and hasattr(classifier, "out_proj"):
        weights |= _linear("pooler", classifier.dense) | _linear("classifier", classifier.out_proj)
    return weights


def _linear(name: str, layer: Any) -> dict[str, Tensor]:
    return {f"{name}.weight": layer.weight.detach().clone(), f"{name}.bias": layer.bias.detach().clone()}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages and progress bars of transformers."""
    logging = transformers.utils.logging
    level, bars_enabled = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars_enabled:
            logging.enable_progress_bar()


class ModuleAdapter(nn.Module):
    """Gives a module of the user's own the part of the interface of transformers that `Encoder` uses."""

    def __init__(self, module: Any):
        super().__init__()
        self.module = module
        self.config: SimpleNamespace = SimpleNamespace(
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
