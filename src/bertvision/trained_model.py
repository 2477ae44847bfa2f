"""A finished run, ready to answer."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertvision import sharing
from bertvision.encoders import load_encoder_info
from bertvision.ensembles import combine
from bertvision.errors import BertVisionError
from bertvision.onnx_model import OnnxEncoder, exported_runs, is_exported
from bertvision.progress import bar
from bertvision.runs import Run, is_finished, open_run
from bertvision.shared_encoders import AttachedHead, EncoderPool, layers_read
from bertvision.states import TokenBatches
from bertvision.tasks import Example, Task, task_from_dict
from bertvision.types import Features, Predictions

BATCH_ROWS = 64
BATCH_TOKENS = 8192
POSITIONS = ("text", "text_pair")
"""What the texts of an item may be called in any task, so that one item can be put to several."""

Item = str | tuple[str, str] | Mapping[str, str]
"""A text, a pair of texts, or {"question": ..., "context": ...}."""


class TrainedModel:
    """Backbone, head(s) and task of a run: text in, answers out."""

    def __init__(self, run: Run, encoder_pool: EncoderPool | OnnxEncoder | None = None):
        """Predictors that are given the same `trunks` share every backbone they have in common."""
        self.run = run
        self.task: Task = task_from_dict(run.record.task)
        self.max_tokens: int = run.record.max_tokens
        self.settings: dict[str, float] = run.metrics.decoding
        encoder_pool = encoder_pool or EncoderPool()
        self.members = run.members() or [run]
        self.parts = [encoder_pool.add(member) for member in self.members]
        self.own = encoder_pool.add_own(self.members[0])
        bert = run.bert()
        self.own_settings: dict[str, float] = bert.metrics.decoding if bert else {}
        reading = load_encoder_info(str(self._tokenizer_place()))
        self._tokenizer, self.pad_ids = reading.tokenizer, reading.pad_ids

    @classmethod
    def from_pretrained(cls, directory: str | Path, encoder: str = "") -> "TrainedModel":
        """Load a run by its directory; `backbone` names one that is elsewhere, which must be the same."""
        return load(directory, encoder)

    def save_pretrained(self, directory: str | Path, *, encoder: bool = True) -> Path:
        """Write all that answering needs into one directory, with the backbone or only its name and hash."""
        return sharing.save_pretrained(self.run, Path(directory), encoder=encoder)

    @cached_property
    def readings(self) -> set[tuple[str, str]]:
        """The forward passes an answer costs: one per backbone, one more for a head that has texts read apart."""
        found = {(part.shared_encoder.weights, "cross") for part in self.parts}
        return found | {
            (part.shared_encoder.weights, "bi")
            for part, reads in zip(self.parts, self.layers, strict=True)
            if reads.get("encoding", "cross") != "cross"
        }

    @property
    def passes(self) -> int:
        """How many forward passes an answer costs."""
        return len(self.readings)

    def asked(self, *, own: bool) -> list[AttachedHead]:
        """Return the heads that an answer needs, BERT's own among them if it shall stand beside."""
        parts = [*self.parts, self.own] if own else self.parts
        return [part for place, part in enumerate(parts) if part not in parts[:place]]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Which layers each member's head reads, and with what weights where it learned them."""
        return [{"name": member.name, **layers_read(member)} for member in self.members]

    def predict(self, items: Item | Sequence[Item], *, nbest: int | None = None, bert: bool = False) -> Any:
        """Answer one item with a dictionary, or a list of items with a list of them.

        `nbest` cuts the list of candidate answers; with `bert`, BERT's own answer stands beside, at no second pass.
        """
        if isinstance(items, str | Mapping) or (isinstance(items, tuple) and all(isinstance(i, str) for i in items)):
            return self.predict([cast(Item, items)], nbest=nbest, bert=bert)[0]
        if not isinstance(items, Sequence):
            raise BertVisionError(f"Give a text, a pair, an object, or a list of them; got {type(items).__name__}.")
        if not items:
            return []
        features = self.encode(items)
        return self.present(self.read(features, own=bert), features, nbest=nbest, bert=bert)

    def encode(self, items: Sequence[Item]) -> Features:
        """Check items against what the task reads, and tokenize them; a long context makes several rows."""
        return self.encode_examples([self._example(index, item) for index, item in enumerate(items)])

    def encode_examples(self, examples: Sequence[Example]) -> Features:
        """Tokenize rows of a data set."""
        return self.task.encode(examples, self._tokenizer, self.max_tokens)

    def read(self, features: Features, *, own: bool = False) -> dict[AttachedHead, Predictions]:
        """Run the rows through every backbone once, and return what each head on it says."""
        offsets = features.offsets if self.task.per_token else None
        tokens = TokenBatches(features, BATCH_ROWS, self.pad_ids, budget=BATCH_TOKENS)
        groups: dict[str, list[AttachedHead]] = {}
        for part in self.asked(own=own):
            groups.setdefault(part.shared_encoder.weights, []).append(part)
        found: dict[AttachedHead, list[np.ndarray]] = {part: [] for parts in groups.values() for part in parts}
        order: list[int] = []
        with bar("predict", total=tokens.rows) as advance:
            for batch in tokens.epoch(0):
                assert isinstance(batch.inputs, dict)
                lengths = features.lengths[batch.rows]
                for parts in groups.values():
                    wanted = {part.head: np.arange(len(batch.rows)) for part in parts}
                    read = parts[0].shared_encoder.read(batch.inputs, batch.mask, wanted)
                    for part in parts:
                        logits = read[part.head]
                        rows = logits if offsets is None else (row[:n] for row, n in zip(logits, lengths, strict=True))
                        found[part] += list(rows)
                order += batch.rows.tolist()
                advance(len(batch.rows))
        back = np.argsort(order)
        return {part: self.gather([rows[i] for i in back], features) for part, rows in found.items()}

    def gather(self, rows: Sequence[np.ndarray], features: Features) -> Predictions:
        """Lay the logits of rows together: each (C,), or (T, C) for spans."""
        if not self.task.per_token:
            return Predictions(ids=features.ids, logits=np.stack(rows))
        return Predictions(ids=features.ids, logits=np.concatenate(rows), offsets=features.offsets)

    def combine(self, found: Mapping[AttachedHead, Predictions]) -> Predictions:
        """Make the run's answer of what its members say."""
        members = [found[part] for part in self.parts]
        return members[0] if len(members) == 1 else combine(members, self.run.record.how)

    def present(
        self,
        found: Mapping[AttachedHead, Predictions],
        features: Features,
        *,
        nbest: int | None = None,
        bert: bool = False,
    ) -> list[dict[str, Any]]:
        """Turn what the heads say into one answer per item, in the items' order."""
        answers = self.task.present(self.combine(found), features, self.settings)
        beside = self.task.present(found[self.own], features, self.own_settings) if bert else {}
        for id, answer in answers.items():
            if bert:
                answer["bert"] = beside[id]
            for each in (answer, answer.get("bert", {})):
                if nbest is not None and "nbest" in each:
                    each["nbest"] = each["nbest"][:nbest]
        return [answers[str(index)] for index in range(len(answers))]

    def logits(self, features: Features) -> Predictions:
        """Return the run's logits for every row."""
        return self.combine(self.read(features))

    def score_file(self, path: Path) -> dict[str, float]:
        """Predict a labelled file in the task's format, and score the answers."""
        examples = self.task.read(path)
        features = self.encode_examples(examples)
        found = self.logits(features)
        scores = self.task.score(self.task.answers(found, features, self.settings), examples)
        return scores | self.task.calibration(found, features, self.settings, examples)

    def _tokenizer_place(self) -> Path | str:
        """Where the tokenizer is: with a shared or exported run, else with its backbone."""
        first = self.members[0]
        export = self.run.record.export
        exported = self.run.directory / (export.directory if export else ".")
        for place in (self.run.directory, exported, first.encoder_directory):
            if (place / "tokenizer.json").is_file():
                return place
        return first.record.encoder

    def _example(self, index: int, item: Item) -> Example:
        """Check an item against what the task reads."""
        wanted = self.task.inputs
        if isinstance(item, Mapping):
            names = wanted
            if set(item) <= set(POSITIONS) and not set(wanted) <= set(item):
                names = POSITIONS[: len(item)]
            missing = [name for name in names if name not in item]
            if missing:
                raise BertVisionError(f"Item {index} lacks {missing[0]!r}; {self.task.name} reads {', '.join(wanted)}.")
            texts = tuple(item[name] for name in names)
        else:
            texts = (item,) if isinstance(item, str) else tuple(item) if isinstance(item, tuple | list) else ()
        if len(texts) != len(wanted):
            raise BertVisionError(
                f"Item {index} has {len(texts)} text(s); {self.task.name} reads {len(wanted)}: {', '.join(wanted)}."
            )
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise BertVisionError(f"Item {index} has an empty text; {self.task.name} reads {', '.join(wanted)}.")
        if any("\ud800" <= character <= "\udfff" for text in texts if not text.isascii() for character in text):
            raise BertVisionError(f"Item {index} holds half a character (a lone surrogate); send valid Unicode.")
        return Example(id=str(index), texts=texts, label=None)


