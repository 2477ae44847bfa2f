"""Batches of hidden states (B, L, T, W): in memory, computed by an encoder, or read from a store."""

from bertvision.states.batch_plan import BatchPlan
from bertvision.states.formats import FORMATS
from bertvision.states.in_memory import InMemoryStates, StateSource, read_into_memory
from bertvision.states.layout import Layout, RowTable, is_store, view_to_manifest
from bertvision.states.partition import partition
from bertvision.states.store import Store
from bertvision.states.store_writer import WriteOptions, write
from bertvision.states.stored import StoredStates
from bertvision.states.token_batches import TokenBatches

__all__ = [
    "FORMATS",
    "InMemoryStates",
    "Layout",
    "BatchPlan",
    "RowTable",
    "StateSource",
    "Store",
    "StoredStates",
    "TokenBatches",
    "WriteOptions",
    "is_store",
    "read_into_memory",
    "partition",
    "view_to_manifest",
    "write",
]
