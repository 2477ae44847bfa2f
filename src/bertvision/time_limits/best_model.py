"""The best model so far: candidates are scored on the validation rows, and a better one replaces the saved one."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from bertvision.encoders import EncoderWithHead
from bertvision.errors import BertVisionError
from bertvision.files import inside, read_json, write_json
from bertvision.heads import HeadConfig
from bertvision.pipeline.data import ExperimentData
from bertvision.pipeline.evaluation import METHOD, best_combination, ensemble, evaluate
from bertvision.pipeline.finetuning import Checkpoint, CheckpointSet, save_checkpoint
from bertvision.pipeline.outputs import ModelOutput
from bertvision.runs import Run, is_finished
from bertvision.training import ValidationScore
from bertvision.types import Predictions, StateView

BEST_FILE = "best.json"
"""Names the run of the best model. It is written last, so that whatever it names is complete."""


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """A model in memory: its output on the validation rows, and the module that predicts other rows."""

    output: ModelOutput
    module: nn.Module
    view: StateView
    """The hidden states that the module reads."""
    checkpoint: Checkpoint

    @property
    def predictions(self) -> Predictions:
        """Its predictions on the validation rows."""
        return self.output.predictions["validation"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One model, or several on the same encoder whose predictions are combined, with its validation score."""

    models: tuple[FittedModel, ...]
    score: ValidationScore

    @property
    def name(self) -> str:
        """The names of its models."""
        return " + ".join(model.output.name for model in self.models)

    @property
    def checkpoint(self) -> Checkpoint:
        """The encoder."""
        return self.models[0].checkpoint


@dataclass
class BestModel:
    """Keeps the best candidate on disk. At any moment the file `best.json` names a complete run."""

    directory: Path
    candidate: Candidate | None = None
    run: Run | None = None
    runs: list[Run] = field(default_factory=list)
    """All runs on disk, the best one and its members."""

    @property
    def score(self) -> ValidationScore | None:
        """The validation score of the best candidate."""
        return None if self.candidate is None else self.candidate.score

    def offer(self, data: ExperimentData, models: Sequence[FittedModel]) -> Candidate:
        """Choose among models and their ensembles, and save the chosen candidate if it is the best so far."""
        chosen = choose(data, models)
        if self.candidate is None or chosen.score > self.candidate.score:
            self.save(data, chosen)
        return chosen

    def save(self, data: ExperimentData, candidate: Candidate) -> Run:
        """Write a candidate, then let `best.json` name it, then remove what it replaces."""
        checkpoint = candidate.checkpoint
        save_encoder_of(data, self.directory, checkpoint)
        runs = [_write(data, model) for model in candidate.models]
        best = runs[0]
        if len(runs) > 1:
            best = ensemble(data, checkpoint.directory, runs, METHOD)
        write_json(self.directory / BEST_FILE, {"run": os.path.relpath(best.directory, self.directory)})
        previous, self.candidate, self.run = self.runs, candidate, best
        self.runs = list({run.directory: run for run in [best, *runs]}.values())
        self._remove(previous)
        return best

    def _remove(self, runs: Sequence[Run]) -> None:
        """Remove runs that are not part of the best model, and encoders without runs."""
        kept = {run.directory for run in self.runs}
        for run in runs:
            if run.directory not in kept:
                shutil.rmtree(run.directory, ignore_errors=True)
        fractions = {path.parent for path in kept}
        for path in self.directory.iterdir():
            if path.is_dir() and path not in fractions and (path / "encoder").is_dir():
                shutil.rmtree(path, ignore_errors=True)


def choose(data: ExperimentData, models: Sequence[FittedModel]) -> Candidate:
    """Return the candidate with the best validation score: a model, or an ensemble."""
    chosen, score = best_combination(data, models, lambda model: model.predictions, _encoding)
    return Candidate(models=tuple(chosen), score=score)


def _encoding(model: FittedModel) -> str:
    """Return how a model reads pairs of texts. Models that read them alike answer after one pass of the encoder."""
    return "cross" if model.output.kind == "bert" else HeadConfig.parse(model.output.name).encoding


def _write(data: ExperimentData, model: FittedModel) -> Run:
    """Write the run of a model, unless it is on disk."""
    directory = model.checkpoint.directory / model.output.directory
    return Run(directory) if is_finished(directory) else evaluate(data, model.checkpoint, model.output)


def save_encoder_of(data: ExperimentData, directory: Path, checkpoint: Checkpoint) -> None:
    """Write the encoder of a checkpoint, unless it is on disk."""
    checkpoints = CheckpointSet(directory, [checkpoint.fraction])
    if not checkpoints.is_complete(checkpoint.fraction):
        bert = EncoderWithHead(checkpoint.encoder, checkpoint.bert_head)
        save_checkpoint(data, checkpoints, bert, checkpoint.record)


def with_dev(model: FittedModel, predictions: Predictions, suffix: str) -> FittedModel:
    """Return a model with its predictions on the dev rows, for a run directory of its own."""
    output = replace(
        model.output,
        predictions=model.output.predictions | {"dev": predictions},
        directory=f"{model.output.directory}{suffix}",
    )
    return replace(model, output=output)


def open_best(directory: Path) -> Run:
    """Return the run of the best model in the directory of a run with a time limit, also if it was killed."""
    values = read_json(directory / BEST_FILE, "pointer to the best model")
    name = values.get("run") if isinstance(values, dict) else None
    path = inside(directory, name) if isinstance(name, str) else directory
    if not is_finished(path):
        raise BertVisionError(f"{directory / BEST_FILE} names no finished run.")
    return Run(path)
