"""Encoders that several heads share: one forward pass for all heads."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import devices
from bertvision.encoders import BERT_HEAD_FILE, Encoder, load_encoder, weights_hash
from bertvision.errors import BertVisionError
from bertvision.files import load_tensors
from bertvision.heads import (
    BERT_HEAD,
    HEADS,
    BertHead,
    HeadConfig,
    LayerSelect,
    build_head,
    load_head_weights,
    select_from_view,
    select_layers,
    upgrade_state_dict,
)
from bertvision.heads.legacy import HEADS as FORMER_NAMES
from bertvision.records import check_head_size
from bertvision.runs import Run
from bertvision.types import HeadShape, StateView, call_head
from bertvision.windowed_encoders import WINDOW_TOKENS, in_windows

logger: logging.Logger = logging.getLogger(__name__)


class SharedEncoder(Protocol):
    """An encoder with heads, by torch or onnxruntime."""

    weights: str
    """The hash of the encoder's weights. Runs with the same hash share the encoder."""
    runs_on: str
    """The library and device, e.g. "torch on cpu"."""

    def read(
        self,
        inputs: Mapping[str, Tensor],
        attention_mask: Tensor,
        text_ids: Tensor | None,
        wanted: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Encode a batch (B, T) once; return the logits of each head in `wanted` for the rows given there."""
        ...


class AttachedHead(NamedTuple):
    """The name of a head and its encoder."""

    shared_encoder: SharedEncoder
    head: str


class HeadWithPooler(nn.Module):
    """Give a head the pooler output as the last channel, as in its training."""

    def __init__(self, head: nn.Module, last: BertHead):
        super().__init__()
        self.head = head
        self.last = last

    def forward(self, hidden: Tensor, attention_mask: Tensor, text_ids: Tensor | None = None) -> Tensor:
        pooled = self.last.pooler_output(hidden[:, -1])[:, None, None]  # (B, 1, 1, W), at token 0; zeros elsewhere
        channel = nn.functional.pad(pooled, (0, 0, 0, hidden.shape[2] - 1))
        return call_head(self.head, torch.cat([hidden, channel], dim=1), attention_mask, text_ids)


class TorchEncoder:
    """A frozen encoder in memory with heads by name."""

    def __init__(self, encoder: Encoder, weights: str):
        self.device: torch.device = devices.device()
        """Where the encoder and its heads are, whatever thread they are called from."""
        self.encoder: Encoder = encoder.to(self.device).eval().requires_grad_(False)
        self.weights = weights
        self.heads: dict[str, nn.Module] = {}
        self.runs_on: str = f"torch on {self.device.type}"

    def states(
        self, inputs: dict[str, Tensor], attention_mask: Tensor, text_ids: Tensor | None, names: Iterable[str]
    ) -> dict[str, Tensor]:
        """Return the hidden states of each head: one forward pass for each encoding that any of them reads."""
        num_layers = self.encoder.num_layers
        views = {name: view_of_head(self.heads[name], num_layers) for name in names}
        everything = StateView(
            cross_layers=max(view.cross_layers for view in views.values()),
            bi_layers=max(view.bi_layers for view in views.values()),
        )
        try:
            hidden = self.encoder(
                inputs,
                attention_mask,
                text_ids,
                cross_layers=everything.cross_layers,
                bi_layers=everything.bi_layers,
            )
        except IndexError as error:
            raise BertVisionError(
                "The encoder has no embedding for a token or a position of this text: its tokenizer or its "
                "configuration belongs to another encoder, or is damaged."
            ) from error
        return {name: hidden[:, channels_of(view, everything)] for name, view in views.items()}

    @torch.inference_mode()
    def read(
        self,
        inputs: Mapping[str, Tensor],
        attention_mask: Tensor,
        text_ids: Tensor | None,
        wanted: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Encode a batch once, and apply each head to its rows."""
        device = self.device
        attention_mask = attention_mask.to(device)
        text_ids = None if text_ids is None else text_ids.to(device)
        tokens = {name: values.to(device) for name, values in inputs.items()}
        states = self.states(tokens, attention_mask, text_ids, wanted)
        logits = {}
        for name, rows in wanted.items():
            head, hidden = self.heads[name], states[name]
            if len(rows) == len(attention_mask):
                logits[name] = call_head(head, hidden, attention_mask, text_ids).float().cpu().numpy()[rows]
            else:
                chosen = torch.from_numpy(rows).to(device)
                chosen_ids = None if text_ids is None else text_ids[chosen]
                answer = call_head(head, hidden[chosen], attention_mask[chosen], chosen_ids)
                logits[name] = answer.float().cpu().numpy()
        return logits


def view_of_head(head: nn.Module, num_layers: int) -> StateView:
    """Return all layers of the encodings that a head reads. A head without a selection reads the cross-encoding."""
    selections = [part.selection for part in head.modules() if isinstance(part, LayerSelect)]
    reads_bi = any(selection.bi_layers for selection in selections)
    reads_cross = not reads_bi or any(selection.cross_layers for selection in selections)
    layers = tuple(range(num_layers))
    return StateView(
        cross_layers=layers if reads_cross else (), bi_layers=layers if reads_bi else (), num_layers=num_layers
    )


def channels_of(part: StateView, view: StateView) -> slice:
    """Return where the channels of whole encodings are in a view. A slice copies nothing."""
    positions = view.positions(part)
    return slice(positions[0], positions[-1] + 1)


class EncoderPool:
    """Encoders by the hash of their weights. Each is loaded once."""

    def __init__(self, encoder: str = "", precision: str = "float32"):
        """Prepare to load encoders.

        Args:
            encoder: Load this one instead of those that the runs name. Its weights must be the same.
            precision: Number type of matrix products. "run" stands for the one that a run was scored in.
        """
        self.given = encoder
        self.precision = precision
        self.loaded: dict[tuple[str, str], TorchEncoder] = {}
        self.windowed: dict[tuple[str, str, int], TorchEncoder] = {}
        """The same encoders as models read them whose texts are split into windows, by the length of these."""

    def add(self, run: Run) -> AttachedHead:
        """Return the head of a run with its encoder; load those that are not loaded yet."""
        if run.kind == "bert":
            return self.add_own(run)
        shared_encoder, name = self._shared_encoder(run), str(run.directory.resolve())
        if name not in shared_encoder.heads:
            shape = run.record.head_shape
            config = _head_config(run)
            weights, encoder = run.weights(), shared_encoder.encoder
            if (shape.num_layers, shape.hidden_size) != (encoder.num_layers, encoder.hidden_size):
                raise BertVisionError(f"{run.directory} is damaged: its head has other dimensions than its encoder.")
            check_head_size(config, shape, weights, str(run.directory))
            head = build_head(config, shape)
            load_head_weights(head, weights)
            # An encoding is computed only for heads that read it.
            view = view_of_head(head, shape.num_layers)
            select_from_view(head, replace(view, pooler_output=shape.pooler_output))
            if config.pooler_output:
                head = HeadWithPooler(head, self._own_head(run))
            shared_encoder.heads[name] = head.to(shared_encoder.device).eval().requires_grad_(False)
        return AttachedHead(shared_encoder, name)

    def add_own(self, run: Run) -> AttachedHead:
        """Return BERT's own head, fine-tuned together with the run's encoder."""
        shared_encoder, name = self._shared_encoder(run), f"BERT of {own_head_file(run).resolve()}"
        if name not in shared_encoder.heads:
            shared_encoder.heads[name] = self._own_head(run).to(shared_encoder.device)
        return AttachedHead(shared_encoder, name)

    def _shared_encoder(self, run: Run) -> TorchEncoder:
        weights = run.record.encoder_hash
        precision = scoring_precision(run) if self.precision == "run" else self.precision
        if (weights, precision) not in self.loaded:
            where = self.given or run.encoder_source
            encoder = load_encoder(where, precision).encoder
            if weights_hash(encoder) != weights:
                why = "" if self.given or run.has_encoder else " It was shared without its own, which is fine-tuned."
                raise BertVisionError(
                    f"The encoder at {where} is not the one {run.directory} was trained on: its weights differ.{why} "
                    "Name the right one, or train the head again."
                )
            self.loaded[weights, precision] = TorchEncoder(encoder, weights)
        plain, size = self.loaded[weights, precision], run.record.task.get(WINDOW_TOKENS, 0)
        if not size:
            return plain
        key = weights, precision, size
        if key not in self.windowed:
            self.windowed[key] = TorchEncoder(in_windows(plain.encoder, run.record.task), weights)
        return self.windowed[key]

    def _own_head(self, run: Run) -> BertHead:
        shape = run.record.head_shape
        last = load_bert_head(replace(shape, pooler_output=False, bi_encoding=False), own_head_file(run))
        return last.eval().requires_grad_(False)


def _head_config(run: Run) -> HeadConfig:
    """Return the configuration of the head of a run. A head of a package that is missing here is an error."""
    try:
        return HeadConfig.parse(run.name)
    except BertVisionError as error:
        name = run.name.partition(":")[0]
        if name in HEADS or name in FORMER_NAMES:
            raise
        raise BertVisionError(
            f"{run.directory} has the head {name!r}, which is not registered here. Install the package that it comes "
            f"from, or register it with `register_head({name!r})` before the model is loaded."
        ) from error


def load_bert_head(shape: HeadShape, path: Path) -> BertHead:
    """Read BERT's own head from a file."""
    weights = load_tensors(path, "file of BERT's own head")[0]
    check_head_size(HeadConfig(BERT_HEAD), shape, weights, str(path))
    head = BertHead(shape, end_given_start="classifier.start.weight" in weights)
    load_head_weights(head, weights)
    return head


def scoring_precision(run: Run) -> str:
    """Return the number type in which the encoder computed the scores of a run, or float32 if this machine lacks it."""
    precision = devices.resolve_precision(run.record.settings.get("precision", "float32"))
    try:
        devices.check_precision(precision)
    except BertVisionError:
        logger.warning(
            f"{run.directory} was scored in {precision}, which this machine does not compute natively. float32 is used "
            "instead, so scores may differ slightly."
        )
        return "float32"
    return precision


def own_head_file(run: Run) -> Path:
    """Return the file of BERT's own head: in the directory of a shared run, else beside its encoder."""
    beside = run.path(BERT_HEAD_FILE)
    return beside if beside.is_file() else run.path(f"{run.record.encoder_path}/{BERT_HEAD_FILE}")


def layers_read(run: Run) -> dict[str, Any]:
    """Return which layers the head of a run reads, and their weights if it has learned any."""
    if run.record.export is not None:  # an exported run: its weights are in the graph
        reads = dict(run.record.export.layers_read)
        if "pooled" in reads:  # the former name, in exports of earlier versions
            reads["pooler_output"] = reads.pop("pooled")
        return reads
    num_layers = run.record.head_shape.num_layers
    if run.kind == "bert":
        return _layers_read(num_layers, [num_layers - 1])
    config = _head_config(run)
    layers = [num_layers - 1] if config.name == BERT_HEAD else select_layers(config.layers, num_layers)
    weights = None
    for key, value in upgrade_state_dict(run.weights()).items():
        is_weights = key.endswith("layer_pooling.weights") and value.ndim == 1
        if is_weights and len(value) == len(layers) + config.pooler_output:
            weights = value.softmax(dim=0).tolist()
    return _layers_read(num_layers, layers, config.pooler_output, config.encoding, weights)


def _layers_read(
    num_layers: int,
    layers: list[int],
    pooler_output: bool = False,
    encoding: str = "cross",
    weights: list[float] | None = None,
) -> dict[str, Any]:
    return {
        "of": num_layers,
        "layers": layers,
        "pooler_output": pooler_output,
        "encoding": encoding,
        "weights": weights,
    }
