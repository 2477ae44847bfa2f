"""One backbone for several tasks: examples mixed, one head each; then heads per task on its states."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import distributed
from bertvision.encoders import Encoder, EncoderWithHead, weights_hash
from bertvision.errors import BertVisionError
from bertvision.files import value_hash, write_json
from bertvision.pipeline.data import ExperimentData, fingerprint, load_data
from bertvision.pipeline.evaluation import bert_run
from bertvision.pipeline.experiment import Experiment, resolve_fractions
from bertvision.pipeline.finetuning import (
    CheckpointSet,
    load,
    new_bert,
    open_checkpoint,
    save_checkpoint,
    train_encoder,
)
from bertvision.pipeline.head_training import train_heads
from bertvision.runs import Run, slug
from bertvision.states import TokenBatches
from bertvision.types import Batch

TASK = "task"
"""Which task a batch is of travels with its tokens."""


class MixedBatches:
    """The batches of several tasks, each as often as it has them, in an order that depends on seed and epoch alone.

    A row's number is its own plus the rows of the tasks before it.
    """

    def __init__(self, parts: Sequence[TokenBatches], seed: int):
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


class MultiTaskModel(nn.Module):
    """A backbone with BERT's own kind of head for each task."""

    def __init__(self, encoder: Encoder, heads: Sequence[nn.Module]):
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleList(heads)
        self.at = 0
        """The task of the last batch, whose loss is due."""

    def forward(self, tokens: dict[str, Tensor], attention_mask: Tensor) -> Tensor:
        """Tokens of one task -> its logits."""
        self.at = int(tokens[TASK][0])
        rest = {name: value for name, value in tokens.items() if name != TASK}
        return self.heads[self.at](self.encoder.last(rest, attention_mask), attention_mask)


@dataclass(frozen=True)
class Member:
    """A task's part in a shared fine-tuning."""

    data: ExperimentData
    checkpoints: CheckpointSet


def finetune_multitask(experiments: Sequence[Experiment], root: Path) -> list[Member]:
    """Fine-tune one backbone on all tasks; keep it at every fraction of an epoch over all their examples."""
    first = experiments[0]
    names = [experiment.task for experiment in experiments]
    if first.given or len(set(names)) < len(names) or len(names) < 2:
        raise BertVisionError(f"A shared backbone needs two or more different tasks to be fine-tuned on, got {names}.")
    members = [load_data(experiment) for experiment in experiments]
    loaded = load(members[0], first.encoder)
    fractions = sorted(set(first.fractions))
    optim = replace(members[0].finetune, epochs=max(fractions))
    settings = {
        "tasks": {each.task.name: fingerprint(each.train, each.validation) for each in members},
        "encoder": first.encoder,
        "weights": weights_hash(loaded.encoder),
        "finetune": asdict(optim if optim.schedule == "linear" else replace(optim, epochs=0.0)),
        "batch_sizes": [each.finetune.batch_size for each in members],
        "seed": first.seed,
        "precision": members[0].experiment.precision,
        "embeddings": "of the words that occur",
    }
    if not first.cpu_optimizations:
        settings |= {"cpu_optimizations": False}
    key = value_hash(settings)
    shared = slug(f"{Path(first.encoder).name}-shared-{'-'.join(sorted(names))}")
    found = [
        Member(each, CheckpointSet(Path(root) / slug(each.task.name) / shared / key, fractions)) for each in members
    ]
    missing = [
        fraction
        for fraction in fractions
        if not distributed.broadcast_decision(
            all((each.checkpoints.encoder(fraction) / "checkpoint.json").is_file() for each in found)
        )
    ]
    if not missing:
        return found
    readers = [new_bert(each, loaded) for each in members]  # all on the same backbone
    model = MultiTaskModel(loaded.encoder, [bert.head for bert in readers])

    def keep(fraction: float, record: dict[str, float]) -> None:
        for each, bert in zip(found, readers, strict=True):
            if distributed.is_main_process():
                write_json(each.checkpoints.directory / "settings.json", settings)
            save_checkpoint(each.data, each.checkpoints, EncoderWithHead(model.encoder, bert.head), fraction, record)

    mixed = MixedBatches([each.shuffled(each.finetune) for each in members], first.seed)
    label, place = f"fine-tune {', '.join(names)} together", found[0].checkpoints.directory
    train_encoder(
        model, mixed, lambda *batch: members[model.at].task.loss(*batch), optim, first, missing, keep, place, label
    )
    return found


def run_multitask(experiments: Sequence[Experiment], root: Path) -> dict[str, list[Run]]:
    """Fine-tune one backbone for all tasks and train heads of each on it; return every task's runs."""
    first = resolve_fractions(experiments[0])
    head_fractions, fractions = first.head_fractions, first.fractions
    experiments = [replace(each, head_fractions=head_fractions, fractions=fractions) for each in experiments]
    found: dict[str, list[Run]] = {}
    for member in finetune_multitask(experiments, root):
        runs = found.setdefault(member.data.task.name, [])
        for fraction in fractions:
            checkpoint = open_checkpoint(member.data, member.checkpoints, fraction)
            trained = train_heads(member.data, checkpoint) if fraction in head_fractions else []
            runs += [bert_run(member.data, checkpoint), *trained]
    return found
