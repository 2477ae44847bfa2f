"""The hidden states of a split at a checkpoint: what a store of them must hold, and where it is."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision import memory
from bertvision.encoders import tokenizer_hash
from bertvision.files import value_hash
from bertvision.pipeline.data import ExperimentData, Split, fingerprint
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.state_requests import StateRequest, open_states
from bertvision.states import RowTable, TokenBatches, view_to_manifest
from bertvision.types import Batches, StateView


def states(
    data: ExperimentData,
    checkpoint: Checkpoint,
    name: str,
    view: StateView,
    tokens: TokenBatches,
    dtype: torch.dtype = torch.float32,
) -> Batches:
    """Return the states of a split in the order of `tokens`: kept, streamed or stored."""
    wanted = state_request(data, checkpoint, name, view)
    mode = data.experiment.states
    if name == "dev" and mode in ("auto", "store") and not wanted.found():
        mode = "stream"  # it is read once
    found = open_states(mode, wanted, tokens, dtype)
    memory.trim_memory()
    return found


def stored_lengths(split: Split, view: StateView) -> np.ndarray:
    """Tokens to be stored of each row."""
    return np.ones(len(split.features), dtype=np.int64) if view.first_token_only else split.features.lengths


def state_request(data: ExperimentData, checkpoint: Checkpoint, name: str, view: StateView) -> StateRequest:
    """Describe the states of a split."""
    split: Split = getattr(data, name)
    experiment, features = data.experiment, split.features
    identity: dict[str, Any] = {
        "backbone": checkpoint.encoder_hash,
        "tokenizer": tokenizer_hash(data.tokenizer),
        "task": data.task.name,
        "split": name,
        "data": fingerprint(split),
        "max_tokens": data.max_tokens,
        "precision": experiment.precision,
    }
    if features.second_text_starts is not None:
        identity["texts"] = 2
    if view.pooler_output:
        identity["pooler"] = value_hash([tensor.tolist() for tensor in checkpoint.last.state_dict().values()])
    stored = view_to_manifest(view)
    key = value_hash(
        [identity, {"layers": stored["layers"], "pooled": stored["pooled"], "first": view.first_token_only}]
    )
    place = Path(experiment.store.directory) if experiment.store.directory else checkpoint.directory / "states"
    return StateRequest(
        source=checkpoint.stream(data.ordered(split), view),
        rows=RowTable(
            lengths=stored_lengths(split, view),
            labels=features.labels,
            ids=features.ids,
            second_text_starts=features.second_text_starts,
        ),
        width=checkpoint.encoder.hidden_size,
        path=place / (name if experiment.store.directory else f"{name}-{experiment.store.dtype}-{key}"),
        identity=identity,
        type=experiment.store.dtype,
        shard=int(experiment.store.shard_megabytes * 2**20),
        epochs=data.heads.epochs,
    )
