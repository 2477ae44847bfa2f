"""Load an encoder from disk, the package registry or the Hub; save it; hash its weights."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from bertvision.encoders.encoder import Encoder, EncoderWithHead, first_position
from bertvision.encoders.table import ENCODERS
from bertvision.errors import BertVisionError, suggestion
from bertvision.files import require_space, save_tensors
from bertvision.sources import can_connect, unpack

# Their classification head is BERT's pooler (dense, tanh) and classifier under other names.
_TANH_HEADS = {"roberta", "xlm-roberta", "camembert", "mpnet"}

BERT_HEAD_FILE = "last.safetensors"
"""BERT's own head, beside the encoder it was fine-tuned with."""
AUXILIARY_HEAD_FILE = "auxiliary_head.safetensors"
"""The auxiliary head of fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class LoadedEncoder:
    """An encoder with its tokenizer and the weights of BERT's own head."""

    name: str
    encoder: Encoder
    tokenizer: Any
    last: dict[str, Tensor] = field(default_factory=dict)
    """Weights of BERT's own head in the checkpoint: `pooler.*` and/or `classifier.*`."""
    dropout: float = 0.1
    """The dropout before the classifier, from the checkpoint's config."""


def load_encoder(name: str, precision: str = "float32") -> LoadedEncoder:
    """Load an encoder by a name of ENCODERS, a Hub name, or a directory in the Hugging Face layout.

    `precision` is the number type of matrix products; weights are float32. Code in a model directory is not executed.
    """
    known = ENCODERS.get(name)
    where, config, tokenizer = _find(name)
    with _readable(name), _quiet():
        model_body, last = _read_weights(where, config)
        own = Path(where) / BERT_HEAD_FILE
        if own.is_file():
            last = load_file(own)
    if known and known.fresh_pooler:
        last = {key: value for key, value in last.items() if not key.startswith("pooler.")}
    dropout = getattr(config, "classifier_dropout", None)
    if dropout is None:
        dropout = getattr(config, "hidden_dropout_prob", 0.1)
    encoder = Encoder(model_body, precision, copy=False)
    return LoadedEncoder(name=name, encoder=encoder, tokenizer=tokenizer, last=last, dropout=float(dropout))


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

    @property
    def pad_ids(self) -> dict[str, int]:
        """The padding value of each input."""
        return {"input_ids": self.tokenizer.pad_token_id or 0, "token_type_ids": 0}


def load_encoder_info(name: str) -> EncoderInfo:
    """Load the tokenizer and the dimensions of an encoder."""
    _, config, tokenizer = _find(name)
    known = ENCODERS.get(name)
    rate = known.learning_rate if known else 0.0
    return EncoderInfo(
        tokenizer=tokenizer,
        max_tokens=_max_tokens(config, tokenizer),
        num_layers=config.num_hidden_layers + 1,
        hidden_size=config.hidden_size,
        learning_rate=rate,
    )


def _find(name: str) -> tuple[str, Any, Any]:
    """Return the location of an encoder's files, its config and its tokenizer."""
    known = ENCODERS.get(name)
    where = name
    if known and known.package:
        where = str(unpack(known.package, known.folder))
    elif known:
        where = known.hub
    with _readable(name), _quiet():
        config = AutoConfig.from_pretrained(where, trust_remote_code=False, local_files_only=_offline(where))
        _require_encoder(name, config)
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, local_files_only=_offline(where))
    if not getattr(tokenizer, "is_fast", False):
        raise BertVisionError(f"Encoder {name!r} has no fast tokenizer. It is needed for the offsets of answers.")
    return where, config, tokenizer


def save_encoder(directory: Path, bert: EncoderWithHead, tokenizer: Any) -> None:
    """Write encoder and tokenizer in the Hugging Face layout, and BERT's own head."""
    with _quiet(), bert.encoder.full_table():
        size = sum(p.numel() * p.element_size() for p in bert.parameters())
        require_space(directory, size, "The fine-tuned encoder")
        bert.encoder.model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    save_tensors(directory / BERT_HEAD_FILE, bert.head.state_dict())


