"""Logits of whole splits."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from bertvision import devices, distributed
from bertvision.progress import bar
from bertvision.states import partition
from bertvision.types import Batches, Predictions


@torch.no_grad()
def predict(
    models: Mapping[str, nn.Module],
    batches: Batches,
    ids: Sequence[str],
    offsets: np.ndarray | None = None,
    *,
    label: str = "predict",
) -> dict[str, Predictions]:
    """Collect each model's logits over one pass, in the order of `ids`; `offsets` for per-token tasks."""
    device = devices.device()
    found: dict[str, np.ndarray] = {}
    for model in models.values():
        model.to(device).eval()
    with bar(label, total=batches.rows) as advance:
        for batch in partition(batches, whole=True).epoch(0):
            batch = batch.to(device)
            for name, model in models.items():
                logits = model(batch.inputs, batch.mask).float().cpu()
                if name not in found:
                    total = len(ids) if offsets is None else int(offsets[-1])
                    found[name] = np.zeros((total, logits.shape[-1]), dtype=np.float32)
                if offsets is None:
                    found[name][batch.rows] = logits.numpy()
                else:
                    _scatter(found[name], logits[batch.mask.cpu() > 0].numpy(), offsets, batch.rows)
            advance(len(batch.rows))
            del batch  # so that its memory is freed before the next one is made
    found = _gather(found, list(models), len(ids) if offsets is None else int(offsets[-1]))
    return {name: Predictions(ids=list(ids), logits=logits, offsets=offsets) for name, logits in found.items()}


def _gather(found: dict[str, np.ndarray], names: Sequence[str], rows: int) -> dict[str, np.ndarray]:
    """Put together what the processes have predicted: each row is zero in all but one of them."""
    if distributed.num_processes() == 1:
        return found
    # With fewer batches than processes, some know nothing, not even how many outputs there are.
    holders = distributed.all_reduce_sum(torch.tensor(int(bool(found))))
    width = int(distributed.all_reduce_sum(torch.tensor(found[names[0]].shape[1] if found else 0)) / holders)
    empty = np.zeros((rows, width), dtype=np.float32)
    return {name: distributed.all_reduce_sum(torch.from_numpy(found.get(name, empty.copy()))).numpy() for name in names}


def _scatter(flat: np.ndarray, values: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> None:
    """Put the real tokens of a batch, row after row, where their rows belong."""
    lengths = offsets[rows + 1] - offsets[rows]
    first = np.repeat(offsets[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    flat[first + np.arange(lengths.sum())] = values
