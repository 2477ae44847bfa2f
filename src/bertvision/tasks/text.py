"""Tasks about one text or a pair of texts: a class or a score for each. GLUE, others, and the user's own."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.sources import PACKAGES
from bertvision.tasks.base import DataRequest, DataSplits, Example, Task, check_answers, rows_in_order
from bertvision.tasks.encoding import encode_texts
from bertvision.tasks.loading import check_rows, find_directory, hub_tables, load_from_source
from bertvision.tasks.metrics import METRICS
from bertvision.tasks.origins import Hub, Local, Own, Registry, as_number, label_name, row_ids
from bertvision.tasks.reading import Table, read_table
from bertvision.tasks.splitting import count_of, draw, quantile_bins, strata_of
from bertvision.types import Features, Predictions

logger = logging.getLogger(__name__)

MISMATCHED = "mismatched"


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Classify, or score, one text or a pair."""

    name: str
    summary: str
    texts: tuple[str, ...]
    """The columns that hold the texts."""
    label: str = "label"
    classes: tuple[str, ...]
    """The classes' names in the order of the logits; empty: the label is a score."""
    numbered: bool = False
    """Files write a class's number, not its name."""
    unlabelled: str = ""
    """What files write as the label of a row that has none; such rows are left out."""
    metrics: tuple[str, ...]
    max_tokens: int = 128
    learning_rate: float = 2e-5
    batch_size: int = 32
    local: Local | None = None
    hub: Hub | None = None
    registry: Registry | None = None
    own: Own | None = None
    per_token: bool = field(default=False, init=False)
    outputs: int = field(init=False)
    primary: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", len(self.classes) or 1)
        object.__setattr__(self, "primary", self.metrics[0])

    @property
    def kind(self) -> str:
        """Whether there are two texts to compare."""
        return "pair" if len(self.inputs) == 2 else "text"

    @property
    def inputs(self) -> tuple[str, ...]:
        """What each text of an example is called."""
        return self.hub.texts if self.hub else self.texts

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the data can come from."""
        if self.own:
            return ("own files",)
        return ("local", "hub", "registry") if self.registry else ("local", "hub")

    # Loading

    def read(self, path: Path) -> list[Example]:
        """Read one labelled file: in the official format, or for the user's own task in any that it reads."""
        table = self.local.read(path) if self.local else read_table(path)
        return self.examples(table, DataRequest(), named=self.local is None)

    def load(self, request: DataRequest) -> DataSplits:
        """Find the data where `request` says, and read every row of it."""
        if self.own:
            return self._load_own(self.own, request)
        local = self.local
        if not local or not self.hub:
            raise BertVisionError(f"The task {self.name!r} comes from another version; this one knows no data for it.")
        names = [local.train, local.dev] + [local.mismatched] * bool(local.mismatched)
        return load_from_source(
            self.name,
            request,
            local=self._load_local,
            hub=self._load_hub,
            registry=self._load_registry if self.registry else None,
            files=f"{', '.join(names)} (also in a folder {local.folder}/)",
        )

    def _load_local(self, request: DataRequest) -> DataSplits:
        assert self.local and self.hub
        directory = find_directory(request, self.name, self.local.folder, [self.local.train, self.local.dev])
        train, dev = (
            self.examples(self.local.read(directory / file), request) for file in (self.local.train, self.local.dev)
        )
        found = [len(train), len(dev)]
        if self.local.mismatched:
            if (path := directory / self.local.mismatched).is_file():
                extra = self.examples(self.local.read(path), request, group=MISMATCHED)
                dev, found = dev + extra, [*found, len(extra)]
            else:
                logger.info(f"{directory} has no {path.name}, so only the matched part is scored.")
        check_rows(self.name, found, self.hub.rows[: len(found)], request, strict=False)
        chosen = directory / f"validation{Path(self.local.train).suffix}"
        validation = self.examples(self.local.read(chosen), request) if chosen.is_file() else None
        return DataSplits(train=train, dev=dev, validation=validation, source=f"local directory {directory}")

    def _load_hub(self, request: DataRequest) -> DataSplits:
        hub = self.hub
        assert hub
        splits = ["train", hub.dev] + [hub.mismatched] * bool(hub.mismatched)
        groups = ["", "", MISMATCHED]
        parts = [
            self.examples(table, request, texts=hub.texts, label=hub.label, group=group)
            for table, group in zip(hub_tables(hub.path, hub.config, splits), groups, strict=False)
        ]
        check_rows(self.name, [len(part) for part in parts], hub.rows, request, strict=True)
        return DataSplits(
            train=parts[0], dev=sum(parts[1:], []), source=f"Hugging Face Hub, {hub.path} {hub.config}".strip()
        )

    def _load_registry(self, request: DataRequest) -> DataSplits:
        registry = self.registry
        assert registry
        train, dev = (self.examples(table, request) for table in registry.read(request.cache))
        check_rows(self.name, [len(train), len(dev)], registry.rows, request, strict=True)
        version = PACKAGES[registry.package].version
        return DataSplits(train=train, dev=dev, source=f"package registry, {registry.package} {version}")

    def _load_own(self, own: Own, request: DataRequest) -> DataSplits:
        if request.data_dir or request.source not in ("", "local"):
            raise BertVisionError(f"{self.name} reads its own files ({own.train}); it takes no other source.")
        train, dev, validation = (
            self.examples(read_table(Path(path)), request, named=True) if path else None
            for path in (own.train, own.dev, own.validation)
        )
        assert train
        if dev is None:
            # A class must occur on both sides, so each gives and keeps one at least.
            held = set(draw(self.strata(train), count_of(0.2, len(train)), 0, least=1, leave=1).tolist())
            dev = [example for row, example in enumerate(train) if row in held]
            train = [example for row, example in enumerate(train) if row not in held]
            logger.info(
                f"No dev file: {len(dev):,} rows of {own.train} (20 %, the same each time) are held out for it."
            )
        return DataSplits(train=train, dev=dev, validation=validation, source=f"files {own.train}")

    def examples(
        self,
        table: Table,
        request: DataRequest,
        *,
        texts: tuple[str, ...] = (),
        label: str = "",
        group: str = "",
        named: bool = False,
    ) -> list[Example]:
        """Turn a table into examples; `texts` and `label` are given for the Hub, whose labels are numbers."""
        numbers = self.numbered or bool(label)
        index = {str(i) if numbers else name: i for i, name in enumerate(self.classes)}
        if label and self.unlabelled:
            index["-1"] = -1
        elif self.unlabelled:
            index[self.unlabelled] = -1
        ids = row_ids(table) if named else [f"{table.stem}-{line}" for line in table.lines]
        examples: list[Example] = []
        skipped = 0
        for id, (line, row) in zip(ids, table.pick((*(texts or self.texts), label or self.label)), strict=True):
            value = self._value(row[-1], index, table, line)
            if value == -1 and self.classes:
                skipped += 1
                continue
            for column, text in zip(texts or self.texts, row, strict=False):
                # The Hub's rows are the official ones, empty or not; an empty text elsewhere is a damaged row.
                if not isinstance(text, str) or not (text.strip() or label):
                    table.refuse(line, f"column {column!r} holds {text!r} where a text was expected.")
            examples.append(Example(id=id, texts=row[:-1], label=value, group=group))
        if skipped:
            logger.info(f"{table.source}: {skipped:,} of {len(table.rows):,} rows have no gold label and are left out.")
        return examples

    def _value(self, written: Any, index: Mapping[str, int], table: Table, line: int) -> int | float:
        if not self.classes:
            number = as_number(written)
            if number is None:
                table.refuse(line, f"the score is {written!r}, not a number.")
            return number
        name = int(written) if isinstance(written, bool) and "True" not in index else written
        value = index.get(label_name(name))
        if value is None:
            known = ", ".join(index)
            table.refuse(line, f"the label is {label_name(written)!r}, which is not one of the known labels: {known}.")
        return value

    # Dividing

    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        if self.classes:
            return strata_of([(example.label, example.group) for example in examples])
        if any(example.label is None for example in examples):
            return np.zeros(len(examples), dtype=np.int64)
        return quantile_bins([example.label for example in examples])

    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split train into (train, validation), each in the data's proportions."""
        count = count_of(share, len(examples))
        held = set(draw(self.strata(examples), count, seed, leave=1).tolist())
        train = [example for row, example in enumerate(examples) if row not in held]
        return train, [examples[row] for row in sorted(held)]

    def sample(self, examples: Sequence[Example], count: int, seed: int) -> list[Example]:
        """Draw `count` examples at random, in the data's proportions and order; all of them if `count` is 0."""
        if count < 0:
            raise BertVisionError(f"Cannot draw {count} examples; give a count of 1 or more, or 0 for all.")
        if count == 0 or count >= len(examples):
            return list(examples)
        strata = self.strata(examples)
        least = int(count >= len(np.unique(strata)))
        return [examples[row] for row in draw(strata, count, seed, least=least)]

    # From text to logits, and from logits to scores

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize, cutting the longer text of a pair first."""
        return encode_texts(examples, tokenizer, max_tokens, np.int64 if self.classes else np.float32)

    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Return cross-entropy, or for scores the squared error. logits (B, C), labels (B,)"""
        if self.classes:
            return torch.nn.functional.cross_entropy(logits.float(), labels)
        return torch.nn.functional.mse_loss(logits.float().squeeze(-1), labels.float())

    def answers(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return a class index, or a score, per example."""
        logits = predictions.logits[rows_in_order(predictions, features)]
        values = logits.argmax(axis=1).tolist() if self.classes else logits[:, 0].tolist()
        return dict(zip(features.origins, values, strict=True))

    def present(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Return {"label", "probability", "probabilities"}, or {"score"}, per example."""
        logits = predictions.logits[rows_in_order(predictions, features)]
        if not self.classes:
            return {id: {"score": float(row[0])} for id, row in zip(features.origins, logits, strict=True)}
        shown = {}
        for id, row in zip(features.origins, softmax(logits.astype(np.float64), axis=1).tolist(), strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            every = dict(zip(self.classes, row, strict=True))
            shown[id] = {"label": self.classes[best], "probability": row[best], "probabilities": every}
        return shown

    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Return gold, predicted, and whether the row is a mismatched one. (N, 3)"""
        check_answers(answers, examples)
        rows = [(example.label, answers[example.id], example.group == MISMATCHED) for example in examples]
        return np.array(rows, dtype=np.float64)

    def summarize(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the task's metrics; one about rows that are not there is left out."""
        scores = {}
        apart = outcomes[:, 2] == 1
        for key in self.metrics:
            metric = key.removesuffix(f"_{MISMATCHED}")
            rows = outcomes[apart if metric != key else ~apart]
            if len(rows):
                scores[key] = METRICS[metric](rows[:, 0], rows[:, 1])
        return scores

    def right(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Tell which rows got the right class. (N,)"""
        return outcomes[:, 0] == outcomes[:, 1] if self.classes else None

    def describe(self) -> dict[str, Any]:
        """Return JSON from which `tasks.restore` rebuilds this task."""
        plain = ("name", "summary", "label", "numbered", "unlabelled", "max_tokens", "learning_rate", "batch_size")
        description: dict[str, Any] = {"kind": "text"} | {key: getattr(self, key) for key in plain}
        description |= {key: list(getattr(self, key)) for key in ("texts", "classes", "metrics")}
        return description | {"own": vars(self.own) if self.own else None}
