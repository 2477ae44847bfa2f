"""The hidden states of a split at a fine-tuning checkpoint."""

import numpy as np
import torch
from torch import Tensor

from bertvision import memory
from bertvision.pipeline import cache_keys
from bertvision.pipeline.data import ExperimentData, Split
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.frozen_cache import full_view
from bertvision.pipeline.state_requests import StateRequest, fits, open_states
from bertvision.states import InMemoryStates, RowTable, TokenBatches
from bertvision.states.in_memory import size
from bertvision.types import Batches, StateView


def states(
    data: ExperimentData,
    checkpoint: Checkpoint,
    name: str,
    view: StateView,
    tokens: TokenBatches,
    dtype: torch.dtype = torch.float32,
) -> Batches:
    """Return the hidden states of a split in the order of `tokens`: in memory, computed when read, or from a store.

    Args:
        data: The data and its configuration.
        checkpoint: The fine-tuned encoder.
        name: The split: "train", "validation" or "dev".
        view: Which hidden states to read.
        tokens: The rows, in the order of training or of prediction.
        dtype: The type of the tensors.
    """
    mode = data.experiment.states
    cacheable = not view.pooler_output and not view.first_token_only and mode in ("auto", "stream", "memory")
    split: Split = getattr(data, name)
    if data.frozen_cache is not None and cacheable and fits(_memory(checkpoint, split, view)):
        cached = _cached_rows(data, checkpoint, split, view, dtype)
        return InMemoryStates(cached, _row_table(split, view), tokens.plan)
    request = state_request(data, checkpoint, name, view)
    if name == "dev" and mode in ("auto", "store") and not request.find_store():
        mode = "stream"  # dev is read once
    batches = open_states(mode, request, tokens, dtype)
    memory.trim_memory()
    return batches


def _cached_rows(
    data: ExperimentData, checkpoint: Checkpoint, split: Split, view: StateView, dtype: torch.dtype
) -> list[Tensor]:
    """Return the hidden states (L, T, W) of each row of a split through the cache."""
    assert data.frozen_cache is not None
    everything = full_view(checkpoint.encoder.num_layers, bi_encoding=bool(view.bi_layers))
    source = checkpoint.stream(data.ordered(split), everything)
    states = data.frozen_cache.read(source, cache_keys.frozen_states(data.experiment, checkpoint.encoder_hash))
    positions = everything.positions(view)
    if len(positions) == everything.num_channels:
        return [state.to(dtype) for state in states]
    return [state[positions].to(dtype) for state in states]


def held_out_states(data: ExperimentData, checkpoint: Checkpoint, name: str, view: StateView) -> Batches:
    """Return the hidden states of a held-out split in a fixed order."""
    return states(data, checkpoint, name, view, data.ordered(data.held_out[name]))


def stored_lengths(split: Split, view: StateView) -> np.ndarray:
    """Return the number of tokens to store of each row."""
    return np.ones(len(split.features), dtype=np.int64) if view.first_token_only else split.features.lengths


def _row_table(split: Split, view: StateView) -> RowTable:
    features = split.features
    return RowTable(
        lengths=stored_lengths(split, view),
        labels=features.labels,
        ids=features.ids,
        second_text_starts=features.second_text_starts,
        weights=features.weights,
    )


def _memory(checkpoint: Checkpoint, split: Split, view: StateView) -> int:
    """Return the bytes that the hidden states of a split take in memory."""
    return size(stored_lengths(split, view), view, checkpoint.encoder.hidden_size, torch.float32)


def state_request(data: ExperimentData, checkpoint: Checkpoint, name: str, view: StateView) -> StateRequest:
    """Describe the hidden states of a split: how to compute them, and which store holds them."""
    split: Split = getattr(data, name)
    store = data.experiment.store
    identity = cache_keys.states_identity(data, checkpoint, name, view)
    return StateRequest(
        source=checkpoint.stream(data.ordered(split), view),
        rows=_row_table(split, view),
        width=checkpoint.encoder.hidden_size,
        path=cache_keys.states_directory(data, checkpoint, name, view, identity),
        identity=identity,
        type=store.dtype,
        shard=int(store.shard_megabytes * 2**20),
        epochs=data.head_training.epochs,
    )
