"""Fine-tuning of a whole encoder with BERT's own head, at a rate that decays to zero: the method that heads save."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bertvision.encoders import Encoder, EncoderWithHead, load_encoder
from bertvision.heads import BertHead
from bertvision.pipeline import ExperimentData
from bertvision.pipeline.evaluation import validation_scores
from bertvision.training import FitOptions, fit
from bertvision.types import Predictions


@dataclass(frozen=True)
class FineTuned:
    """What came out of a fine-tuning."""

    predictions: dict[str, Predictions]
    """The logits of validation and dev, at the epoch with the best validation score."""
    validation: float
    best_epoch: float
    seconds: float
    validation_by_epoch: list[float]


def finetune(data: ExperimentData, length: float, rate: float, adapt: Callable[[Encoder], None]) -> FineTuned:
    """Train for `length` epochs; `adapt` chooses which parameters are trained. Seconds include validation."""
    loaded = load_encoder(data.experiment.encoder, data.experiment.precision)
    torch.manual_seed(data.experiment.seed)
    adapt(loaded.encoder)
    loaded.encoder.restrict_vocabulary(data.vocabulary())
    model = EncoderWithHead(loaded.encoder, BertHead(data.shape(loaded.encoder), dropout=loaded.dropout))
    training = replace(
        data.config.finetuning, learning_rate=rate, epochs=length, warmup_epochs=0.1 * length, schedule="linear"
    )
    validation = data.ordered(data.validation)
    options = FitOptions(seed=data.experiment.seed, validate=lambda models: validation_scores(data, validation, models))
    began = time.perf_counter()
    state = fit({"model": model}, data.shuffled(training), data.task.loss, {"model": training}, options)["model"]
    seconds = time.perf_counter() - began
    predictions = data.predict_held_out({"model": model}, lambda name: data.ordered(data.held_out[name]), "predict")
    by_epoch = [score for score, _ in state.validation_scores]
    return FineTuned(predictions["model"], max(by_epoch), float(state.best_epoch), seconds, by_epoch)
