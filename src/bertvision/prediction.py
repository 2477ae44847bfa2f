"""Prediction of whole splits."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import devices, distributed
from bertvision.errors import BertVisionError
from bertvision.progress import bar
from bertvision.states import TokenBatches, partition
from bertvision.types import Batches, Features, HeadShape, Predictions, call_head

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


@torch.no_grad()
def check_own_head(name: str, head: nn.Module, shape: HeadShape, channels: int, tokens: int) -> None:
    """Raise an error if a head from outside of the package does not return one logit for each output.

    Args:
        name: The name of the head, for the message.
        head: The head. Heads of the package are not called.
        shape: The shape that the head was built for.
        channels: The number of layers of the hidden states that it is called with.
        tokens: How many tokens it may be called with, at most.
    """
    if all(type(part).__module__.partition(".")[0] in ("bertvision", "torch") for part in head.modules()):
        return
    was_training, tokens = head.training, min(tokens, 3)
    hidden = torch.zeros(2, channels, tokens, shape.hidden_size)
    text_ids = torch.zeros(2, tokens, dtype=torch.long)
    logits = call_head(head.eval(), hidden, torch.ones(2, tokens, dtype=torch.bool), text_ids)
    head.train(was_training)
    expected = (2, tokens, shape.num_outputs) if shape.per_token else (2, shape.num_outputs)
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        got = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        wanted = "(B, T, C)" if shape.per_token else "(B, C)"
        raise BertVisionError(
            f"The head {name!r} must return logits of shape {wanted}, here {expected} for 2 rows; it returned {got}. "
            "The number of outputs C is `shape.num_outputs` of the HeadShape that the head is built with."
        )