def load(run: str | Path | Run, encoder: str = "") -> TrainedModel:
    """Load a finished, shared or exported run by its directory."""
    found = load_all([run], encoder)
    if len(found) > 1:
        paths = ", ".join(str(each.run.directory) for each in found)
        raise BertVisionError(f"{run} holds {len(found)} models; name one of them: {paths}.")
    return found[0]


def load_all(runs: Sequence[str | Path | Run], encoder: str = "") -> list[TrainedModel]:
    """Load several runs; those on the same backbone share it, and its forward pass."""
    encoder_pool = EncoderPool(encoder)
    exports: dict[Path, OnnxEncoder] = {}
    found = []
    for given in runs:
        inside = exported_runs(Path(given)) if not isinstance(given, Run) and is_exported(Path(given)) else None
        for run in inside or [given if isinstance(given, Run) else open_run(Path(given))]:
            if run.record.export is not None:
                place = (run.directory / run.record.export.directory).resolve()
                if place not in exports:
                    exports[place] = OnnxEncoder(place)
                found.append(TrainedModel(run, exports[place]))
            else:
                found.append(TrainedModel(run, encoder_pool))
    return found


def below(paths: Sequence[Path]) -> list[Path]:
    """Replace each directory that is no run itself by the shared and exported runs right below it."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(each for each in path.glob("*") if is_finished(each) or is_exported(each))
        found += [path] if is_finished(path) or is_exported(path) or not inside else inside
    return found
