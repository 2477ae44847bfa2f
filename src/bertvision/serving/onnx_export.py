"""Export an encoder and its heads as one ONNX graph.

The answers of the graph are compared with those of torch. The export is kept only if they agree.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
from bertvision.types import call_head

OPSET = 20
"""The first opset with a GELU operator."""


@dataclass(frozen=True)
class ParityLimits:
    """How much the answers of an exported graph may differ from those of torch."""

    agreement: float
    """Percentage of rows whose answers must be equal, at least."""
    difference: float
    """Largest absolute difference of a logit, at most."""
    score_difference: float = 0.001
    """Scores of a regression are equal if they differ by at most this share of the range of the scores and labels."""

    @classmethod
    def default(cls, *, int8: bool = False) -> "ParityLimits":
        """Return the default limits. The logits of int8 weights differ by design and are not limited."""
        return cls(99.0, np.inf, 0.01) if int8 else cls(99.9, 1e-4)

    def override(self, agreement: float | None = None, difference: float | None = None) -> "ParityLimits":
        """Return limits with the given values replaced; None keeps a value."""
        return replace(
            self,
            agreement=self.agreement if agreement is None else agreement,
            difference=self.difference if difference is None else difference,
        )

    def to_dict(self) -> dict[str, float | None]:
        """Return the limits as JSON; None: not limited."""
        difference = self.difference if np.isfinite(self.difference) else None
        return {
            "agreement": self.agreement,
            "largest_difference": difference,
            "score_difference": self.score_difference,
        }


@dataclass(frozen=True)
class ParityReport:
    """Comparison of an exported model with the original."""

    model: str
    rows: int
    agreement: float
    """Percentage of rows whose answers are equal."""
    largest_difference: float
    """Largest absolute difference of a logit."""
    score_tolerance: float | None = None
    """For regression: scores that differ by no more count as equal."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def check(self, limits: ParityLimits) -> None:
        """Raise an error if the differences exceed the limits."""
        if self.agreement >= limits.agreement and self.largest_difference <= limits.difference:
            return
        raise BertVisionError(
            f"The exported model {self.model} differs from the original: {self.agreement:.2f} % of {self.rows:,} "
            f"answers are equal (required: {limits.agreement:g} %), and logits differ by up to "
            f"{self.largest_difference:.1e} (allowed: {limits.difference:g}). The new export was not kept."
        )


class Graph(nn.Module):
    """The exported module: token ids in, the logits of every head out."""

    def __init__(self, shared_encoder: TorchEncoder, inputs: Sequence[str], heads: Mapping[str, str]):
        super().__init__()
        self.shared_encoder = shared_encoder
        self.encoder = shared_encoder.encoder
        self.inputs: list[str] = list(inputs)
        self.names: list[str] = list(heads)
        self.heads: nn.ModuleList = nn.ModuleList(shared_encoder.heads[name] for name in heads)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        tokens = dict(zip(self.inputs, given, strict=True))
        attention_mask, text_ids = tokens.pop("attention_mask").bool(), tokens.pop("text_ids", None)
        states = self.shared_encoder.states(tokens, attention_mask, text_ids, self.names)
        return tuple(
            call_head(head, states[name], attention_mask, text_ids)
            for name, head in zip(self.names, self.heads, strict=True)
        )


def export_onnx(
    models: Sequence[TrainedModel],
    directory: Path,
    examples: Sequence[Sequence[Example]],
    *,
    int8: bool = False,
    limits: ParityLimits | None = None,
) -> list[ParityReport]:
    """Export models on one encoder as one ONNX graph, and compare its answers with the originals'.

    Args:
        models: The models; all must use the same encoder.
        directory: Where to write the export. It must be empty, missing, or an earlier export.
        examples: Examples to compare the answers on, for each model.
        int8: Quantize the weights to int8.
        limits: How much the answers may differ; by default `ParityLimits.default`.

    Returns:
        The comparison of each model. If one exceeds the limits, an error is raised and nothing is written.
    """
    onnxruntime()
    limits = limits or ParityLimits.default(int8=int8)
    heads = [head for model in models for head in model.required_heads(bert=True)]
    shared_encoder = heads[0].shared_encoder
    if any(head.shared_encoder is not shared_encoder for head in heads) or not isinstance(shared_encoder, TorchEncoder):
        raise BertVisionError(
            "An export holds models on one encoder, and they must not be exported models. Export the others separately."
        )
    if directory.exists() and any(directory.iterdir()) and not is_exported(directory):
        raise BertVisionError(f"{directory} is not empty and not an export. Choose another directory with --to.")
    outputs = {name: f"logits_{number}" for number, name in enumerate(dict.fromkeys(head.head for head in heads))}
    with atomic_directory(directory) as temporary:
        with _silence_exporter():
            _write_graph(temporary / GRAPH, shared_encoder, models, outputs, int8=int8)
        copy_tokenizer(models[0].members[0], temporary)
        runs = [_write_run(model, temporary, number, outputs) for number, model in enumerate(models)]
        manifest = {
            "format": FORMAT,
            "type": "int8" if int8 else "float32",
            "opset": OPSET,
            "weights": shared_encoder.weights,
            "sha256": file_hash(temporary / GRAPH),
            "runs": runs,
        }
        write_json(temporary / MANIFEST, manifest)
        reports = [
            compare(Path(path).name, model, exported, rows, limits.score_difference)
            for path, model, exported, rows in zip(runs, models, load_all([temporary]), examples, strict=True)
        ]
        for report in reports:
            report.check(limits)
        parity = {"parity": [report.to_dict() for report in reports], "limits": limits.to_dict()}
        write_json(temporary / MANIFEST, manifest | parity)
    return reports


