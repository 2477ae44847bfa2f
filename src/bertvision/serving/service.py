"""The models of a server: their names, the encoders they share, and how a request is answered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from bertvision.encoders import ENCODERS
from bertvision.errors import BertVisionError
from bertvision.model_groups import encode_items, name_models, rows_of
from bertvision.serving.batching import MAX_BATCH_ROWS, Batcher, DeadlineExceeded, QueuedRow, RequestTooLarge
from bertvision.serving.examples import examples_for
from bertvision.serving.settings import ServerSettings
from bertvision.shared_encoders import AttachedHead
from bertvision.tasks import Task
from bertvision.token_tasks import TokenTask
from bertvision.trained_model import Item, TrainedModel
from bertvision.types import Features

Result = TypeVar("Result")
RowKey = tuple[int, int | None, bytes]
"""Encoder, start of the second text, and tokens of a row: rows with equal keys are computed once."""

MAX_INLINE_CHARACTERS = 600
"""Shorter requests are tokenized in the event loop, where that takes less time than handing them to a thread."""
WARM_UP_SECONDS = 600.0
"""Time limit of the first forward passes."""
WARM_UP_WORDS = 120
WARM_UP_ROUNDS = 3
"""Large batches with each encoder. The C library gives back what the first ones took, and keeps it later."""
NUM_CPU_THREADS = 2
"""Threads that tokenize long texts and format answers, so that the event loop stays free to accept and refuse."""


@dataclass(frozen=True)
class AnswerOptions:
    """What the answers of a request contain."""

    nbest: int = 1
    """Number of classes or candidate answers in `nbest`."""
    bert: bool = False
    """Also the answer of the encoder's own fine-tuned head."""
    top_k: int | None = None
    """Number of classes in `probabilities`; None: all."""

    def limit_classes(self, answers: Sequence[dict[str, Any]]) -> None:
        """Keep the `top_k` most probable classes of each answer."""
        if self.top_k is None:
            return
        for answer in answers:
            for part in (answer, answer.get("bert", {})):
                if "probabilities" in part:
                    ranked = sorted(part["probabilities"].items(), key=lambda pair: -pair[1])
                    part["probabilities"] = dict(ranked[: self.top_k])


