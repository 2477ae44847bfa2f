"""Batches of hidden states (B, L, T, W): in memory, computed by an encoder, or read from a store."""

from bertvision.states.batch_plan import BatchPlan
from bertvision.states.computed import ComputedStates
from bertvision.states.conversion import convert
from bertvision.states.formats import FORMATS
from bertvision.states.in_memory import InMemoryStates, StateSource, read_into_memory
from bertvision.states.layout import Layout, RowTable, is_store, view_to_manifest
from bertvision.states.partition import partition
from bertvision.states.requests import MEMORY, MODES, StateRequest, open_states
from bertvision.states.store import Store, find_stores, remove_store
from bertvision.states.store_writer import write
from bertvision.states.stored import StoredStates
from bertvision.states.token_batches import TokenBatches

__all__ = [
    "FORMATS",
    "MEMORY",
    "MODES",
    "InMemoryStates",
    "Layout",
    "BatchPlan",
    "RowTable",
    "StateSource",
    "Store",
    "StoredStates",
    "ComputedStates",
    "TokenBatches",
    "StateRequest",
    "open_states",
    "convert",
    "find_stores",
    "is_store",
    "read_into_memory",
    "partition",
    "remove_store",
    "view_to_manifest",
    "write",
]
