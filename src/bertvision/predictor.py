"""A finished run, ready to answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from bertvision import runtime
from bertvision.activations import Streamed, Tokens
from bertvision.backbones import Backbone, load_backbone, load_tokenizer, weights_hash
from bertvision.ensemble import combine
from bertvision.errors import BertVisionError
from bertvision.heads import Last, Select, build_head
from bertvision.progress import say
from bertvision.runs import Run, open_run
from bertvision.tasks import Example, Task, restore
from bertvision.training import predict
from bertvision.types import Features, Predictions, Shape, View

BATCH_ROWS = 64
BATCH_TOKENS = 8192

Item = str | tuple[str, str] | Mapping[str, str]
"""A text, a pair of texts, or {"question": ..., "context": ...}."""


@dataclass
class _Group:
    """The heads that read one backbone: its forward pass is shared by all of them."""

    backbone: Backbone
    last: Last
    heads: dict[str, nn.Module]
    pooled: bool


class Predictor:
    """Backbone, head(s) and task of a run: text in, answers out."""

    def __init__(self, run: Run):
        self.run = run
        self.task: Task = restore(run.experiment["task"])
        self.max_tokens: int = run.experiment["max_tokens"]
        self.settings: dict[str, float] = run.metrics["settings"]
        members = run.members() or [run]
        self._order = [str(member.directory) for member in members]
        self._groups: dict[str, _Group] = {}
        for member in members:
            self._add(member)
        reading = load_tokenizer(str(members[0].backbone))
        self._tokenizer, self._pad_ids = reading.tokenizer, reading.pad_ids

    def _add(self, member: Run) -> None:
        """Load a member's head, and its backbone unless another member has brought it."""
        shape, weights = Shape(**member.experiment["shape"]), member.experiment["weights"]
        group = self._groups.get(weights)
        if group is None:
            loaded = load_backbone(str(member.backbone))
            if weights_hash(loaded.backbone) != weights:
                raise BertVisionError(
                    f"The backbone at {member.backbone} is not the one {member.directory} was trained on. "
                    "Put the right one there, or train the head again."
                )
            backbone = loaded.backbone.to(runtime.device()).eval().requires_grad_(False)
            last = Last(shape, dropout=loaded.dropout)
            last.load_state_dict(loaded.last)
            group = self._groups[weights] = _Group(backbone, last.to(runtime.device()).eval(), {}, False)
        if member.kind == "bert":
            head: nn.Module = group.last
        else:
            head = build_head(member.name, shape)
            head.load_state_dict(member.weights())
            group.pooled = group.pooled or shape.pooled
        if member.kind == "bert" or not shape.pooled:  # another member may bring the pooled channel into the states
            head = Select(head, list(range(group.backbone.layers)))
        group.heads[str(member.directory)] = head.eval()

    def predict(self, items: Item | Sequence[Item]) -> Any:
        """Answer one item with a dictionary, or a list of items with a list of them."""
        if isinstance(items, str | Mapping) or (isinstance(items, tuple) and all(isinstance(i, str) for i in items)):
            return self.predict([cast(Item, items)])[0]
        if not isinstance(items, Sequence):
            raise BertVisionError(f"Give a text, a pair, an object, or a list of them; got {type(items).__name__}.")
        examples = [self._example(index, cast(Item, item)) for index, item in enumerate(items)]
        if not examples:
            return []
        features = self.task.encode(examples, self._tokenizer, self.max_tokens)
        answers = self.task.present(self.logits(features), features, self.settings)
        return [answers[example.id] for example in examples]

    def score_file(self, path: Path, notify: Callable[[str], None] = say) -> dict[str, float]:
        """Predict a labelled file in the task's format, and score the answers."""
        examples = self.task.read(path, notify)
        features = self.task.encode(examples, self._tokenizer, self.max_tokens)
        answers = self.task.answers(self.logits(features), features, self.settings)
        return self.task.score(answers, examples)

    def logits(self, features: Features) -> Predictions:
        """Run every member over the rows, one forward pass per backbone, and combine them."""
        offsets = features.offsets if self.task.per_token else None
        tokens = Tokens(features, BATCH_ROWS, self._pad_ids, budget=BATCH_TOKENS)
        found: dict[str, Predictions] = {}
        for group in self._groups.values():
            view = View(layers=tuple(range(group.backbone.layers)), pooled=group.pooled)
            stream = Streamed(group.backbone, tokens, view, pool=group.last.pool, device=runtime.device())
            found |= predict(group.heads, stream, features.ids, offsets)
        members = [found[name] for name in self._order]
        return members[0] if len(members) == 1 else combine(members, self.run.experiment["how"])

    def _example(self, index: int, item: Item) -> Example:
        """Check an item against what the task reads."""
        wanted = self.task.inputs
        if isinstance(item, Mapping):
            missing = [name for name in wanted if name not in item]
            if missing:
                raise BertVisionError(f"Item {index} lacks {missing[0]!r}; {self.task.name} reads {', '.join(wanted)}.")
            texts = tuple(item[name] for name in wanted)
        else:
            texts = (item,) if isinstance(item, str) else tuple(item) if isinstance(item, tuple | list) else ()
        if len(texts) != len(wanted):
            raise BertVisionError(
                f"Item {index} has {len(texts)} text(s); {self.task.name} reads {len(wanted)}: {', '.join(wanted)}."
            )
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise BertVisionError(f"Item {index} has an empty text; {self.task.name} reads {', '.join(wanted)}.")
        return Example(id=str(index), texts=texts, label=None)


def load(run: str | Path | Run) -> Predictor:
    """Load a finished run by its directory."""
    return Predictor(run if isinstance(run, Run) else open_run(Path(run)))
