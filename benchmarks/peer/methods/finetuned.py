"""Fine-tuning of the encoder with BERT's own head: all weights, LoRA, or biases alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from bertvision.encoders import Encoder, EncoderWithHead, load_encoder
from bertvision.heads import BertHead
from bertvision.pipeline import ExperimentData
from bertvision.pipeline.data import Split
from bertvision.pipeline.evaluation import validation_scores
from bertvision.tasks import Example
from bertvision.training import FitOptions, fit
from peer.data import CellData
from peer.meter import Meter
from peer.methods.base import Outcome, Train
from peer.plan import Job


def finetune(adapt: Callable[[Encoder], None], cell: CellData, job: Job, meter: Meter) -> Outcome:
    """Train an encoder with BERT's own head; `adapt` chooses which parameters are trained."""
    with meter.stage("tokenize"):
        data = cell.tokenized()
    with meter.stage("load"):
        torch.manual_seed(job.seed)
        loaded = load_encoder(data.experiment.encoder, data.experiment.precision)
        adapt(loaded.encoder)
        loaded.encoder.restrict_vocabulary(data.vocabulary())
        model = EncoderWithHead(loaded.encoder, BertHead(data.shape(loaded.encoder), dropout=loaded.dropout))
    training = replace(
        data.config.finetuning,
        learning_rate=job.setting.rate,
        layer_decay=job.setting.layer_decay,
        epochs=job.length,
        warmup_epochs=0.1 * job.length,
        schedule="linear",
    )
    with meter.stage("train"):
        options = FitOptions(
            seed=job.seed,
            validate=lambda models: validation_scores(data, data.ordered(data.validation), models),
        )
        batches = data.shuffled(training)
        state = fit({"model": model}, batches, data.task.loss, {"model": training}, options)["model"]
    with loaded.encoder.full_table():  # words that did not occur could have changed, too
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    extra = {"best_epoch": state.best_epoch, "validation_by_epoch": [score for score, _ in state.validation_scores]}
    return Outcome(partial(predict, data, model), trainable, 4 * trainable, extra)


def predict(data: ExperimentData, model: nn.Module, examples: Sequence[Example]) -> dict[str, np.ndarray]:
    """Return the logits of rows."""
    split = Split(list(examples), data.task.encode(examples, data.tokenizer, data.max_tokens))
    return {"model": data.predict({"model": model}, data.ordered(split), split, "predict")["model"].logits}


def everything(encoder: Encoder) -> None:
    """Full fine-tuning."""


def lora(encoder: Encoder) -> None:
    """peft's usual settings for BERT."""
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"])
    get_peft_model(encoder.model, config)  # it puts its layers into the encoder itself and freezes the rest


def bitfit(encoder: Encoder) -> None:
    """Biases alone."""
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))


METHODS: dict[str, Train] = {
    "fine-tuning": partial(finetune, everything),
    "lora": partial(finetune, lora),
    "bitfit": partial(finetune, bitfit),
}
