"""Prediction of whole splits."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from bertvision import devices, distributed
from bertvision.progress import bar
from bertvision.states import TokenBatches, partition
from bertvision.types import Batches, Features, Predictions, call_head

EVALUATION_ROWS = 64
EVALUATION_TOKENS = {"cpu": 1024}
"""Tokens of a batch, padding included, by device. Larger batches are no faster on a CPU and need more memory."""
EVALUATION_TOKENS_ELSEWHERE = 4096
EVALUATION_BYTES = 128 * 1024**2
"""Hidden states of all layers of a batch."""


def evaluation_batches(features: Features, pad_ids: dict[str, int], token_bytes: int, device: str) -> TokenBatches:
    """Return batches of a split in a fixed order, for prediction.

    Runs are scored on these batches, and scored again on the same ones: in bfloat16 the hidden states of a text depend
    on the batch that it is in.

    Args:
        features: The rows.
        pad_ids: The padding value of each input.
        token_bytes: Bytes that the hidden states of one token take in all layers, as float32.
        device: The type of the device, e.g. "cpu".
    """
    budget = min(EVALUATION_TOKENS.get(device, EVALUATION_TOKENS_ELSEWHERE), EVALUATION_BYTES // token_bytes)
    return TokenBatches(features, EVALUATION_ROWS, pad_ids, budget=budget)


@torch.no_grad()
def predict(
    models: Mapping[str, nn.Module],
    batches: Batches,
    ids: Sequence[str],
    offsets: np.ndarray | None = None,
    *,
    label: str = "predict",
) -> dict[str, Predictions]:
    """Return the logits of every model for all rows, computed in one pass over the batches.

    Args:
        models: The models by name.
        batches: The rows in any order.
        ids: The id of every row. Predictions are in this order.
        offsets: Start of every row in the flat logits of per-token tasks (N + 1,); None for sentence tasks.
        label: Text of the progress bar.
    """
    device = devices.device()
    logits_by_model: dict[str, np.ndarray] = {}
    for model in models.values():
        model.to(device).eval()
    with bar(label, total=batches.rows) as advance:
        for batch in partition(batches, whole=True).epoch(0):
            batch = batch.to(device)
            for name, model in models.items():
                logits = call_head(model, batch.inputs, batch.attention_mask, batch.text_ids).float().cpu()
                if name not in logits_by_model:
                    total = len(ids) if offsets is None else int(offsets[-1])
                    logits_by_model[name] = np.zeros((total, logits.shape[-1]), dtype=np.float32)
                if offsets is None:
                    logits_by_model[name][batch.rows] = logits.numpy()
                else:
                    _scatter(logits_by_model[name], logits[batch.attention_mask.cpu()].numpy(), offsets, batch.rows)
            advance(len(batch.rows))
            del batch  # so that its memory is freed before the next one is made
    total = len(ids) if offsets is None else int(offsets[-1])
    logits_by_model = _sum_over_processes(logits_by_model, list(models), total)
    return {
        name: Predictions(ids=list(ids), logits=logits, offsets=offsets) for name, logits in logits_by_model.items()
    }


def _sum_over_processes(logits: dict[str, np.ndarray], names: Sequence[str], rows: int) -> dict[str, np.ndarray]:
    """Combine the predictions of all processes: each row is zero in all but one of them."""
    if distributed.num_processes() == 1:
        return logits
    # With fewer batches than processes, some have no predictions and do not know the number of outputs.
    holders = distributed.all_reduce_sum(torch.tensor(int(bool(logits))))
    width = int(distributed.all_reduce_sum(torch.tensor(logits[names[0]].shape[1] if logits else 0)) / holders)
    empty = np.zeros((rows, width), dtype=np.float32)
    return {
        name: distributed.all_reduce_sum(torch.from_numpy(logits.get(name, empty.copy()))).numpy() for name in names
    }


def _scatter(flat: np.ndarray, values: np.ndarray, offsets: np.ndarray, rows: np.ndarray) -> None:
    """Write the tokens of a batch, row after row, to the positions of their rows."""
    lengths = offsets[rows + 1] - offsets[rows]
    first = np.repeat(offsets[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    flat[first + np.arange(lengths.sum())] = values
