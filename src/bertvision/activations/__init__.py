"""Batches of hidden states (B, L, T, W), wherever they come from."""

from bertvision.activations.choosing import MEMORY, MODES, Wanted, choose
from bertvision.activations.converting import convert
from bertvision.activations.formats import FORMATS
from bertvision.activations.kept import Kept, Source, keep
from bertvision.activations.layout import Layout, Rows, is_store
from bertvision.activations.part import part_of
from bertvision.activations.plan import Plan
from bertvision.activations.store import Store, find_stores, remove_store
from bertvision.activations.stored import Stored
from bertvision.activations.streamed import Streamed
from bertvision.activations.tokens import Tokens
from bertvision.activations.writing import write

__all__ = [
    "FORMATS",
    "MEMORY",
    "MODES",
    "Kept",
    "Layout",
    "Plan",
    "Rows",
    "Source",
    "Store",
    "Stored",
    "Streamed",
    "Tokens",
    "Wanted",
    "choose",
    "convert",
    "find_stores",
    "is_store",
    "keep",
    "part_of",
    "remove_store",
    "write",
]
