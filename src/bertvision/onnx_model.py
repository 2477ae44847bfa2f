"""Run an exported graph of an encoder and its heads with onnxruntime. Only this module imports onnxruntime.

exported.json            the contents of the graph, and how its answers compare with torch's; written last
model.onnx               tokens, attention_mask (0 or 1) and for pairs text_ids (0 or 1) -> the logits of every head
config.json, tokenizer*  the tokenizer
runs/<name>/             each run's experiment.json and metrics.json: what is needed to turn logits into answers
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.files import file_hash, inside, read_json
from bertvision.records import ExportRecord
from bertvision.runs import Run, open_run
from bertvision.shared_encoders import AttachedHead

FORMAT = 3
READABLE_FORMATS = (2, 3)
"""In format 2, `attention_mask` holds 2 for the tokens of a pair's second text, and there are no `text_ids`."""
MANIFEST = "exported.json"
FIELDS = {"format": int, "type": str, "weights": str, "sha256": str, "runs": list}
GRAPH = "model.onnx"
INT8_BLOCK = 32
INT8_ACCURACY = 4
"""onnxruntime's number for products that are computed in int8."""


def is_exported(directory: Path) -> bool:
    """Return whether a directory is a complete export."""
    return (directory / MANIFEST).is_file()


def exported_runs(directory: Path) -> list[Run]:
    """Return the runs of an export."""
    return [open_run(inside(directory, path)) for path in _manifest(directory)["runs"]]


def export_of(run: Run) -> ExportRecord:
    """Return where the graph of an exported run is."""
    if run.record.export is None:
        raise BertVisionError(f"{run.directory} is not an exported run.")
    return run.record.export


def _manifest(directory: Path) -> dict[str, Any]:
    manifest = read_json(inside(directory, MANIFEST), "exported model")
    if not isinstance(manifest, dict) or not all(type(manifest.get(key)) is kind for key, kind in FIELDS.items()):
        raise BertVisionError(
            f"{directory / MANIFEST} is damaged: it needs {', '.join(FIELDS)}. Export the model again."
        )
    if not all(isinstance(path, str) for path in manifest["runs"]) or len(manifest["runs"]) > 1000:
        raise BertVisionError(f"{directory / MANIFEST} is damaged: its runs are not a list of paths.")
    if manifest["format"] not in READABLE_FORMATS:
        raise BertVisionError(
            f"{directory} was exported in format {manifest['format']}; this version reads "
            f"{' and '.join(map(str, READABLE_FORMATS))}. Export the model again."
        )
    return manifest


def onnxruntime() -> Any:
    """Return the module onnxruntime, or raise an error that says how to install it."""
    try:
        module = import_module("onnxruntime")
    except ImportError as error:
        raise BertVisionError("ONNX needs the packages of the extra `onnx`: pip install 'bertvision[onnx]'.") from error
    module.disable_telemetry_events()  # builds for Linux send events, too
    return module


class OnnxEncoder:
    """The graph of an export. Each head is an output of the graph."""

    def __init__(self, directory: Path):
        ort = onnxruntime()
        manifest = _manifest(directory)
        for path in directory.iterdir():  # the graph may name other files of its directory
            inside(directory, path.name)
        if not (directory / GRAPH).is_file() or file_hash(directory / GRAPH) != manifest["sha256"]:
            raise BertVisionError(f"{directory / GRAPH} is not the graph that was exported there. Export it again.")
        self.directory = directory
        self.weights: str = manifest["weights"]
        self.format: int = manifest["format"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that spin between requests would take the cores from the tokenizer.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # Batches vary in size, and memory that is kept for the largest would never be freed.
        options.enable_mem_pattern = False
        cuda = torch.cuda.is_available() and "CUDAExecutionProvider" in ort.get_available_providers()
        providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"]
        try:
            self.session: Any = ort.InferenceSession(str(directory / GRAPH), options, providers=providers)
        except Exception as error:  # onnxruntime has one class per way to fail, all private
            raise BertVisionError(f"onnxruntime cannot read {directory / GRAPH}: {error}") from error
        self.inputs: list[str] = [node.name for node in self.session.get_inputs()]
        self.part_of_graph: Any = ort.RunOptions()
        self.part_of_graph.only_execute_path_to_fetches = True
        self.runs_on: str = f"onnxruntime, {manifest['type']}, on {'cuda' if cuda else 'cpu'}"

    def add(self, run: Run) -> AttachedHead:
        """Return the head of a run."""
        return AttachedHead(self, export_of(run).output)

    def add_own(self, run: Run) -> AttachedHead:
        """Return BERT's own head."""
        return AttachedHead(self, export_of(run).bert_output)

    def read(
        self,
        inputs: Mapping[str, Tensor],
        attention_mask: Tensor,
        text_ids: Tensor | None,
        wanted: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Run the part of the graph that computes the wanted heads."""
        mask = attention_mask.numpy().astype(np.int64)
        texts = np.zeros_like(mask) if text_ids is None else text_ids.numpy().astype(np.int64)
        feeds = {name: values.numpy() for name, values in inputs.items()}
        feeds |= {"attention_mask": mask * (1 + texts) if self.format == 2 else mask, "text_ids": texts}
        names = list(wanted)
        try:
            outputs = self.session.run(names, {name: feeds[name] for name in self.inputs}, self.part_of_graph)
        except Exception as error:  # a graph that does not fit the tokenizer or the run: one class per way to fail
            raise BertVisionError(f"onnxruntime cannot compute {self.directory / GRAPH}: {error}") from error
        for name, logits in zip(names, outputs, strict=True):
            if logits.ndim not in (2, 3) or len(logits) != len(mask) or logits.dtype != np.float32:
                raise BertVisionError(
                    f"{self.directory / GRAPH} is damaged: {name} does not hold the logits of a head."
                )
        return {name: logits[wanted[name]] for name, logits in zip(names, outputs, strict=True)}


def quantize(path: Path) -> None:
    """Quantize the weights of matrix products to int8, and at run time the activations.

    Blocks of 32 numbers have a scale of their own, in the weights and in each token's activations. With one scale for
    all activations, outliers cost accuracy, and answers depend on the other texts of a batch.
    """
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(path)
    _fold_transposes(model.graph)
    quantizer: Any = MatMulNBitsQuantizer(
        model, bits=8, block_size=INT8_BLOCK, is_symmetric=True, accuracy_level=INT8_ACCURACY
    )
    quantizer.process()
    model = quantizer.model.model  # pyright: ignore[reportAttributeAccessIssue]  # `process` has wrapped it
    distinct = {weights.name: weights for weights in model.graph.initializer}  # shared weights are there several times
    del model.graph.initializer[:]
    model.graph.initializer.extend(distinct.values())
    onnx.save(model, path)


def _fold_transposes(graph: Any) -> None:
    """Store weights transposed where the graph transposes them: those that several matrix products share."""
    from onnx import numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    transposed: dict[str, str] = {}
    for node in list(graph.node):
        source = node.input[0] if node.op_type == "Transpose" else ""
        if source not in weights or len(weights[source].dims) != 2:
            continue
        name = transposed[node.output[0]] = f"{source}_transposed"
        if name not in weights:
            array = np.ascontiguousarray(numpy_helper.to_array(weights[source]).T)
            weights[name] = numpy_helper.from_array(array, name)
            graph.initializer.append(weights[name])
        graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [transposed.get(name, name) for name in node.input]
