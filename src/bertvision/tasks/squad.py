"""SQuAD: find the answer in a passage, or say that there is none."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.tasks.base import DataRequest, DataSplits, Example, Task, check_answers
from bertvision.tasks.calibration import calibration_error, fit_scale, sigmoid
from bertvision.tasks.decoding import Answer, decode, no_answer_margins, probabilities
from bertvision.tasks.loading import check_rows, find_directory, hub_tables, load_from_source
from bertvision.tasks.metrics import accuracy, best_threshold, compare, f1
from bertvision.tasks.origins import Own
from bertvision.tasks.reading import Table, question, read_squad
from bertvision.tasks.splitting import count_of, draw, draw_groups, strata_of
from bertvision.tasks.windows import encode_windows
from bertvision.types import Features, Predictions

logger = logging.getLogger(__name__)

HUB = "rajpurkar/squad_v2"
ROWS = (130_319, 11_873)
NEVER = 1e9
"""A null threshold no logits reach: for data in which every question has an answer."""


@dataclass(frozen=True, kw_only=True)
class SquadTask(Task):
    """Answer questions about a passage, or only tell whether the passage answers them."""

    name: str
    summary: str
    answerable: bool
    """True: a class per window. False: start and end of the answer."""
    learning_rate: float = 2e-5
    batch_size: int = 16
    max_tokens: int = 384
    hub: str = HUB
    own: Own | None = None
    classes: tuple[str, ...] = field(init=False)
    metrics: tuple[str, ...] = field(init=False)
    primary: str = field(init=False)
    per_token: bool = field(init=False)
    outputs: int = field(default=2, init=False)

    def __post_init__(self) -> None:
        metrics = ("accuracy", "f1") if self.answerable else ("f1", "exact", "HasAns_f1", "NoAns_f1")
        object.__setattr__(self, "classes", ("answerable", "unanswerable") if self.answerable else ())
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "primary", metrics[0])
        object.__setattr__(self, "per_token", not self.answerable)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What each text of an example is called."""
        return ("question", "context")

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the data can come from."""
        return ("own files",) if self.own else ("local", "hub")

    # Loading

    def read(self, path: Path) -> list[Example]:
        """Read one file in the SQuAD format."""
        return read_squad(path)

    def load(self, request: DataRequest) -> DataSplits:
        """Find the data where `request` says, and read every question of it."""
        if self.own:
            if request.data_dir or request.source not in ("", "local"):
                raise BertVisionError(f"{self.name} reads its own files ({self.own.train}); it takes no other source.")
            data = self._load_own(self.own, request)
        else:
            files = "train-v2.0.json, dev-v2.0.json (or the same of v1.1)"
            data = load_from_source(
                self.name, request, local=self._load_local, hub=self._load_hub, registry=None, files=files
            )
        if self.answerable and len({bool(example.label) for example in data.train}) < 2:
            raise BertVisionError(
                f"{self.name} needs questions with and without answers, as in SQuAD 2.0; got one kind."
            )
        return data

    def _load_local(self, request: DataRequest) -> DataSplits:
        root = Path(request.data_dir).expanduser()
        old = not any((place / "train-v2.0.json").exists() for place in (root, root / "squad2")) and any(
            (place / "train-v1.1.json").exists() for place in (root, root / "squad")
        )
        version, folder = ("v1.1", "squad") if old else ("v2.0", "squad2")
        train, dev, chosen = (f"{part}-{version}.json" for part in ("train", "dev", "validation"))
        directory = find_directory(request, self.name, folder, [train, dev])
        data = self._load_own(
            Own(
                train=str(directory / train),
                dev=str(directory / dev),
                validation=str(directory / chosen) if (directory / chosen).exists() else "",
            ),
            request,
        )
        official = (87_599, 10_570) if old else ROWS
        check_rows(f"SQuAD {version}", [len(data.train), len(data.dev)], official, request, strict=False)
        return DataSplits(
            train=data.train, dev=data.dev, validation=data.validation, source=f"local directory {directory}"
        )

    def _load_own(self, own: Own, request: DataRequest) -> DataSplits:
        train = read_squad(Path(own.train), training=True)
        validation = read_squad(Path(own.validation)) if own.validation else None
        if own.dev:
            dev = read_squad(Path(own.dev))
        else:
            train, dev = self.split_validation(train, 0.2, 0)
            logger.info(f"No dev file: {len(dev):,} questions of {own.train}, in whole articles, are held out for it.")
        return DataSplits(train=train, dev=dev, validation=validation, source=f"files {own.train}")

    def _load_hub(self, request: DataRequest) -> DataSplits:
        train, dev = (_questions(table) for table in hub_tables(self.hub, "", ["train", "validation"]))
        if self.hub == HUB:
            check_rows(self.name, [len(train), len(dev)], ROWS, request, strict=True)
        return DataSplits(train=train, dev=dev, source=f"Hugging Face Hub, {self.hub}")

    # Dividing

    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split train into (train, validation) by whole articles; by whole passages if there is one article only."""
        count = count_of(share, len(examples))
        groups = strata_of([example.group for example in examples])
        if groups.max() == 0:
            groups = strata_of([example.texts[1] for example in examples])
        if groups.max() == 0:
            raise BertVisionError(
                "All questions are about one passage, which must not be torn apart. Give a validation file."
            )
        held = set(draw_groups(groups, count, seed).tolist())
        train = [example for row, example in enumerate(examples) if row not in held]
        return train, [examples[row] for row in sorted(held)]

    def sample(self, examples: Sequence[Example], count: int, seed: int) -> list[Example]:
        """Draw `count` questions at random, answerable or not in the data's proportions; all if `count` is 0."""
        if count < 0:
            raise BertVisionError(f"Cannot draw {count} questions; give a count of 1 or more, or 0 for all.")
        if count == 0 or count >= len(examples):
            return list(examples)
        return [examples[row] for row in draw(self.strata(examples), count, seed)]

    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Number answerable questions and others. (N,)"""
        return strata_of([bool(example.label) for example in examples])

    # From text to logits, and from logits to scores

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize; cut long contexts into windows."""
        return encode_windows(examples, tokenizer, max_tokens, self.answerable)

    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Return cross-entropy; for spans the mean of that of starts and ends. (B, C) or (B, T, 2)"""
        if self.answerable:
            return torch.nn.functional.cross_entropy(logits.float(), labels)
        logits = logits.float().masked_fill(~attention_mask[..., None], -torch.inf)
        # Classes are the middle axis: cross-entropy over tokens, mean over batch and both ends.
        return torch.nn.functional.cross_entropy(logits, labels)

    def tune(self, predictions: Predictions, features: Features, examples: Sequence[Example]) -> dict[str, float]:
        """Choose the null threshold that gives the best F1, and the scale that makes its margin a probability."""
        if self.answerable:
            return {}
        if all(example.label for example in examples):
            return {"null_threshold": NEVER}
        answers = decode(predictions, features)
        check_answers(answers, examples)
        differences, kept, nulled = [], [], []
        for example in examples:
            answer, golds = answers[example.id], [span.text for span in example.label]
            if answer.span and math.isfinite(answer.difference):
                differences.append(answer.difference)
                kept.append(compare(answer.span.text, golds)[1])
                nulled.append(compare("", golds)[1])
        if not differences:
            return {"null_threshold": 0.0}
        threshold, _ = best_threshold(np.array(differences), np.array(kept), np.array(nulled))
        slope, bias = fit_scale(*_margins(answers, examples))
        return {"null_threshold": threshold, "null_slope": slope, "null_bias": bias}

    def calibration(
        self,
        predictions: Predictions,
        features: Features,
        settings: Mapping[str, float],
        examples: Sequence[Example],
    ) -> dict[str, float]:
        """Return the calibration error of "no answer", in percent, with the scale that `tune` found and without."""
        if "null_slope" not in settings:
            return {}
        margins, truth = _margins(decode(predictions, features), examples)
        scale_loss = sigmoid(settings["null_slope"] * margins + settings["null_bias"])
        return {
            "no_answer_error": calibration_error(scale_loss, truth),
            "no_answer_error_uncalibrated": calibration_error(sigmoid(margins), truth),
        }

    def answers(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return an Answer per question, or if `answerable` a class index."""
        if self.answerable:
            return {id: int(margin > 0) for id, margin in no_answer_margins(predictions, features).items()}
        return dict(decode(predictions, features, settings.get("null_threshold", 0.0)))

    def present(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Return {"answer", "start", "end", "score", "null_probability", "nbest"}, or a class, per question."""
        if self.answerable:
            shown = {}
            for id, no in probabilities(no_answer_margins(predictions, features)).items():
                every = dict(zip(self.classes, (1 - no, no), strict=True))
                shown[id] = {"label": self.classes[no > 0.5], "probability": max(no, 1 - no), "probabilities": every}
            return shown
        threshold = settings.get("null_threshold", 0.0)
        # Runs from before the scale was fitted have the threshold alone: there it stands for one half.
        slope, bias = settings.get("null_slope", 1.0), settings.get("null_bias", -threshold)
        answers = decode(predictions, features, threshold)
        no_answer = {id: float(sigmoid(slope * _margin(each) + bias)) for id, each in answers.items()}
        return {
            id: {
                "answer": answer.text,
                "start": answer.start,
                "end": answer.end,
                "score": answer.score,
                "null_probability": no_answer[id],
                "nbest": [candidate._asdict() for candidate in answer.nbest],
            }
            for id, answer in answers.items()
        }

    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Return exact, F1, has an answer (N, 3); or if `answerable` gold and predicted class (N, 2)."""
        check_answers(answers, examples)
        if self.answerable:
            return np.array([(not example.label, answers[example.id]) for example in examples], dtype=np.float64)
        return compare_all({id: answer.text for id, answer in answers.items()}, examples)

    def summarize(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the official metrics of these rows, in percent."""
        if self.answerable:
            gold, predicted = outcomes.T
            return {"accuracy": accuracy(gold, predicted), "f1": f1(gold, predicted)}
        return summarize_spans(outcomes)

    def right(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Tell which questions got an exact answer, or the right class. (N,)"""
        return outcomes[:, 0] == outcomes[:, 1] if self.answerable else outcomes[:, 0] == 1

    def describe(self) -> dict[str, Any]:
        """Return JSON from which `tasks.restore` rebuilds this task."""
        plain = ("name", "summary", "answerable", "max_tokens", "learning_rate", "batch_size")
        description: dict[str, Any] = {"kind": "squad"} | {key: getattr(self, key) for key in plain}
        return description | {"own": vars(self.own) if self.own else None}


def _margin(answer: Answer) -> float:
    """How much "no answer" leads, as a finite number."""
    return min(answer.difference, NEVER)


def _margins(answers: Mapping[str, Answer], examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Return margins, and whether there is no answer, of the questions that have any span to choose. (N,), (N,)"""
    rows = [(answers[each.id].difference, not each.label) for each in examples]
    found = np.array([row for row in rows if math.isfinite(row[0])], dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def compare_all(texts: Mapping[str, str], examples: Sequence[Example]) -> np.ndarray:
    """Return exact, F1, has an answer, for each example. (N, 3)"""
    rows = [(*compare(texts[each.id], [span.text for span in each.label]), bool(each.label)) for each in examples]
    return np.array(rows, dtype=np.float64)


def summarize_spans(outcomes: np.ndarray) -> dict[str, float]:
    """Average exact and F1 over all rows, over those with an answer, and over those without."""
    has = outcomes[:, 2] == 1
    scores = {}
    for prefix, rows in (("", outcomes), ("HasAns_", outcomes[has]), ("NoAns_", outcomes[~has])):
        if len(rows):
            scores[f"{prefix}exact"], scores[f"{prefix}f1"] = (100.0 * rows[:, :2].mean(axis=0)).tolist()
    return scores


def _questions(table: Table) -> list[Example]:
    shared: dict[str, str] = {}
    examples = []
    for _, (id, title, context, asked, answers) in table.pick(["id", "title", "context", "question", "answers"]):
        spans = list(zip(answers["text"], answers["answer_start"], strict=True))
        context = shared.setdefault(context, context)  # several questions share one passage
        examples.append(question(table.source, id, asked, context, spans, title, table.stem == "train"))
    return examples
