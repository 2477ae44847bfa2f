"""The configuration of a pipeline: an experiment with every default filled in."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertvision import devices, heads
from bertvision.encoders import EncoderInfo
from bertvision.errors import BertVisionError, lookup
from bertvision.heads import BERT_HEAD, HeadConfig
from bertvision.inputs import parts_of_batch, with_primary_metric, with_windows
from bertvision.pipeline.experiment import DECAYING_RATE, Experiment, SpanConfig, resolve_fractions
from bertvision.pipeline.state_requests import MODES
from bertvision.states import FORMATS
from bertvision.tasks import SquadTask, Task
from bertvision.training import TrainingConfig

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Every setting of an experiment. `resolve` makes it; no later step fills in a default."""

    experiment: Experiment
    """The experiment with its fractions, heads and precision. Runs save it."""
    task: Task
    encoder: EncoderInfo
    heads: tuple[HeadConfig, ...]
    auxiliary_head: HeadConfig
    """The head that is fine-tuned along with BERT's own."""
    finetuning: TrainingConfig
    head_training: TrainingConfig
    max_tokens: int

    def change(self, *, heads: Sequence[HeadConfig] | None = None, **settings: Any) -> "PipelineConfig":
        """Return a copy with other heads or with other settings of the experiment, such as `seed=1`."""
        if heads is not None:
            settings["heads"] = [str(config) for config in heads]
        experiment = replace(self.experiment, **settings)
        return replace(self, experiment=experiment, heads=self.heads if heads is None else tuple(heads))


def resolve(experiment: Experiment, task: Task, encoder: EncoderInfo) -> PipelineConfig:
    """Fill in every default of an experiment. Nothing is read or written."""
    experiment = resolve_fractions(experiment, task.example_kind)
    task = _with_span_settings(task, experiment.span)
    task = with_primary_metric(task, experiment.metric)
    lookup(MODES, experiment.states, "source of states")
    lookup(FORMATS, experiment.store.dtype, "type of stored states")
    trained = heads.resolve_heads(experiment.heads, task.example_kind)
    auxiliary_head = heads.AUXILIARY_HEADS[task.example_kind]
    if experiment.auxiliary_head:
        auxiliary_head = HeadConfig.parse(experiment.auxiliary_head, task.example_kind)
    _check_encodings(trained, auxiliary_head, task)
    max_tokens = min(experiment.data.max_tokens or task.max_tokens, encoder.max_tokens)
    if experiment.data.max_tokens > max_tokens:
        logger.info(f"{experiment.encoder} reads at most {max_tokens} tokens; longer inputs are truncated.")
    task, max_tokens = with_windows(task, experiment.data.long_texts, max_tokens)
    finetuning, head_training = _finetuning(experiment, task, encoder), experiment.train
    head_rate = head_training.learning_rate or heads.DEFAULT_LEARNING_RATES[task.example_kind]
    return PipelineConfig(
        experiment=replace(
            experiment,
            heads=[str(config) for config in trained],
            auxiliary_head=str(auxiliary_head),
            precision=devices.resolve_precision(experiment.precision),
        ),
        task=task,
        encoder=encoder,
        heads=tuple(trained),
        auxiliary_head=auxiliary_head,
        finetuning=finetuning,
        head_training=replace(
            head_training, learning_rate=head_rate, batch_size=head_training.batch_size or task.batch_size
        ),
        max_tokens=max_tokens,
    )


def _finetuning(experiment: Experiment, task: Task, encoder: EncoderInfo) -> TrainingConfig:
    """Fill in the defaults of fine-tuning. Without a schedule, the length and the kind of task decide on it."""
    given = experiment.finetune
    decays = not given.schedule and task.example_kind == "text" and len(experiment.fractions) == 1
    rate = encoder.learning_rate or task.learning_rate
    training = replace(
        given,
        learning_rate=given.learning_rate or rate * (DECAYING_RATE if decays else 1.0),
        schedule=given.schedule or ("linear" if decays else "constant"),
        batch_size=given.batch_size or task.batch_size,
    )
    parts = parts_of_batch(task, training.batch_size, training.gradient_accumulation_steps)
    return replace(training, gradient_accumulation_steps=parts)


def heads_and_controls(config: PipelineConfig) -> dict[HeadConfig, str]:
    """Return the heads of an experiment, then their controls, each with the kind of its run."""
    kinds = dict.fromkeys(config.heads, "head")
    if config.experiment.controls:
        retrained = HeadConfig(BERT_HEAD)
        added = [retrained, *(head.last_layer_only() for head in config.heads)]
        kinds |= {head: "control" for head in added if head not in kinds} | {retrained: "control"}
    # BERT's own kind of head reads one layer in any case, so it is its own control.
    return {head: kind for head, kind in kinds.items() if head.name != BERT_HEAD or head.layers != "last"}


def _with_span_settings(task: Task, span: SpanConfig) -> Task:
    """Return the task with the outputs that the settings of spans ask for."""
    if span == SpanConfig():
        return task
    if not isinstance(task, SquadTask) or not task.per_token:
        raise BertVisionError(f"The settings of [span] are for tasks that predict spans; {task.name} does not.")
    return replace(task, answerability_weight=span.answerability_weight)


def _check_encodings(trained: Sequence[HeadConfig], auxiliary_head: HeadConfig, task: Task) -> None:
    """Refuse bi-encoding heads for tasks of one text, and for fine-tuning, which uses a cross-encoding."""
    for config in [*trained, auxiliary_head]:
        if config.uses_bi_encoding and task.example_kind != "pair":
            raise BertVisionError(f"Head {str(config)!r} encodes two texts separately; {task.name} has one text.")
    if auxiliary_head.uses_bi_encoding:
        raise BertVisionError(
            f"Fine-tuning encodes both texts of a pair together; {str(auxiliary_head)!r} can only be trained after it."
        )
