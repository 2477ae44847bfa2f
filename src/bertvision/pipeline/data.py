"""From text to tokens: load the data, hold out validation, tokenize. Everything but the backbone's weights."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bertvision import devices, heads
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.encoders import Encoder, load_encoder_info
from bertvision.errors import BertVisionError, lookup
from bertvision.heads import HeadConfig
from bertvision.inputs import task_from_files
from bertvision.pipeline.experiment import Experiment, TrainingConfig
from bertvision.pipeline.state_requests import MODES
from bertvision.states import FORMATS, TokenBatches
from bertvision.tasks import TASKS, DataRequest, Example, Task, UserFiles, draw_nested
from bertvision.training import predict
from bertvision.types import Batches, Features, HeadShape, Predictions

logger = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

EVAL_ROWS = 64
EVAL_TOKENS = {"cpu": 1024}  # with padding; more is no faster and takes more memory
EVAL_TOKENS_ELSEWHERE = 4096
EVAL_BYTES = 128 * 1024**2  # of all layers at once; several batches are under way when they are stored


@dataclass(frozen=True)
class Split:
    """Examples and their tokens."""

    examples: list[Example]
    features: Features


@dataclass(frozen=True, kw_only=True)
class ExperimentData:
    """Everything the line needs but the backbone's weights."""

    experiment: Experiment
    task: Task
    source: str
    tokenizer: Any
    pad_ids: dict[str, int]
    max_tokens: int
    token_bytes: int
    """What a token takes in all layers."""
    train: Split
    validation: Split
    dev: Split
    finetune: TrainingConfig
    """With the learning rate and batch size that "0" stood for."""
    heads: TrainingConfig

    @property
    def held_out(self) -> dict[str, Split]:
        """What is predicted: first to choose on, then to score."""
        return {"validation": self.validation, "dev": self.dev}

    @property
    def head_configs(self) -> list[HeadConfig]:
        """The heads of the experiment."""
        return [HeadConfig.parse(spec) for spec in self.experiment.heads]

    @property
    def auxiliary_head(self) -> HeadConfig:
        """The auxiliary head of fine-tuning."""
        return HeadConfig.parse(self.experiment.auxiliary_head)

    def shape(self, encoder: Encoder, configs: Iterable[HeadConfig] = ()) -> HeadShape:
        """Return the shape of the hidden states that these heads read when they are trained together."""
        configs = list(configs)
        pooler_output = any(config.pooler_output for config in configs) and not self.task.per_token
        return HeadShape(
            num_layers=encoder.num_layers,
            max_tokens=self.max_tokens,
            hidden_size=encoder.hidden_size,
            num_outputs=self.task.outputs,
            per_token=self.task.per_token,
            pooler_output=pooler_output,
            bi_encoding=any(config.uses_bi_encoding for config in configs),
        )

    def shuffled(self, optim: TrainingConfig, *, labels: float = 1.0) -> TokenBatches:
        """Batches of train, or of a share of it, for descending."""
        chosen = None if labels == 1 else self.labelled(labels)
        return TokenBatches(
            self.train.features, optim.batch_size, self.pad_ids, seed=self.experiment.seed, chosen=chosen
        )

    def labelled(self, share: float) -> np.ndarray:
        """Rows of train that belong to a share of its examples. (N,)"""
        examples = self.train.examples
        count = max(1, round(share * len(examples)))
        drawn = draw_nested(self.task.strata(examples), count, self.experiment.data.split_seed)
        ids = {examples[place].id for place in drawn}
        return np.flatnonzero([id in ids for id in self.train.features.example_ids])

    def vocabulary(self) -> Tensor:
        """Every token that batches of train hold. (V,)"""
        found = np.unique(self.train.features.tokens["input_ids"])
        return torch.from_numpy(np.union1d(found, self.pad_ids["input_ids"]).astype(np.int64))

    def ordered(self, split: Split) -> TokenBatches:
        """Batches of a split, for predicting."""
        most = EVAL_TOKENS.get(devices.device().type, EVAL_TOKENS_ELSEWHERE)
        budget = min(most, EVAL_BYTES // self.token_bytes)
        return TokenBatches(split.features, EVAL_ROWS, self.pad_ids, budget=budget)

    def predict(
        self, models: Mapping[str, nn.Module], batches: Batches, split: Split, label: str
    ) -> dict[str, Predictions]:
        """Predict a split with every model."""
        offsets = split.features.offsets if self.task.per_token else None
        return predict(models, batches, split.features.ids, offsets, label=label)


def with_cpu_setting(
    step: Callable[Concatenate[ExperimentData, Parameters], Result],
) -> Callable[Concatenate[ExperimentData, Parameters], Result]:
    """Run a step of the pipeline with or without the optimizations for CPUs, as the experiment says."""

    @wraps(step)
    def run_step(data: ExperimentData, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with use_cpu_optimizations(data.experiment.cpu_optimizations):
            return step(data, *args, **kwargs)

    return run_step


def find_task(experiment: Experiment) -> Task:
    """Return the task of the table, or make one of the user's own files."""
    data = experiment.data
    if data.train_file:
        return task_from_files(
            UserFiles(train=data.train_file, dev=data.dev_file, validation=data.validation_file),
            text=data.text,
            text_pair=data.text_pair,
            label=data.label,
            kind=data.kind,
            name=experiment.task,
            reserved=TASKS,
        )
    if not experiment.task:
        raise BertVisionError("Name a task (`bertvision tasks` lists them), or your own data with --train-file FILE.")
    return lookup(TASKS, experiment.task, "task")


def load_data(experiment: Experiment) -> ExperimentData:
    """Load the data, hold out validation before anything is trained, and tokenize."""
    lookup(MODES, experiment.states, "source of states")
    lookup(FORMATS, experiment.store.dtype, "type of stored states")
    if not 0 < experiment.labels <= 1:
        raise BertVisionError(
            f"labels is a share of the training rows, above 0 and at most 1; got {experiment.labels:g}."
        )
    task = find_task(experiment)
    precision = devices.resolve_precision(experiment.precision)
    trained = heads.resolve_heads(experiment.heads, task.example_kind)
    auxiliary_head = heads.AUXILIARY_HEADS[task.example_kind]
    if experiment.auxiliary_head:
        auxiliary_head = HeadConfig.parse(experiment.auxiliary_head, task.example_kind)
    _check_encodings(trained, auxiliary_head, task)
    specs = [str(config) for config in trained]
    experiment = replace(experiment, heads=specs, auxiliary_head=str(auxiliary_head), precision=precision)
    wanted = experiment.data
    reading = load_encoder_info(experiment.encoder_at(min(experiment.fractions)))
    request = DataRequest(data_dir=wanted.data_dir, source=wanted.source)
    data = task.load(request)
    share = max(2, round(wanted.shard * len(data.train))) if wanted.shard < 1 else 0
    train = task.sample(data.train, wanted.limit or share, wanted.split_seed)
    if data.validation is None:
        train, validation = task.split_validation(train, wanted.validation, wanted.split_seed)
    else:
        validation = task.sample(data.validation, wanted.limit, wanted.split_seed)
    dev = task.sample(data.dev, wanted.limit_dev, wanted.split_seed)
    max_tokens = min(wanted.max_tokens or task.max_tokens, reading.max_tokens)
    if wanted.max_tokens > max_tokens:
        logger.info(f"{experiment.encoder} reads {max_tokens} tokens at most; longer inputs are cut there.")
    finetune, head = experiment.finetune, experiment.train
    own = finetune.learning_rate or reading.learning_rate or task.learning_rate
    finetune = replace(finetune, learning_rate=own, batch_size=finetune.batch_size or task.batch_size)
    rate = head.learning_rate or heads.DEFAULT_LEARNING_RATES[task.example_kind]
    head = replace(head, learning_rate=rate, batch_size=head.batch_size or task.batch_size)
    splits = [Split(rows, task.encode(rows, reading.tokenizer, max_tokens)) for rows in (train, validation, dev)]
    return ExperimentData(
        experiment=experiment,
        task=task,
        source=data.source,
        tokenizer=reading.tokenizer,
        pad_ids=reading.pad_ids,
        max_tokens=max_tokens,
        token_bytes=reading.num_layers * reading.hidden_size * 4,
        train=splits[0],
        validation=splits[1],
        dev=splits[2],
        finetune=finetune,
        heads=head,
    )


def _check_encodings(trained: Sequence[HeadConfig], auxiliary_head: HeadConfig, task: Task) -> None:
    """Refuse bi-encoding heads for tasks of one text, and for fine-tuning, which uses a cross-encoding."""
    for config in [*trained, auxiliary_head]:
        if config.uses_bi_encoding and task.example_kind != "pair":
            raise BertVisionError(f"Head {str(config)!r} encodes two texts separately; {task.name} has one text.")
    if auxiliary_head.uses_bi_encoding:
        raise BertVisionError(
            f"Fine-tuning encodes both texts of a pair together; {str(auxiliary_head)!r} can only be trained after it."
        )


def dev_examples(experiment: Experiment) -> list[Example]:
    """Return the rows that an experiment is scored on, without tokenizing anything."""
    wanted = experiment.data
    task = find_task(experiment)
    data = task.load(DataRequest(data_dir=wanted.data_dir, source=wanted.source))
    return task.sample(data.dev, wanted.limit_dev, wanted.split_seed)


def fingerprint(*splits: Split) -> str:
    """Name tokens and labels by their content."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update("\n".join(split.features.ids).encode())
        for array in (split.features.offsets, split.features.labels, *split.features.tokens.values()):
            digest.update(array.tobytes())
    return digest.hexdigest()
