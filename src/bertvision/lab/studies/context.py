"""What studies share: an experiment, repeated over seeds; its runs, made once and found again."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.heads import BERT_HEAD, HeadConfig, required_view
from bertvision.lab import pipeline
from bertvision.lab.experiment import Experiment
from bertvision.lab.extraction import make_store
from bertvision.lab.pipeline import ExperimentData
from bertvision.lab.pipeline.finetuning import Checkpoint
from bertvision.lab.statistics import Pair, holm, interval, significance
from bertvision.runs import Run
from bertvision.tasks import Task

logger = logging.getLogger(__name__)

FEW = 500  # examples below which a score is marked as uncertain


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What studies can be told beside the experiment."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    studies: list[str] = field(default_factory=list)
    """Those of a file that `study all` runs; none: all that suit the task."""
    shares: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    """less-data: of the labels."""
    epochs: int = 10
    """head-epochs: how many."""
    to: list[str] = field(default_factory=list)
    """transfer: the tasks a head goes to."""
    examples: list[int] = field(default_factory=lambda: [0, 32, 256])
    """transfer: of the new task, to learn from."""


@dataclass(frozen=True)
class StudyContext:
    """An experiment over several seeds."""

    experiment: Experiment
    options: StudyOptions
    root: Path
    _open: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _prepared(self) -> ExperimentData:
        head_fractions = self.experiment.head_fractions or [min(self.experiment.fractions)]
        fractions = sorted({*self.experiment.fractions, *head_fractions})
        return pipeline.load_data(replace(self.experiment, head_fractions=head_fractions, fractions=fractions))

    @property
    def task(self) -> Task:
        """What is being answered."""
        return self._prepared.task

    @property
    def fractions(self) -> list[float]:
        """The points of the curve."""
        return self._prepared.experiment.fractions

    @property
    def head_fractions(self) -> list[float]:
        """The points at which heads are trained."""
        return sorted(self._prepared.experiment.head_fractions)

    @property
    def seeds(self) -> list[int]:
        """Of fine-tuning and heads; of heads alone where checkpoints are given."""
        return self.options.seeds

    @property
    def default(self) -> str:
        """The head that stands for the method: the last one named."""
        return self.heads[-1]

    @property
    def default_config(self) -> HeadConfig:
        """The configuration of the head that stands for the method."""
        return self._prepared.head_configs[-1]

    @property
    def heads(self) -> list[str]:
        """The heads asked for."""
        return self._prepared.experiment.heads

    @property
    def controls(self) -> list[str]:
        """BERT's kind of head trained anew, and the default head on the last layer alone."""
        return [BERT_HEAD, str(self.default_config.last_layer_only())]

    def data(self, seed: int, **changes: Any) -> ExperimentData:
        """Data and settings of a seed; tokens are the same for all."""
        return replace(self._prepared, experiment=replace(self._prepared.experiment, seed=seed, **changes))

    def checkpoint(self, seed: int, fraction: float) -> Checkpoint:
        """The backbone of a seed at a fraction; the last one stays open."""
        key = f"{seed} {fraction:g}"
        if key not in self._open:
            self._open.clear()
            data = self.data(seed)
            checkpoints = pipeline.finetune(data, self.root)
            self._open[key] = checkpoint = pipeline.open_checkpoint(data, checkpoints, fraction)
            if data.experiment.states == "store":  # studies read dev again and again
                shape = data.shape(checkpoint.encoder, data.head_configs)
                make_store(data, checkpoints, checkpoint, "dev", required_view(data.head_configs, shape))
        return self._open[key]

    def bert(self, seed: int, fraction: float) -> Run:
        """BERT itself."""
        return pipeline.bert_run(self.data(seed), self.checkpoint(seed, fraction))

    def trained(self, seed: int, fraction: float, specs: Sequence[str], **changes: Any) -> dict[str, Run]:
        """Heads at a fraction, by name; one that diverged is missing."""
        data = self.data(seed, heads=list(specs), controls=False, **changes)
        return {run.name: run for run in pipeline.train_heads(data, self.checkpoint(seed, fraction))}

    def carried(self, seed: int, runs: Mapping[str, Run], fraction: float) -> dict[str, Run]:
        """Trained heads on the states of another fraction."""
        found = pipeline.evaluate_at(self.data(seed), list(runs.values()), self.checkpoint(seed, fraction))
        return dict(zip(runs, found, strict=True))

    def ensemble(self, seed: int, members: Sequence[Run], how: str) -> Run:
        """Members as one."""
        directory = max(members, key=lambda run: run.record.fraction).directory.parent
        return pipeline.ensemble(self.data(seed), directory, members, how)

    def over_seeds(self, find: Callable[[int], Mapping[str, Run]]) -> dict[str, list[Run]]:
        """Collect what `find` returns for every seed, by model; a model missing for a seed is left out, with a word."""
        found: dict[str, list[Run]] = {}
        for seed in self.seeds:
            for name, run in find(seed).items():
                found.setdefault(name, []).append(run)
        for name in [name for name, runs in found.items() if len(runs) < len(self.seeds)]:
            logger.info(f"{name} is left out: it has {len(found.pop(name))} of {len(self.seeds)} seeds.")
        return found

    def ways(self) -> list[str]:
        """How predictions can be combined; scores are averaged, whatever the way."""
        return ["mean"] if self.task.outputs == 1 else ["max", "mean", "product"]

    def marks(self) -> list[str]:
        """What the protocol asks for and these results lack; shown in every table."""
        found = []
        if self.experiment.given:
            found.append("one fine-tuning: seeds are of heads alone")
        elif len(self.seeds) < 2:
            found.append("one seed")
        if len(self.seeds) < 3 and len(self.seeds) != 1:
            found.append(f"{len(self.seeds)} seeds only")
        scored = len(self._prepared.dev.examples)
        if scored < FEW:
            found.append(f"{scored} examples scored")
        return found


def describe(task: Task, runs: Sequence[Run], key: str = "") -> dict[str, Any]:
    """Mean score of a model over seeds, with its interval."""
    low, high = interval(task, [run.outcomes() for run in runs], key)
    key = key or task.primary
    return {
        "score": float(np.mean([run.metrics.scores[key] for run in runs])),
        "low": low,
        "high": high,
        "validation": float(np.mean([run.validation_score[0] for run in runs])),
        "seeds": len(runs),
        "parameters": runs[0].metrics.parameters,
        "seconds": float(np.mean([run.metrics.seconds.total for run in runs])),
        "runs": [str(run.directory) for run in runs],
    }


def against(task: Task, models: Mapping[str, Sequence[Run]], rivals: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Test every model against each rival (title: model), p-values corrected over the models."""
    found: dict[str, dict[str, Any]] = {name: {} for name in models}
    for title, rival in rivals.items():
        others = [name for name in models if name != rival]
        tests = [
            significance(Pair(task, [r.outcomes() for r in models[rival]], [r.outcomes() for r in models[name]]))
            for name in others
        ]
        for name, (gap, test), p in zip(others, tests, holm([gap.p for gap, _ in tests]), strict=True):
            found[name] |= {
                f"over {title}": gap.mean,
                f"over {title}, low": gap.low,
                f"over {title}, high": gap.high,
                f"p, {title}": p,
                "test": test,
            }
    return found
