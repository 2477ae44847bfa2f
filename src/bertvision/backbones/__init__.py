"""Any Hugging Face encoder, with all its layers kept. The only room that imports transformers."""

from bertvision.backbones.encoder import Backbone, Joint, Reader
from bertvision.backbones.loading import (
    BESIDE,
    OWN_HEAD,
    Loaded,
    Reading,
    load_backbone,
    load_tokenizer,
    save_backbone,
    tokenizer_hash,
    weights_hash,
)
from bertvision.backbones.table import BACKBONES, Known

__all__ = [
    "BACKBONES",
    "BESIDE",
    "OWN_HEAD",
    "Backbone",
    "Joint",
    "Known",
    "Loaded",
    "Reader",
    "Reading",
    "load_backbone",
    "load_tokenizer",
    "save_backbone",
    "tokenizer_hash",
    "weights_hash",
]
