"""The heads. To add one: write its parts in one file here, and add one line to HEADS in table.py."""

from bertvision.heads.building import (
    build_for_view,
    build_head,
    count_parameters,
    required_view,
    select_from_view,
    set_training_precision,
    training_dtype,
)
from bertvision.heads.config import (
    AUXILIARY_HEADS,
    BERT_HEAD,
    DEFAULT_HEADS,
    DEFAULT_LEARNING_RATES,
    ENCODINGS,
    HeadConfig,
    default_head,
    options_of,
    resolve_heads,
)
from bertvision.heads.head import BertHead, Head, LayerSelect, LinearHead
from bertvision.heads.input_spec import InputSpec, input_spec_of
from bertvision.heads.layer_selection import select_layers
from bertvision.heads.legacy import load_head_weights, upgrade_state_dict
from bertvision.heads.table import HEADS, register_head
from bertvision.heads.token_pooling import TOKEN_POOLINGS

__all__ = [
    "AUXILIARY_HEADS",
    "BERT_HEAD",
    "DEFAULT_HEADS",
    "DEFAULT_LEARNING_RATES",
    "ENCODINGS",
    "HEADS",
    "TOKEN_POOLINGS",
    "BertHead",
    "Head",
    "HeadConfig",
    "InputSpec",
    "LayerSelect",
    "LinearHead",
    "build_for_view",
    "build_head",
    "count_parameters",
    "default_head",
    "input_spec_of",
    "load_head_weights",
    "options_of",
    "register_head",
    "required_view",
    "resolve_heads",
    "select_from_view",
    "select_layers",
    "set_training_precision",
    "training_dtype",
    "upgrade_state_dict",
]
