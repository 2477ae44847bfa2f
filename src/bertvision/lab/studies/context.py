"""An experiment repeated over several seeds. Runs are computed once and found on disk afterwards."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertvision import pipeline
from bertvision.heads import BERT_HEAD, HeadConfig, required_view
from bertvision.lab.extraction import make_store
from bertvision.pipeline import ExperimentData
from bertvision.pipeline.experiment import Experiment
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.runs import Run
from bertvision.statistics import PairedOutcomes, holm, interval, significance
from bertvision.tasks import Task

logger: logging.Logger = logging.getLogger(__name__)

MIN_EXAMPLES = 500  # a result scored on fewer examples gets a caveat


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Settings of studies that are not part of the experiment: the table [study] of an experiment file."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    studies: list[str] = field(default_factory=list)
    """The studies that `study all` runs; empty: all that apply to the task."""
    shares: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    """less-data: shares of the labels."""
    epochs: int = 10
    """head-epochs: number of epochs."""
    to: list[str] = field(default_factory=list)
    """transfer: target tasks."""
    examples: list[int] = field(default_factory=lambda: [0, 32, 256])
    """transfer: numbers of training examples of the target task."""


@dataclass(frozen=True)
class StudyContext:
    """An experiment over several seeds. Its methods return finished runs and compute those that are missing."""

    experiment: Experiment
    options: StudyOptions
    root: Path
    _open_checkpoints: dict[tuple[int, float], Checkpoint] = field(default_factory=dict)

    @cached_property
    def _data(self) -> ExperimentData:
        return pipeline.prepare(self.experiment)

    @property
    def task(self) -> Task:
        """The task of the experiment."""
        return self._data.task

    @property
    def fractions(self) -> list[float]:
        """Epochs of fine-tuning after which the encoder is evaluated."""
        return self._data.experiment.fractions

    @property
    def head_fractions(self) -> list[float]:
        """Epochs of fine-tuning after which heads are trained, in ascending order."""
        return sorted(self._data.experiment.head_fractions)

    @property
    def seeds(self) -> list[int]:
        """Seeds of fine-tuning and of heads; of heads only if the fine-tuning checkpoints are given."""
        return self.options.seeds

    @property
    def main_head(self) -> HeadConfig:
        """The head that studies of a single head use: the last one named in the experiment."""
        return self.heads[-1]

    @property
    def heads(self) -> tuple[HeadConfig, ...]:
        """The heads named in the experiment, or the default heads of the kind of task."""
        return self._data.config.heads

    @property
    def controls(self) -> list[HeadConfig]:
        """Two controls: BERT's own kind of head trained anew, and the main head on the last layer only."""
        return [HeadConfig(BERT_HEAD), self.main_head.last_layer_only()]

    def data(self, seed: int, *, heads: Sequence[HeadConfig] | None = None, **changes: Any) -> ExperimentData:
        """Return the data and settings of a seed. The tokens are shared by all seeds."""
        return self._data.change(heads=heads, seed=seed, **changes)

    def checkpoint(self, seed: int, fraction: float) -> Checkpoint:
        """Return the fine-tuning checkpoint of a seed at a fraction. The last one returned stays in memory."""
        key = seed, fraction
        if key not in self._open_checkpoints:
            self._open_checkpoints.clear()
            data = self.data(seed)
            checkpoints = pipeline.finetune(data, self.root)
            self._open_checkpoints[key] = checkpoint = pipeline.open_checkpoint(data, checkpoints, fraction)
            if data.experiment.states == "store":  # the hidden states of dev are read by every study
                shape = data.shape(checkpoint.encoder, data.config.heads)
                make_store(data, checkpoints, checkpoint, "dev", required_view(data.config.heads, shape))
        return self._open_checkpoints[key]

    def bert_run(self, seed: int, fraction: float) -> Run:
        """Return the run of BERT itself, the encoder with its own head."""
        return pipeline.bert_run(self.data(seed), self.checkpoint(seed, fraction))

    def head_runs(self, seed: int, fraction: float, heads: Sequence[HeadConfig], **changes: Any) -> dict[str, Run]:
        """Return the runs of heads trained at a fraction, by name. Heads whose training diverged are missing.

        `changes` are settings of the experiment to replace, such as `label_fraction=0.1`.
        """
        data = self.data(seed, heads=heads, controls=False, **changes)
        _, *runs = pipeline.checkpoint_runs(data, self.checkpoint(seed, fraction))
        return {run.name: run for run in runs}

    def evaluate_heads_at(self, seed: int, runs: Mapping[str, Run], fraction: float) -> dict[str, Run]:
        """Evaluate trained heads on the hidden states of another fraction, without further training."""
        evaluated = pipeline.evaluate_at(self.data(seed), list(runs.values()), self.checkpoint(seed, fraction))
        return dict(zip(runs, evaluated, strict=True))

    def ensemble_run(self, seed: int, members: Sequence[Run], method: str) -> Run:
        """Return the run of an ensemble of other runs."""
        directory = max(members, key=lambda run: run.record.fraction).directory.parent
        return pipeline.ensemble(self.data(seed), directory, members, method)

    def over_seeds(self, runs_of_seed: Callable[[int], Mapping[str, Run]]) -> dict[str, list[Run]]:
        """Collect the runs of every seed, by model. A model without a run for some seed is left out and logged."""
        runs_by_model: dict[str, list[Run]] = {}
        for seed in self.seeds:
            for name, run in runs_of_seed(seed).items():
                runs_by_model.setdefault(name, []).append(run)
        for name in [name for name, runs in runs_by_model.items() if len(runs) < len(self.seeds)]:
            count = len(runs_by_model.pop(name))
            logger.info(f"{name} is left out: it has runs for {count} of {len(self.seeds)} seeds.")
        return runs_by_model

    def ensemble_methods(self) -> list[str]:
        """Return the ways to combine predictions; the predictions of a regression task can only be averaged."""
        return ["mean"] if self.task.outputs == 1 else ["max", "mean", "product"]

    def caveats(self) -> list[str]:
        """Return the deviations from the evaluation protocol; every table shows them."""
        caveats = []
        if self.experiment.checkpoints_given:
            caveats.append("one fine-tuning run: seeds vary the heads only")
        elif len(self.seeds) < 2:
            caveats.append("one seed")
        if len(self.seeds) == 2:
            caveats.append("2 seeds only")
        scored = len(self._data.dev.examples)
        if scored < MIN_EXAMPLES:
            caveats.append(f"{scored} examples scored")
        return caveats


def score_row(task: Task, runs: Sequence[Run], key: str = "") -> dict[str, Any]:
    """Return the columns that describe a model: mean score over seeds, its interval, parameters and seconds."""
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


def difference_columns(
    task: Task, models: Mapping[str, Sequence[Run]], baselines: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Test every model against each baseline and return the columns of the differences, by model.

    Args:
        task: The task that all runs belong to.
        models: Runs by model, one for each seed.
        baselines: Models to compare with, by the name they have in the columns. P-values are corrected with Holm's
            method over the models compared with one baseline.
    """
    columns: dict[str, dict[str, Any]] = {name: {} for name in models}
    for title, baseline in baselines.items():
        others = [name for name in models if name != baseline]
        baseline_outcomes = [run.outcomes() for run in models[baseline]]
        tests = [
            significance(PairedOutcomes(task, baseline_outcomes, [run.outcomes() for run in models[name]]))
            for name in others
        ]
        corrected = holm([difference.p for difference, _ in tests])
        for name, (difference, test), p in zip(others, tests, corrected, strict=True):
            columns[name] |= {
                f"over {title}": difference.mean,
                f"over {title}, low": difference.low,
                f"over {title}, high": difference.high,
                f"p, {title}": p,
                "test": test,
            }
    return columns
