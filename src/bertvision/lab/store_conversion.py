"""Convert a store to another number type or a smaller view, without the encoder."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.store import Store
from bertvision.states.store_writer import WriteOptions, write
from bertvision.states.stored import StoredStates
from bertvision.types import StateView


def convert(source: Store, path: Path, *, type: str = "", view: StateView | None = None) -> Store:
    """Write the hidden states of `source` in another number type, or a part of them."""
    view = view or source.view
    if missing := source.lacks({}, view):
        raise BertVisionError(f"The store at {source.path} cannot be converted: {missing}.")
    if Path(path).resolve() == source.path.resolve():
        raise BertVisionError("A store cannot be converted in place. Name another directory.")
    row_table = source.row_table
    lengths = np.ones_like(row_table.lengths) if view.first_token_only else row_table.lengths
    # The plan is not used, since the writer asks for the rows of each shard.
    states = StoredStates(source, BatchPlan(row_table.lengths, 1), view)
    identity = {key: value for key, value in source.identity.items() if key != "pooler" or view.pooler_output}
    return write(
        path,
        states,
        replace(row_table, lengths=lengths),
        identity,
        source.layout.width,
        WriteOptions(type=type or source.layout.type, shard=source.layout.shard, label="convert states"),
    )
