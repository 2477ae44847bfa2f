"""Write a backbone and its heads as one ONNX graph, and let it pass only if it gives the same answers."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.errors import BertVisionError
from bertvision.files import atomic_directory, file_hash, write_json
from bertvision.onnx_model import FORMAT, GRAPH, MANIFEST, is_exported, onnxruntime, quantize
from bertvision.records import ExportRecord
from bertvision.runs import Run, slug
from bertvision.shared_encoders import AttachedHead, TorchEncoder, layers_read
from bertvision.sharing import copy_tokenizer, write_inference_files
from bertvision.tasks import Answer, Example
from bertvision.trained_model import TrainedModel, load_all
from bertvision.types import Predictions

OPSET = 20
"""The first in which GELU is an operator."""


@dataclass(frozen=True)
class Limits:
    """How far the exported answers may be from torch's."""

    agreement: float
    """Percent of the rows whose answer must be the same."""
    difference: float
    """The most that a score (a logit) may differ."""

    @classmethod
    def usual(cls, int8: bool) -> "Limits":
        """Return the limits for float32, or for int8, whose scores are others by its nature."""
        return cls(97.0, np.inf) if int8 else cls(99.9, 1e-4)

    def changed(self, agreement: float | None, difference: float | None) -> "Limits":
        """Return limits with what is given in their place."""
        found = self if agreement is None else replace(self, agreement=agreement)
        return found if difference is None else replace(found, difference=difference)


class Graph(nn.Module):
    """Tokens in, the logits of every head out: what is exported."""

    def __init__(self, shared_encoder: TorchEncoder, inputs: Sequence[str], heads: Mapping[str, str]):
        super().__init__()
        self.shared_encoder = shared_encoder
        self.encoder = shared_encoder.encoder
        self.inputs = list(inputs)
        self.names = list(heads)
        self.heads = nn.ModuleList(shared_encoder.heads[name] for name in heads)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        *tokens, mask = given
        states = self.shared_encoder.states(dict(zip(self.inputs, tokens, strict=True)), mask, self.names)
        return tuple(head(states[name], mask) for name, head in zip(self.names, self.heads, strict=True))


def export_onnx(
    models: Sequence[TrainedModel],
    directory: Path,
    examples: Sequence[Sequence[Example]],
    *,
    int8: bool = False,
    limits: Limits | None = None,
) -> list[dict[str, Any]]:
    """Write the graph of runs on one backbone, compare its answers to `examples` of each, and keep it if they agree."""
    onnxruntime()
    limits = limits or Limits.usual(int8)
    heads = [head for model in models for head in model.required_heads(bert=True)]
    encoder_pool = {id(head.shared_encoder): head.shared_encoder for head in heads}
    shared_encoder = next(iter(encoder_pool.values()))
    if len(encoder_pool) > 1 or not isinstance(shared_encoder, TorchEncoder):
        raise BertVisionError("One graph holds one backbone, and runs that torch can read. Export the others apart.")
    if directory.exists() and any(directory.iterdir()) and not is_exported(directory):
        raise BertVisionError(f"{directory} is not empty, and no export either. Choose another with --to.")
    names = list(dict.fromkeys(head.head for head in heads))
    outputs = {name: f"logits_{number}" for number, name in enumerate(names)}
    with atomic_directory(directory) as place:
        with _quiet():
            _write_graph(place / GRAPH, shared_encoder, models[0], outputs, int8=int8)
        copy_tokenizer(models[0].members[0], place)
        runs = [_write_run(each, place, number, outputs) for number, each in enumerate(models)]
        manifest = {
            "format": FORMAT,
            "type": "int8" if int8 else "float32",
            "opset": OPSET,
            "weights": shared_encoder.weights,
            "sha256": file_hash(place / GRAPH),
            "runs": runs,
        }
        write_json(place / MANIFEST, manifest)
        reports = [
            compare(path, torch_one, onnx_one, rows)
            for path, torch_one, onnx_one, rows in zip(runs, models, load_all([place]), examples, strict=True)
        ]
        _require(reports, limits)
        write_json(place / MANIFEST, manifest | {"parity": reports, "limits": _plain(limits)})
    return reports