def weights_hash(encoder: Encoder) -> str:
    """Return the SHA-256 of all tensors, in order of their names."""
    digest = hashlib.sha256()
    for key, tensor in sorted(encoder.model.state_dict().items()):
        digest.update(key.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's class, vocabulary and special tokens."""
    kind = type(tokenizer).__name__, sorted(map(str, tokenizer.all_special_tokens))
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps([kind, vocabulary]).encode()).hexdigest()


@cache
def _offline(where: str) -> bool:
    """Return whether to load local files only: transformers waits half a minute for a Hub that does not answer."""
    return Path(where).is_dir() or not can_connect(huggingface_hub.constants.ENDPOINT)


def _require_encoder(name: str, config: Any) -> None:
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


def _read_weights(where: str, config: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the bare encoder, and the weights of BERT's own head in the checkpoint."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    if architecture.endswith("ForQuestionAnswering"):
        auto = transformers.AutoModelForQuestionAnswering
    elif architecture.endswith("ForSequenceClassification"):
        auto = transformers.AutoModelForSequenceClassification
    else:
        auto = transformers.AutoModel
    model, info = auto.from_pretrained(
        where,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        local_files_only=_offline(where),
    )
    missing = set(info["missing_keys"])
    model_body = getattr(model, model.base_model_prefix, model)
    prefix = "" if model_body is model else f"{model.base_model_prefix}."
    absent = [key for key in missing if key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")]
    absent = [key for key in absent if prefix or "." in key]
    if absent:
        raise BertVisionError(
            f"Checkpoint {where!r} lacks {len(absent)} of the encoder's tensors, {sorted(absent)[0]!r} among them. "
            "Use a complete checkpoint."
        )
    last: dict[str, Tensor] = {}
    pooler = getattr(model_body, "pooler", None)
    pooler = getattr(pooler, "dense", pooler)
    if isinstance(pooler, nn.Linear) and not any("pooler." in key for key in missing):
        last |= _linear("pooler", pooler)
    qa, classifier = getattr(model, "qa_outputs", None), getattr(model, "classifier", None)
    if isinstance(qa, nn.Linear):
        last |= _linear("classifier", qa)
    elif isinstance(classifier, nn.Linear) and "pooler.weight" in last:
        last |= _linear("classifier", classifier)
    elif config.model_type in _TANH_HEADS and classifier is not None:
        last |= _linear("pooler", classifier.dense) | _linear("classifier", classifier.out_proj)
    return model_body, last


def _linear(name: str, layer: Any) -> dict[str, Tensor]:
    return {f"{name}.weight": layer.weight.detach().clone(), f"{name}.bias": layer.bias.detach().clone()}


def _max_tokens(config: Any, tokenizer: Any) -> int:
    """Return the largest number of tokens that encoder and tokenizer support."""
    positions = getattr(config, "max_position_embeddings", 512) - first_position(config)
    return int(min(positions, tokenizer.model_max_length))


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn the errors of reading a checkpoint into a BertVisionError."""
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if Path(name).is_dir():
            raise BertVisionError(f"Cannot read the checkpoint in {name}: {reason}") from error
        raise BertVisionError(_not_available(name, reason)) from error


def _not_available(name: str, reason: str) -> str:
    """Return the message for an encoder that is neither a directory nor to be had from the Hub."""
    entry = ENCODERS.get(name)
    others = "Encoders of the package registry, such as `minilm`, do not need the Hub; a directory works as well."
    if entry is not None and (huggingface_hub.constants.HF_HUB_OFFLINE or _offline(entry.hub)):
        return (
            f"Encoder {name!r} ({entry.hub}) is not in the local cache, and the Hub cannot be reached to download it. "
            f"{others} ({reason})"
        )
    hint = "" if entry is not None else suggestion(name, ENCODERS)
    return (
        f"Cannot load encoder {name!r}: there is no such directory, and the Hub did not return it.{hint} "
        f"`bertvision encoders` lists names. {others} ({reason})"
    )


@contextmanager
def _quiet() -> Iterator[None]:
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