class InferenceService:
    """Answers requests with the models of a server."""

    def __init__(self, models: Sequence[TrainedModel], batcher: Batcher, settings: ServerSettings):
        self.models: dict[str, TrainedModel] = name_models(models)
        self.batcher = batcher
        self.settings = settings
        self.cpu_pool: ThreadPoolExecutor = ThreadPoolExecutor(NUM_CPU_THREADS, "bertvision-cpu")

    def select_models(self, names: Sequence[str], items: Sequence[Item]) -> dict[str, TrainedModel]:
        """Return the named models. Without names, return the only model, or all that take items of this form."""
        available = ", ".join(self.models)
        if names:
            if any(name not in self.models for name in names):
                raise BertVisionError(f"Unknown model. Available models: {available}.")
            return {name: self.models[name] for name in dict.fromkeys(names)}
        if len(self.models) == 1:
            return dict(self.models)
        text_counts = {1 if isinstance(item, str) else len(item) for item in items}
        fitting = {name: model for name, model in self.models.items() if {len(model.task.text_names)} == text_counts}
        if not fitting:
            raise BertVisionError(f"No model takes items of this form. Name one of the models: {available}.")
        return fitting

    def check_size(self, items: Sequence[Item]) -> int:
        """Raise `RequestTooLarge` if there are too many items or characters. Return the number of characters."""
        limit = self.settings.max_items
        if len(items) > limit:
            raise RequestTooLarge(f"The request has {len(items):,} items; this server accepts at most {limit:,}.")
        limit = self.settings.max_text_characters
        total = 0
        for number, item in enumerate(items):
            texts = [item] if isinstance(item, str) else item.values() if isinstance(item, dict) else item
            lengths = [len(text) for text in texts]
            longest = max(lengths, default=0)
            if longest > limit:
                raise RequestTooLarge(
                    f"Item {number} has a text of {longest:,} characters; this server accepts at most {limit:,}."
                )
            total += sum(lengths)
        return total

    async def warm_up(self) -> None:
        """Answer one text with each model, and with each encoder as many long ones as are computed at the same time.

        The first forward pass is slow. The large batches take the memory now that an overload would take later.
        """
        options, deadline = AnswerOptions(bert=True), time.monotonic() + WARM_UP_SECONDS
        warm: set[str] = set()
        for name, model in self.models.items():
            num_texts = len(model.task.text_names)
            await self.predict({name: model}, [_warm_up_item("", num_texts)], options, deadline)
            weights = {head.shared_encoder.weights for head in model.required_heads(bert=True)}
            if weights <= warm:
                continue
            warm |= weights
            items = [_warm_up_item(f"{number} ", num_texts, WARM_UP_WORDS) for number in range(MAX_BATCH_ROWS)]
            with suppress(BertVisionError):  # a model may not take texts of this length
                length = int(model.encode(items[:1]).lengths.sum())
                count = min(self.settings.max_batch_tokens, self.settings.max_queue_tokens) // length
                for _ in range(WARM_UP_ROUNDS if count > 1 else 0):
                    await self._predict({name: model}, items[:count], options, deadline, inline=True)

    def time_limit(self, timeout: float | None) -> float:
        """Return the seconds within which a request must be answered: those it asks for, at most the server's."""
        return min(timeout or self.settings.request_timeout, self.settings.request_timeout)

    async def predict(
        self, models: dict[str, TrainedModel], items: Sequence[Item], options: AnswerOptions, deadline: float
    ) -> dict[str, Any]:
        """Answer items with models.

        Items are tokenized once per tokenizer and task type, and each row is computed once per encoder.

        Args:
            models: The models by name.
            items: The items; every model must be able to take each of them.
            options: What the answers contain.
            deadline: A time of the monotonic clock. Later, the work is dropped and `DeadlineExceeded` is raised.

        Returns:
            The body of the response of /v1/predict.
        """
        num_characters = self.check_size(items)
        seconds = deadline - time.monotonic()
        self.batcher.check_capacity(seconds)
        try:
            async with asyncio.timeout(seconds):
                return await self._predict(
                    models, items, options, deadline, inline=num_characters <= MAX_INLINE_CHARACTERS
                )
        except TimeoutError:
            raise DeadlineExceeded from None

    async def _predict(
        self,
        models: dict[str, TrainedModel],
        items: Sequence[Item],
        options: AnswerOptions,
        deadline: float,
        *,
        inline: bool,
    ) -> dict[str, Any]:
        started = time.monotonic()
        encoded = await self._run(lambda: encode_items(models, items), inline=inline)
        tokenized = time.monotonic()
        unique_rows: dict[RowKey, QueuedRow] = {}
        rows = {
            (name, head): _collect_rows(head, encoded[name], model.pad_ids, deadline, unique_rows)
            for name, model in models.items()
            for head in model.required_heads(bert=options.bert)
        }
        queued = list(unique_rows.values())
        logits = dict(zip(map(id, queued), await self.batcher.submit(queued), strict=True))
        computed = time.monotonic()

        def format_answers() -> dict[str, list[dict[str, Any]]]:
            answers = {}
            for name, model in models.items():
                predictions = {
                    head: model.stack_logits([logits[id(row)][head.head] for row in head_rows], encoded[name])
                    for (model_name, head), head_rows in rows.items()
                    if model_name == name
                }
                answers[name] = model.format_answers(predictions, encoded[name], nbest=options.nbest, bert=options.bert)
                options.limit_classes(answers[name])
            return answers

        answers = await self._run(format_answers, inline=inline)
        total = time.monotonic() - started
        return {
            "answers": answers,
            "passes": len(set().union(*(model.forward_passes for model in models.values()))),
            "tokens": sum(row.length for row in queued),
            "seconds": {"encode": tokenized - started, "read": computed - tokenized, "total": total},
        }

    async def _run(self, function: Callable[[], Result], *, inline: bool) -> Result:
        """Call a function in the event loop or in the thread pool."""
        return function() if inline else await asyncio.get_running_loop().run_in_executor(self.cpu_pool, function)

    @cached_property
    def description(self) -> dict[str, Any]:
        """The body of the response of /v1/models."""
        models_by_weights: dict[str, list[str]] = {}
        for name, model in self.models.items():
            for head in model.attached_heads:
                if name not in models_by_weights.setdefault(head.shared_encoder.weights, []):
                    models_by_weights[head.shared_encoder.weights].append(name)
        encoder_names = {
            member.record.encoder_hash: _encoder_name(member)
            for model in self.models.values()
            for member in model.members
        }
        encoders = [
            {"name": encoder_names[weights], "weights": weights, "models": models}
            for weights, models in models_by_weights.items()
        ]
        if len(encoders) == 1:
            note = f"One encoder: a text takes one forward pass for all {len(self.models)} model(s)."
        else:
            note = (
                f"{len(encoders)} encoders: a text takes one forward pass through each encoder that the requested "
                f"models use, {len(encoders)} for all {len(self.models)} models. Models on the same encoder share it."
            )
        described = [_describe(name, model, self.settings.example_file) for name, model in self.models.items()]
        return {"models": described, "encoders": encoders, "note": note}


