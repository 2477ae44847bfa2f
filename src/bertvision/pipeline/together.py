"""One backbone for several tasks: examples mixed, one head each; then heads per task on its states."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import runtime
from bertvision.activations import Tokens
from bertvision.backbones import Backbone, Reader, weights_hash
from bertvision.config import Experiment
from bertvision.errors import BertVisionError
from bertvision.files import value_hash, write_json
from bertvision.pipeline.finetuning import Tuned, descend, load, new_reader, open_point, save_point
from bertvision.pipeline.prepared import Notify, Prepared, fingerprint, prepare
from bertvision.pipeline.probing import train_heads
from bertvision.pipeline.scoring import bert_run
from bertvision.progress import say
from bertvision.runs import Run, slug
from bertvision.types import Batch

TASK = "task"
"""Which task a batch is of travels with its tokens."""


class Mixed:
    """The batches of several tasks, each as often as it has them, in an order that depends on seed and epoch alone.

    A row's number is its own plus the rows of the tasks before it.
    """

    def __init__(self, parts: Sequence[Tokens], seed: int):
        self.parts = parts
        self.seed = seed
        self.starts = np.cumsum([0, *(part.rows for part in parts)])
        self.rows = int(self.starts[-1])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def plan(self, number: int) -> list[np.ndarray]:
        """Return the rows of every batch of epoch `number`; a batch is of one task."""
        batches = [
            rows + start for part, start in zip(self.parts, self.starts, strict=False) for rows in part.plan(number)
        ]
        order = np.random.default_rng([self.seed, number]).permutation(len(batches))
        return [batches[place] for place in order]

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        for rows in batches:
            task = int(np.searchsorted(self.starts, rows[0], side="right")) - 1
            batch = self.parts[task].collate(rows - self.starts[task])
            assert isinstance(batch.inputs, dict)
            yield replace(batch, rows=rows, inputs=batch.inputs | {TASK: torch.full((len(rows),), task)})


class Together(nn.Module):
    """A backbone with BERT's own kind of head for each task."""

    def __init__(self, backbone: Backbone, heads: Sequence[nn.Module]):
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(heads)
        self.at = 0
        """The task of the last batch, whose loss is due."""

    def forward(self, tokens: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Tokens of one task -> its logits."""
        self.at = int(tokens[TASK][0])
        rest = {name: value for name, value in tokens.items() if name != TASK}
        return self.heads[self.at](self.backbone.last(rest, mask), mask)


@dataclass(frozen=True)
class Member:
    """A task's part in a shared fine-tuning."""

    prepared: Prepared
    tuned: Tuned


def finetune_together(experiments: Sequence[Experiment], root: Path, notify: Notify = say) -> list[Member]:
    """Fine-tune one backbone on all tasks; keep it at every fraction of an epoch over all their examples."""
    first = experiments[0]
    names = [experiment.task for experiment in experiments]
    if first.given or len(set(names)) < len(names) or len(names) < 2:
        raise BertVisionError(f"A shared backbone needs two or more different tasks to be fine-tuned on, got {names}.")
    members = [prepare(experiment, notify) for experiment in experiments]
    loaded = load(members[0], first.backbone)
    fractions = sorted(set(first.fractions))
    optim = replace(members[0].finetune, epochs=max(fractions))
    settings = {
        "tasks": {each.task.name: fingerprint(each.train, each.validation) for each in members},
        "backbone": first.backbone,
        "weights": weights_hash(loaded.backbone),
        "finetune": asdict(optim if optim.schedule == "linear" else replace(optim, epochs=0.0)),
        "batch_sizes": [each.finetune.batch_size for each in members],
        "seed": first.seed,
        "precision": members[0].experiment.precision,
        "embeddings": "of the words that occur",
    }
    key = value_hash(settings)
    shared = slug(f"{Path(first.backbone).name}-shared-{'-'.join(sorted(names))}")
    found = [Member(each, Tuned(Path(root) / slug(each.task.name) / shared / key, fractions)) for each in members]
    missing = [
        fraction
        for fraction in fractions
        if not runtime.decide(all((each.tuned.backbone(fraction) / "point.json").is_file() for each in found))
    ]
    if not missing:
        return found
    readers = [new_reader(each, loaded) for each in members]  # all on the same backbone
    model = Together(loaded.backbone, [reader.head for reader in readers])

    def keep(fraction: float, record: dict[str, float]) -> None:
        for each, reader in zip(found, readers, strict=True):
            if runtime.first():
                write_json(each.tuned.directory / "settings.json", settings)
            save_point(each.prepared, each.tuned, Reader(model.backbone, reader.head), fraction, record)

    mixed = Mixed([each.shuffled(each.finetune) for each in members], first.seed)
    label, place = f"fine-tune {', '.join(names)} together", found[0].tuned.directory
    descend(model, mixed, lambda *batch: members[model.at].task.loss(*batch), optim, first, missing, keep, place, label)
    return found


def run_together(experiments: Sequence[Experiment], root: Path, notify: Notify = say) -> dict[str, list[Run]]:
    """Fine-tune one backbone for all tasks and train heads of each on it; return every task's runs."""
    read_at = experiments[0].read_at or [min(experiments[0].fractions)]
    fractions = sorted({*experiments[0].fractions, *read_at})
    experiments = [replace(each, read_at=read_at, fractions=fractions) for each in experiments]
    found: dict[str, list[Run]] = {}
    for member in finetune_together(experiments, root, notify):
        runs = found.setdefault(member.prepared.task.name, [])
        for fraction in fractions:
            point = open_point(member.prepared, member.tuned, fraction)
            trained = train_heads(member.prepared, point, notify) if fraction in read_at else []
            runs += [bert_run(member.prepared, point), *trained]
    return found
