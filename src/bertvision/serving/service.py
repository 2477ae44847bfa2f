"""The runs that are served: by name, with what they share, and how a request goes through them."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from bertvision.encoders import ENCODERS
from bertvision.errors import BertVisionError, lookup
from bertvision.runs import slug
from bertvision.serving.batching import Batcher, QueuedRow, TooLarge
from bertvision.serving.examples import examples_for
from bertvision.serving.settings import ServerSettings
from bertvision.shared_encoders import AttachedHead
from bertvision.trained_model import Item, TrainedModel
from bertvision.types import Features

INLINE = 600
"""Characters up to which tokenizing takes less time than going to another thread."""
CPU_THREADS = 2
"""Threads that turn long texts into tokens and logits into answers, so that the event loop can go on refusing."""


def name_all(models: Sequence[TrainedModel]) -> dict[str, TrainedModel]:
    """Name each by its task; by task and head, and then by number, where that is not enough."""
    tasks = Counter(each.task.name for each in models)
    full = [slug(f"{each.task.name}-{each.run.name}") for each in models]
    named: dict[str, TrainedModel] = {}
    for each, long in zip(models, full, strict=True):
        name, number = each.task.name if tasks[each.task.name] == 1 else long, 1
        while name in named:
            number += 1
            name = f"{long}-{number}"
        named[name] = each
    return named


class InferenceService:
    """Predictors by name, and the batches they share."""

    def __init__(self, models: Sequence[TrainedModel], batcher: Batcher, settings: ServerSettings):
        self.models = name_all(models)
        self.batcher = batcher
        self.settings = settings
        self.cpu_pool = ThreadPoolExecutor(CPU_THREADS, "bertvision-clerk")

    def choose(self, names: Sequence[str], items: Sequence[Item]) -> dict[str, TrainedModel]:
        """Return the models asked for; if none are named, the only one, or those that can read the items."""
        if names:
            return {name: lookup(self.models, name, "model") for name in dict.fromkeys(names)}
        if len(self.models) == 1:
            return dict(self.models)
        sizes = {1 if isinstance(item, str) else len(item) for item in items}
        fitting = {name: each for name, each in self.models.items() if {len(each.task.inputs)} == sizes}
        if not fitting:
            raise BertVisionError(f"No model reads such items. Name one of: {', '.join(self.models)}.")
        return fitting

    def limit(self, items: Sequence[Item]) -> int:
        """Refuse too much text; return how many characters there are."""
        if len(items) > self.settings.items:
            raise TooLarge(f"The request has {len(items):,} items; this server takes {self.settings.items:,} at most.")
        total = 0
        for number, item in enumerate(items):
            texts = [item] if isinstance(item, str) else item.values() if isinstance(item, dict) else item
            lengths = [len(text) for text in texts]
            if max(lengths, default=0) > self.settings.characters:
                raise TooLarge(
                    f"Item {number} has a text of {max(lengths):,} characters; this server takes "
                    f"{self.settings.characters:,} at most."
                )
            total += sum(lengths)
        return total

    async def answer(
        self, models: dict[str, TrainedModel], items: Sequence[Item], *, nbest: int, bert: bool, timeout: float | None
    ) -> dict[str, Any]:
        """Put items to models: tokenize once per kind of reading, read each row once per backbone, present."""
        began = time.monotonic()
        characters = self.limit(items)
        seconds = min(timeout or self.settings.timeout, self.settings.timeout)
        self.batcher.check(seconds)
        loop = asyncio.get_running_loop()
        if characters <= INLINE:
            encoded = encode_all(models, items)
        else:
            encoded = await loop.run_in_executor(self.cpu_pool, encode_all, models, items)
        ready = time.monotonic()
        rows: dict[tuple[int, int | None, bytes], QueuedRow] = {}
        places: dict[tuple[str, AttachedHead], list[QueuedRow]] = {}
        for name, model in models.items():
            features = encoded[name]
            for part in model.asked(own=bert):
                places[name, part] = _rows(part, features, model.pad_ids, began + seconds, rows)
        unique = list(rows.values())
        found = dict(zip(map(id, unique), await self.batcher.submit(unique), strict=True))
        read = time.monotonic()

        def present() -> dict[str, list[dict[str, Any]]]:
            answers = {}
            for name, model in models.items():
                features = encoded[name]
                said = {
                    part: model.gather([found[id(row)][part.head] for row in mine], features)
                    for (owner, part), mine in places.items()
                    if owner == name
                }
                answers[name] = model.present(said, features, nbest=nbest, bert=bert)
            return answers

        answers = present() if characters <= INLINE else await loop.run_in_executor(self.cpu_pool, present)
        total = time.monotonic() - began
        return {
            "answers": answers,
            "passes": len(set().union(*(each.readings for each in models.values()))),
            "tokens": sum(row.length for row in unique),
            "seconds": {"encode": ready - began, "read": read - ready, "total": total},
        }

    @cached_property
    def description(self) -> dict[str, Any]:
        """What /v1/models tells."""
        shared: dict[str, list[str]] = {}
        for name, each in self.models.items():
            for part in each.parts:
                if name not in shared.setdefault(part.shared_encoder.weights, []):
                    shared[part.shared_encoder.weights].append(name)
        names = {m.record.encoder_hash: _encoder_name(m) for each in self.models.values() for m in each.members}
        encoders = [{"name": names[key], "weights": key, "models": models} for key, models in shared.items()]
        if len(encoders) == 1:
            note = f"One backbone: a text takes one forward pass, for all {len(self.models)} model(s)."
        else:
            note = (
                f"{len(encoders)} backbones: a text takes a forward pass through each that its models read; "
                f"{len(encoders)} for all {len(self.models)} models. Models on the same backbone share its pass."
            )
        described = [_describe(name, each) for name, each in self.models.items()]
        return {"models": described, "encoders": encoders, "note": note}


def encode_all(models: dict[str, TrainedModel], items: Sequence[Item]) -> dict[str, Features]:
    """Tokenize the items for every model; models that read them alike share the work."""
    done: dict[tuple[Any, ...], Features] = {}
    encoded = {}
    for name, each in models.items():
        alike = each.members[0].record.encoder_hash, type(each.task), each.max_tokens, each.task.inputs
        key = (*alike, getattr(each.task, "answerable", None), id(each.own.shared_encoder))
        if key not in done:
            done[key] = each.encode(items)
        encoded[name] = done[key]
    return encoded


def _rows(
    part: AttachedHead,
    features: Features,
    pad_ids: dict[str, int],
    deadline: float,
    rows: dict[tuple[int, int | None, bytes], QueuedRow],
) -> list[QueuedRow]:
    """Return a row for each of the features; equal tokens on one trunk are one row, whoever asks."""
    mine = []
    seconds = [None] * len(features) if features.seconds is None else features.seconds.tolist()
    bounds = zip(features.offsets[:-1].tolist(), features.offsets[1:].tolist(), seconds, strict=True)
    for first, last, second in bounds:
        tokens = {name: flat[first:last] for name, flat in features.tokens.items()}
        key = (
            id(part.shared_encoder),
            second,
            b"".join(np.ascontiguousarray(each).tobytes() for each in tokens.values()),
        )
        if key not in rows:
            rows[key] = QueuedRow(part.shared_encoder, tokens, pad_ids, deadline, second=second)
        rows[key].heads.add(part.head)
        mine.append(rows[key])
    return mine


def _encoder_name(run: Any) -> str:
    known = ENCODERS.get(run.record.encoder)
    return known.hub if known else run.record.encoder.rstrip("/").rsplit("/", 1)[-1]


def _describe(name: str, each: TrainedModel) -> dict[str, Any]:
    task, run = each.task, each.run
    classes = list(getattr(task, "classes", ()))
    return {
        "name": name,
        "task": task.name,
        "summary": task.summary,
        "kind": run.kind,
        "head": run.name,
        "inputs": list(task.inputs),
        "answers": "span" if task.per_token else "class" if classes else "score",
        "classes": classes,
        "encoder": _encoder_name(each.members[0]),
        "weights": each.members[0].record.encoder_hash,
        "passes": each.passes,
        "runs_on": each.own.shared_encoder.runs_on,
        "max_tokens": each.max_tokens,
        "fraction": run.record.fraction,
        "parameters": run.metrics.parameters,
        "primary": run.metrics.primary_metric,
        "score": run.metrics.scores,
        "reads": each.layers,
        "examples": [{"title": title, "texts": list(texts)} for title, texts in examples_for(task)],
    }
