"""Make a smaller store of a store, without the backbone."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.store import Store
from bertvision.states.store_writer import write
from bertvision.states.stored import StoredStates
from bertvision.types import StateView


def convert(source: Store, path: Path, *, type: str = "", view: StateView | None = None) -> Store:
    """Write the states of `source` in another number type, or fewer of them."""
    view = view or source.view
    if missing := source.lacks({}, view):
        raise BertVisionError(f"The store at {source.path} cannot become that: {missing}.")
    if Path(path).resolve() == source.path.resolve():
        raise BertVisionError("A store cannot be converted in place. Name another directory.")
    known = source.known
    lengths = np.ones_like(known.lengths) if view.first_token_only else known.lengths
    # The plan is not used: the writer asks for the rows of each shard.
    read = StoredStates(source, BatchPlan(known.lengths, 1), view)
    identity = {key: value for key, value in source.identity.items() if key != "pooler" or view.pooler_output}
    return write(
        path,
        read,
        replace(known, lengths=lengths),
        identity,
        width=source.layout.width,
        type=type or source.layout.type,
        shard=source.layout.shard,
        label="convert states",
    )