def _warm_up_item(start: str, num_texts: int, words: int = 2) -> Any:
    """Return texts of which the last one is long: questions, which come first, must be short."""
    return ("warm up",) * (num_texts - 1) + (start + " ".join(["warm", "up"] * (words // 2)),)


def _collect_rows(
    head: AttachedHead,
    features: Features,
    pad_ids: dict[str, int],
    deadline: float,
    unique_rows: dict[RowKey, QueuedRow],
) -> list[QueuedRow]:
    """Return a row for each row of the features. Rows with equal tokens on the same encoder are one object.

    New rows are added to `unique_rows`.
    """
    rows = []
    for (second_start, content), tokens in rows_of(features):
        key = (id(head.shared_encoder), second_start, content)
        if key not in unique_rows:
            unique_rows[key] = QueuedRow(head.shared_encoder, tokens, pad_ids, deadline, second_text_start=second_start)
        unique_rows[key].heads.add(head.head)
        rows.append(unique_rows[key])
    return rows


def _encoder_name(run: Any) -> str:
    entry = ENCODERS.get(run.record.encoder)
    return entry.hub if entry and entry.hub else run.record.encoder.rstrip("/").rsplit("/", 1)[-1]


def _answer_type(task: Task) -> str:
    if task.independent_outputs:
        return "labels"
    if task.per_token:
        return "entities" if isinstance(task, TokenTask) else "span"
    return "class" if getattr(task, "classes", ()) else "score"


def _describe(name: str, model: TrainedModel, example_file: str = "") -> dict[str, Any]:
    """Return a model's entry in /v1/models."""
    task, run = model.task, model.run
    classes = list(getattr(task, "classes", ()))
    return {
        "name": name,
        "task": task.name,
        "summary": task.summary,
        "kind": run.kind,
        "head": run.name,
        "inputs": list(task.text_names),
        "answers": _answer_type(task),
        "classes": classes,
        "encoder": _encoder_name(model.members[0]),
        "weights": model.members[0].record.encoder_hash,
        "passes": model.num_forward_passes,
        "runs_on": model.bert_head.shared_encoder.runs_on,
        "max_tokens": model.max_tokens,
        "fraction": run.record.fraction,
        "parameters": run.metrics.parameters,
        "primary": run.metrics.primary_metric,
        "score": run.metrics.scores,
        "reads": model.layers,
        "examples": [{"title": title, "texts": list(texts)} for title, texts in examples_for(task, example_file)],
    }
