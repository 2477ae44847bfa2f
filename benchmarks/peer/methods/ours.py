"""BERTVision by the defaults of its pipeline."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertvision.pipeline import run_data
from bertvision.pipeline.experiment import Experiment
from bertvision.tasks import Example
from bertvision.trained_model import TrainedModel, load_all
from peer.data import CellData
from peer.meter import Meter
from peer.methods.base import Outcome, Train
from peer.plan import Job


def defaults(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """Everything as `bertvision run` does it, at one length and without controls."""
    return run(cell, replace(cell.experiment, fractions=[job.length]), meter)


def decay(cell: CellData, job: Job, meter: Meter) -> Outcome:
    """The same, with a rate of fine-tuning that falls to zero at the length."""
    finetuning = replace(cell.experiment.finetune, schedule="linear", warmup_epochs=0.1 * job.length)
    return run(cell, replace(cell.experiment, fractions=[job.length], finetune=finetuning), meter)


def run(cell: CellData, experiment: Experiment, meter: Meter) -> Outcome:
    """Run an experiment from texts to the saved, chosen model. Validation is scored, the scored rows are not read."""
    directory = tempfile.TemporaryDirectory()
    with meter.stage("tokenize"):
        data = cell.tokenized(experiment)
    with meter.stage("run"):
        result = run_data(data, Path(directory.name))
    chosen = result.best
    bert = next(run for run in reversed(result.runs) if run.kind == "bert")
    seconds = chosen.metrics.seconds
    whole = meter.seconds.pop("run")
    meter.add("finetune", seconds.finetune)
    meter.add("head", seconds.head)
    meter.add("other", whole - seconds.finetune - seconds.head)
    models = dict(zip(("model", "bert"), load_all([chosen, bert], precision=data.experiment.precision), strict=True))

    def predict(examples: Sequence[Example], held: object = directory) -> dict[str, np.ndarray]:
        return {name: _logits(model, examples) for name, model in models.items()}

    kept = sum(file.stat().st_size for file in chosen.directory.glob("*.safetensors"))
    if max(experiment.fractions):
        kept += sum(file.stat().st_size for file in chosen.encoder_directory.glob("*.safetensors"))
    extra = {
        "head": chosen.name,
        "states_seconds": chosen.metrics.states_seconds,
        "validation": {run.name: run.validation_score[0] for run in result.runs},
    }
    return Outcome(predict, chosen.metrics.parameters, kept, extra)


def _logits(model: TrainedModel, examples: Sequence[Example]) -> np.ndarray:
    return model.logits(model.encode_examples(examples)).logits


METHODS: dict[str, Train] = {"bertvision": defaults, "bertvision-decay": decay}
