"""A trained model: the encoder, heads and task of a finished run, ready to predict."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision import devices, sharing
from bertvision.encoders import EncoderInfo, load_encoder_info
from bertvision.ensembles import combine
from bertvision.errors import BertVisionError
from bertvision.inputs import find_text_error, is_column, read_items
from bertvision.onnx_model import OnnxEncoder, exported_runs, is_exported
from bertvision.prediction import evaluation_batches
from bertvision.progress import bar
from bertvision.runs import Run, is_finished, open_run
from bertvision.shared_encoders import AttachedHead, EncoderPool, layers_read
from bertvision.tasks import Example, Task, task_from_dict
from bertvision.token_tasks import TokenTask, join_words
from bertvision.types import Features, Predictions
from bertvision.windowed_encoders import WINDOW_TOKENS

logger: logging.Logger = logging.getLogger(__name__)

# The threads of OpenMP do not survive a fork, and a child that waits for them hangs.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

GENERIC_NAMES = ("text", "text_pair")
"""Names of texts that every task accepts, so that one item can be sent to models of different tasks."""

Item = str | tuple[str, ...] | list[str] | Mapping[str, str]
"""A text, a pair of texts, or {"question": ..., "context": ...}; for token classification also a list of words."""


class TrainedModel:
    """The encoder, head(s) and task of a run. `predict` takes texts and returns answers."""

    def __init__(
        self,
        run: Run,
        encoder_pool: EncoderPool | OnnxEncoder | None = None,
        encoder_info: EncoderInfo | None = None,
    ):
        """Load the model of a run. Models with the same `encoder_pool` share the encoders they have in common.

        `encoder_info` is the tokenizer of the encoder, if it is already loaded.
        """
        self.run = run
        self.task: Task = task_from_dict(run.record.task)
        self.max_tokens: int = run.record.max_tokens
        self.settings: dict[str, float] = run.metrics.decoding
        encoder_pool = encoder_pool or EncoderPool()
        self.members: list[Run] = run.members() or [run]
        self.attached_heads: list[AttachedHead] = [encoder_pool.add(member) for member in self.members]
        self.bert_head: AttachedHead = encoder_pool.add_own(self.members[0])
        bert = run.bert()
        self.bert_settings: dict[str, float] = bert.metrics.decoding if bert else {}
        encoder_info = encoder_info or load_encoder_info(str(self._tokenizer_directory()))
        self._tokenizer = encoder_info.tokenizer
        self.pad_ids: dict[str, int] = encoder_info.pad_ids

    @classmethod
    def from_pretrained(cls, directory: str | Path, encoder: str = "") -> "TrainedModel":
        """Load a run from its directory.

        `encoder` is the directory or Hub name of the encoder, for a model that was saved without it. Its weights must
        be those that the head was trained on.
        """
        return load(directory, encoder)

    def save_pretrained(self, directory: str | Path, *, encoder: bool = True) -> Path:
        """Save the model, its tokenizer and a model card to one directory.

        Without `encoder`, only the name and the hash of the encoder are saved.
        """
        return sharing.save_pretrained(self.run, Path(directory), encoder=encoder)

    @cached_property
    def forward_passes(self) -> set[tuple[str, str]]:
        """The forward passes of a prediction, as pairs (hash of the encoder, "cross" or "bi" encoding).

        There is one for each encoding that a head of an encoder reads. Models that read windows share theirs with
        models of the same windows.
        """
        size = getattr(self.task, WINDOW_TOKENS, 0)
        passes = {"cross": [f"windows of {size}" if size else "cross"], "bi": ["bi"], "both": ["cross", "bi"]}
        return {
            (head.shared_encoder.weights, encoding)
            for head, usage in zip(self.attached_heads, self.layers, strict=True)
            for encoding in passes[usage.get("encoding", "cross")]
        }

    @property
    def num_forward_passes(self) -> int:
        """Number of forward passes of a prediction."""
        return len(self.forward_passes)

    def required_heads(self, *, bert: bool) -> list[AttachedHead]:
        """Return the distinct heads that a prediction needs; with `bert`, also the encoder's own head."""
        heads = [*self.attached_heads, self.bert_head] if bert else self.attached_heads
        return [head for index, head in enumerate(heads) if head not in heads[:index]]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The layers that the head of each member uses, and their weights if the head learned such."""
        return [{"name": member.name, **layers_read(member)} for member in self.members]

    def predict(self, items: Any, *, nbest: int | None = None, bert: bool = False, errors: str = "raise") -> Any:
        """Return the answer to one item as a dictionary, or the answers to several items as a list.

        Args:
            items: A text, a pair of texts, or a mapping such as {"question": ..., "context": ...}; or a list, array,
                Series or iterator of these, which may be lists of words if the model finds entities; or a table with
                the columns of the task's texts: a DataFrame, a `datasets.Dataset`, a dictionary of columns, a tuple of
                two columns, or the `Path` of a file.
            nbest: Number of candidates to list as "nbest": the most probable answers to a question, or classes.
            bert: Add the answer of the encoder's own fine-tuned head as "bert". This needs no further forward pass.
            errors: "raise": an invalid item is an error. "return": its answer is {"error": "..."}, and the other items
                are answered.
        """
        if errors not in ("raise", "return"):
            raise BertVisionError(f"errors is 'raise' or 'return', got {errors!r}.")
        single = _is_single(items)
        answers = self.answer([items] if single else items, nbest=nbest, bert=bert, errors=errors)
        if cut := sum("truncated" in answer for answer in answers):
            logger.warning(
                f"{cut:,} of {len(answers):,} texts {'is' if cut == 1 else 'are'} longer than {self.max_tokens} tokens "
                "and cut there."
            )
        return answers[0] if single else answers

    def answer(self, items: Any, *, nbest: int | None, bert: bool, errors: str) -> list[dict[str, Any]]:
        """Return the answers to several items, as `predict` does, without a notice about texts that are cut."""
        answers: list[dict[str, Any]] = []
        examples: dict[int, Example] = {}
        for index, item in enumerate(read_items(items, self.task.text_names)):
            answers.append({})
            try:
                examples[index] = self._example(index, item)
            except BertVisionError as error:
                if errors == "raise":
                    raise
                answers[index] = {"error": str(error)}
        if examples:
            features = self._encode(examples.values())
            logits = self.compute_logits(features, bert=bert)
            for index, answer in zip(
                examples, self.format_answers(logits, features, nbest=nbest, bert=bert), strict=True
            ):
                answers[index] = answer
        return answers

    def encode(self, items: Sequence[Item]) -> Features:
        """Validate and tokenize items. A long context is split into several rows."""
        return self._encode([self._example(index, item) for index, item in enumerate(items)])

    def _encode(self, examples: Iterable[Example]) -> Features:
        return self.encode_examples([replace(example, id=str(i)) for i, example in enumerate(examples)])

    def encode_examples(self, examples: Sequence[Example]) -> Features:
        """Tokenize examples of a dataset."""
        return self.task.encode(examples, self._tokenizer, self.max_tokens)

    def compute_logits(self, features: Features, *, bert: bool = False) -> dict[AttachedHead, Predictions]:
        """Run each encoder once on every row, and return the logits of each head."""
        shape = self.members[0].record.head_shape
        token_bytes = shape.num_layers * shape.hidden_size * 4
        tokens = evaluation_batches(features, self.pad_ids, token_bytes, devices.device().type)
        heads_by_encoder: dict[str, list[AttachedHead]] = {}
        for head in self.required_heads(bert=bert):
            heads_by_encoder.setdefault(head.shared_encoder.weights, []).append(head)
        logits: dict[AttachedHead, list[np.ndarray]] = {
            head: [] for heads in heads_by_encoder.values() for head in heads
        }
        order: list[int] = []
        with bar("predict", total=tokens.rows) as advance:
            for batch in tokens.epoch(0):
                assert isinstance(batch.inputs, dict)
                lengths = features.lengths[batch.rows]
                for heads in heads_by_encoder.values():
                    wanted = {head.head: np.arange(len(batch.rows)) for head in heads}
                    outputs = heads[0].shared_encoder.read(batch.inputs, batch.attention_mask, batch.text_ids, wanted)
                    for head in heads:
                        rows = outputs[head.head]
                        if self.task.per_token:
                            rows = [row[:length] for row, length in zip(rows, lengths, strict=True)]
                        logits[head] += list(rows)
                order += batch.rows.tolist()
                advance(len(batch.rows))
        positions = np.argsort(order)  # batches are sorted by length; this restores the order of the features
        return {head: self.stack_logits([rows[i] for i in positions], features) for head, rows in logits.items()}

    def stack_logits(self, rows: Sequence[np.ndarray], features: Features) -> Predictions:
        """Stack the logits of rows: each (C,), or (T, C) if the task has logits per token."""
        if not self.task.per_token:
            return Predictions(ids=features.ids, logits=np.stack(rows))
        return Predictions(ids=features.ids, logits=np.concatenate(rows), offsets=features.offsets)

    def combine_members(self, predictions: Mapping[AttachedHead, Predictions]) -> Predictions:
        """Return the predictions of the model: those of its head, or of its members combined."""
        members = [predictions[head] for head in self.attached_heads]
        if len(members) == 1:
            return members[0]
        return combine(
            members,
            self.run.record.how,
            independent=self.task.independent_outputs,
            tags=self.task.example_kind == "tokens",
        )

    def format_answers(
        self,
        predictions: Mapping[AttachedHead, Predictions],
        features: Features,
        *,
        nbest: int | None = None,
        bert: bool = False,
    ) -> list[dict[str, Any]]:
        """Convert the logits of the heads to one answer per item, in the order of the items.

        The answer to a text that was cut has the key "truncated".
        """
        answers = self.task.format_answers(self.combine_members(predictions), features, self.settings)
        if bert:
            bert_answers = self.task.format_answers(predictions[self.bert_head], features, self.bert_settings)
            for id, answer in answers.items():
                answer["bert"] = bert_answers[id]
        for answer in answers.values():
            for candidates in (answer, answer.get("bert", {})):
                if nbest is not None:
                    _limit_candidates(candidates, nbest)
        if features.truncated is not None:
            for row in np.flatnonzero(features.truncated):
                answers[features.example_ids[row]]["truncated"] = True
        return [answers[str(index)] for index in range(len(answers))]

    def logits(self, features: Features) -> Predictions:
        """Return the logits of the model for every row."""
        return self.combine_members(self.compute_logits(features))

    def _tokenizer_directory(self) -> Path | str:
        """Return where the tokenizer is: with a shared or exported run, else with the encoder."""
        first = self.members[0]
        export = self.run.record.export
        exported = self.run.path(export.directory if export else ".")
        for directory in (self.run.directory, exported, first.encoder_directory):
            if (directory / "tokenizer.json").is_file():
                return directory
        return first.encoder_name

    def _example(self, index: int, item: Any) -> Example:
        """Validate an item. For token classification, an item may be a list of words."""
        words: tuple[tuple[int, int], ...] = ()
        if isinstance(self.task, TokenTask) and isinstance(item, list):
            for word in item or [""]:
                if why := find_text_error(word):
                    raise BertVisionError(f"Item {index} {why}; {self.task.name} takes a text, or a list of words.")
            item, words = join_words(item)
        return Example(id=str(index), texts=self._texts(index, item), label=None, words=words)

    def _texts(self, index: int, item: Any) -> tuple[str, ...]:
        """Validate an item and return its texts."""
        inputs = self.task.text_names
        expected = f"{self.task.name} takes {', '.join(inputs)}"
        if isinstance(item, Mapping):
            names = inputs
            if set(item) <= set(GENERIC_NAMES) and not set(inputs) <= set(item):
                names = GENERIC_NAMES[: len(item)]
            missing = [name for name in names if name not in item]
            if missing:
                raise BertVisionError(f"Item {index} lacks {missing[0]!r}; {expected}.")
            texts = tuple(item[name] for name in names)
        else:
            texts = tuple(item) if isinstance(item, tuple | list) else (item,)
        if len(texts) != len(inputs):
            raise BertVisionError(f"Item {index} has {len(texts)} text(s) instead of {len(inputs)}; {expected}.")
        for text in texts:
            if why := find_text_error(text):
                raise BertVisionError(f"Item {index} {why}; {expected}.")
        return texts


def _is_single(items: Any) -> bool:
    """Whether `items` is one item rather than several: a text, a mapping of texts, or a tuple of texts."""
    if isinstance(items, Mapping):
        return not items or not all(map(is_column, items.values()))
    return isinstance(items, str) or (isinstance(items, tuple) and all(isinstance(text, str) for text in items))


def _limit_candidates(answer: dict[str, Any], nbest: int) -> None:
    """Keep the best candidates of an answer. Classes are listed by descending probability."""
    if "nbest" in answer:
        answer["nbest"] = answer["nbest"][:nbest]
    elif "probabilities" in answer:
        ranked = sorted(answer["probabilities"].items(), key=lambda pair: -pair[1])[:nbest]
        answer["nbest"] = [{"label": label, "probability": probability} for label, probability in ranked]


def load(run: str | Path | Run, encoder: str = "", *, precision: str = "float32") -> TrainedModel:
    """Load a finished, shared or exported run from its directory.

    Args:
        run: The run or its directory.
        encoder: Directory or Hub name of the encoder, for a run that was shared without it.
        precision: Number type of matrix products in the encoder. Answers in float32 do not depend on the other texts
            of a batch. "run" stands for the number type that the run was scored in.
    """
    models = load_all([run], encoder, precision=precision)
    if len(models) > 1:
        paths = ", ".join(str(model.run.directory) for model in models)
        raise BertVisionError(f"{run} contains {len(models)} models; choose one of {paths}.")
    return models[0]


def load_all(runs: Sequence[str | Path | Run], encoder: str = "", *, precision: str = "float32") -> list[TrainedModel]:
    """Load several runs. Runs on the same encoder share it, and its forward pass. The arguments are those of `load`."""
    encoder_pool = EncoderPool(encoder, precision)
    onnx_encoders: dict[Path, OnnxEncoder] = {}
    models = []
    for run in _open_runs(runs):
        if run.record.export is not None:
            directory = run.path(run.record.export.directory)
            if directory not in onnx_encoders:
                onnx_encoders[directory] = OnnxEncoder(directory)
            models.append(TrainedModel(run, onnx_encoders[directory]))
        else:
            models.append(TrainedModel(run, encoder_pool))
    return models


def _open_runs(runs: Sequence[str | Path | Run]) -> Iterator[Run]:
    """Open runs by directory. The directory of an export stands for all runs in it."""
    for run in runs:
        if isinstance(run, Run):
            yield run
        elif is_exported(Path(run)):
            yield from exported_runs(Path(run))
        else:
            yield open_run(Path(run))


def expand_directories(paths: Sequence[Path]) -> list[Path]:
    """Replace each directory that is not a run by the finished and exported runs directly inside it."""
    directories: list[Path] = []
    for path in paths:
        runs = [] if _is_model(path) else sorted(child for child in path.glob("*") if _is_model(child))
        directories += runs or [path]
    return directories


def _is_model(directory: Path) -> bool:
    return is_finished(directory) or is_exported(directory)