def compare(name: str, one: TrainedModel, other: TrainedModel, examples: Sequence[Example]) -> dict[str, Any]:
    """Say how often two predictors give the same answer, and how far their scores are apart."""
    if not examples:
        raise BertVisionError(f"There are no rows to compare the answers of {name} on. Give some with --data.")
    features = one.encode_examples(examples)
    first, second = one.logits(features), other.logits(features)
    said = [one.task.answers(found, features, one.settings) for found in (first, second)]
    same = [_same(said[0][example.id], said[1][example.id]) for example in examples]
    return {
        "model": Path(name).name,
        "rows": len(examples),
        "agreement": 100.0 * float(np.mean(same)),
        "largest_difference": _difference(first, second),
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Answer) and isinstance(other, Answer):
        return (one.start, one.end) == (other.start, other.end)
    # Classes are whole numbers; of scores, what a user would see is compared.
    return abs(one - other) < 1e-3


def _difference(one: Predictions, other: Predictions) -> float:
    return float(np.abs(one.logits - other.logits).max())


def _require(reports: Sequence[dict[str, Any]], limits: Limits) -> None:
    for report in reports:
        if report["agreement"] < limits.agreement or not report["largest_difference"] <= limits.difference:
            raise BertVisionError(
                f"The exported {report['model']} does not answer as it should: {report['agreement']:.2f} % of "
                f"{report['rows']:,} answers are the same (at least {limits.agreement:g} % must be), and scores "
                f"differ by up to {report['largest_difference']:.1e} (at most {limits.difference:g}). Nothing was kept."
            )


def _plain(limits: Limits) -> dict[str, float | None]:
    return {
        "agreement": limits.agreement,
        "largest_difference": limits.difference if np.isfinite(limits.difference) else None,
    }


def _write_run(model: TrainedModel, place: Path, number: int, outputs: Mapping[str, str]) -> str:
    """Write what of a run the graph does not hold; return where."""
    path = f"runs/{number}-{slug(f'{model.task.name}-{model.run.name}')}"
    own = outputs[model.bert_head.head]

    def changes(run: Run, part: AttachedHead | None, up: str) -> dict[str, Any]:
        export = ExportRecord(directory=up, bert_output=own)
        if part is not None:
            export = replace(export, output=outputs[part.head], layers_read=layers_read(run))
        return {"encoder_path": up, "export": export}

    members = model.run.members()
    for index, (member, part) in enumerate(zip(members, model.attached_heads, strict=False)):
        write_inference_files(
            member, place / path / "members" / str(index), changes(member, part, "../../../.."), weights=False
        )
    if (bert := model.run.bert()) is not None and not members:
        write_inference_files(bert, place / path / "bert", changes(bert, model.bert_head, "../../.."), weights=False)
    extra = {"members": tuple(f"members/{index}" for index in range(len(members)))}
    part = None if members else model.attached_heads[0]
    write_inference_files(model.run, place / path, changes(model.run, part, "../..") | extra, weights=False)
    return path


def _write_graph(
    path: Path, shared_encoder: TorchEncoder, model: TrainedModel, outputs: Mapping[str, str], *, int8: bool
) -> None:
    """Trace the backbone and all heads once, with batch and length left open."""
    sample: Any = ("a short text",) * len(model.task.inputs)
    inputs = list(model.encode([sample]).tokens)
    sizes = {"batch": torch.export.Dim("batch", min=1), "tokens": torch.export.Dim("tokens", min=2)}
    graph = Graph(shared_encoder, inputs, outputs).cpu().eval()
    tokens = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in inputs)
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[:, 6:] = 2
    mask[1, 9:] = 0
    open_sizes = {0: sizes["batch"], 1: sizes["tokens"]}
    with torch.no_grad():
        try:
            program = torch.onnx.export(
                graph,
                (*tokens, mask),
                dynamo=True,
                input_names=[*inputs, "attention_mask"],
                output_names=list(outputs.values()),
                dynamic_shapes=(tuple(open_sizes for _ in range(len(inputs) + 1)),),
                opset_version=OPSET,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            names = ", ".join(sorted({type(head).__name__ for head in graph.heads}))
            raise BertVisionError(f"These heads or their backbone cannot be written as a graph ({names}).") from error
    assert program is not None
    program.save(path)
    if int8:
        quantize(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks about itself off the terminal."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