def compare(
    name: str,
    original: TrainedModel,
    exported: TrainedModel,
    examples: Sequence[Example],
    score_difference: float = ParityLimits.score_difference,
) -> ParityReport:
    """Compare the answers and logits of two models on examples; `score_difference` is that of `ParityLimits`."""
    if not examples:
        raise BertVisionError(f"There are no rows to compare the answers of {name} on. Give a file with --data.")
    features, task = original.encode_examples(examples), original.task
    predictions = [model.logits(features) for model in (original, exported)]
    answers = [task.decode(prediction, features, original.settings) for prediction in predictions]
    expected = [answers[0][example.id] for example in examples]
    tolerance = score_difference * _score_range(expected, examples) if isinstance(expected[0], float) else None
    equal = [
        _equal(answer, answers[1][example.id], tolerance) for answer, example in zip(expected, examples, strict=True)
    ]
    return ParityReport(
        model=name,
        rows=len(examples),
        agreement=100.0 * float(np.mean(equal)),
        largest_difference=float(np.abs(predictions[0].logits - predictions[1].logits).max()),
        score_tolerance=tolerance,
    )


def _score_range(scores: Sequence[float], examples: Sequence[Example]) -> float:
    """Return the range of scores and of the labels that are known."""
    values = [*scores, *(float(example.label) for example in examples if isinstance(example.label, int | float))]
    return max(values) - min(values)


def _equal(first: Any, second: Any, tolerance: float | None) -> bool:
    """Compare answers: spans by position, classes, sets of labels and tags exactly, scores up to the tolerance."""
    if isinstance(first, Answer) and isinstance(second, Answer):
        return (first.start, first.end) == (second.start, second.end)
    return first == second if tolerance is None else abs(first - second) <= tolerance


def _write_run(model: TrainedModel, place: Path, number: int, outputs: Mapping[str, str]) -> str:
    """Write the parts of a run that are not in the graph. Return their path relative to the export."""
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
    path: Path, shared_encoder: TorchEncoder, models: Sequence[TrainedModel], outputs: Mapping[str, str], *, int8: bool
) -> None:
    """Trace the encoder and all heads, with dynamic batch size and length."""
    samples = [model.encode([("a short text",) * len(model.task.text_names)]) for model in models]  # pyright: ignore
    pairs = any(features.second_text_starts is not None for features in samples)
    inputs = [*samples[0].tokens, "attention_mask", *(["text_ids"] if pairs else [])]
    sizes = {"batch": torch.export.Dim("batch", min=1), "tokens": torch.export.Dim("tokens", min=2)}
    graph = Graph(shared_encoder, inputs, outputs).cpu().eval()
    given = {name: torch.ones(2, 16, dtype=torch.int64) for name in inputs}
    given["attention_mask"][1, 9:] = 0
    if pairs:
        given["text_ids"][:, :6] = 0
        given["text_ids"][1, 9:] = 0
    open_sizes = {0: sizes["batch"], 1: sizes["tokens"]}
    with torch.no_grad():
        try:
            program = torch.onnx.export(
                graph,
                tuple(given.values()),
                dynamo=True,
                input_names=inputs,
                output_names=list(outputs.values()),
                dynamic_shapes=(tuple(open_sizes for _ in inputs),),
                opset_version=OPSET,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            names = ", ".join(sorted({type(head).__name__ for head in graph.heads}))
            raise BertVisionError(
                f"The ONNX exporter does not support these heads or their encoder ({names})."
            ) from error
    assert program is not None
    program.save(path)
    if int8:
        quantize(path)


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress the warnings and log messages of the ONNX exporter."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
