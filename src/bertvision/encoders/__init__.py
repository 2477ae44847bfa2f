"""Encoders of transformers with the hidden states of all layers. Only this package imports transformers."""

from bertvision.encoders.encoder import BERT_HEAD_FILE, Encoder, EncoderInfo, EncoderWithHead, TwoHeadModel
from bertvision.encoders.loading import (
    AUXILIARY_HEAD_FILE,
    LoadedEncoder,
    load_encoder,
    load_encoder_info,
    save_encoder,
    tokenizer_hash,
    weights_hash,
)
from bertvision.encoders.table import ENCODERS, EncoderEntry, register_encoder

__all__ = [
    "ENCODERS",
    "AUXILIARY_HEAD_FILE",
    "BERT_HEAD_FILE",
    "Encoder",
    "TwoHeadModel",
    "EncoderEntry",
    "LoadedEncoder",
    "EncoderWithHead",
    "EncoderInfo",
    "load_encoder",
    "load_encoder_info",
    "register_encoder",
    "save_encoder",
    "tokenizer_hash",
    "weights_hash",
]
