"""The data of a pipeline: splits, tokens and batches. Validation is split off before anything is trained."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from sklearn.utils.class_weight import compute_sample_weight
from torch import Tensor, nn

from bertvision import devices
from bertvision.cpu_optimizations import use_cpu_optimizations
from bertvision.encoders import Encoder, load_encoder_info
from bertvision.errors import BertVisionError, lookup
from bertvision.heads import HeadConfig
from bertvision.inputs import (
    WindowedText,
    log_windows,
    require_own_files,
    split_by_groups,
    split_by_time,
    task_from_files,
    warn_data,
    warn_truncated,
)
from bertvision.near_duplicates import near_repeats, text_groups
from bertvision.pipeline.config import PipelineConfig, resolve
from bertvision.pipeline.experiment import SPLITS, DataConfig, Experiment, TrainingConfig, resolve_fractions
from bertvision.pipeline.frozen_cache import FrozenCache
from bertvision.pipeline.planned_stages import READ_ROWS, planned_stages
from bertvision.prediction import evaluation_batches, predict
from bertvision.run_stages import ExpectedStage, expect_stages, stage
from bertvision.states import TokenBatches
from bertvision.tasks import TASKS, DataRequest, DataSplits, Example, Task, TextTask, UserFiles, draw_nested
from bertvision.tasks.splitting import draw_whole_groups, split_at
from bertvision.types import Batches, Features, HeadShape, Predictions

logger: logging.Logger = logging.getLogger(__name__)

HEAD_STEPS = 500
"""Steps that a head is trained for at least, within the limits of its epochs (docs/decisions/0043)."""
FEWEST_HEAD_EPOCHS, MOST_HEAD_EPOCHS = 3, 20

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Split:
    """Examples and their tokens."""

    examples: list[Example]
    features: Features


@dataclass(frozen=True, kw_only=True)
class ExperimentData:
    """The configuration and the tokenized splits of a pipeline: everything but the weights of the encoder."""

    config: PipelineConfig
    source: str
    """Where the rows came from."""
    train: Split
    validation: Split
    dev: Split
    """The scored split. Without one it is `validation`."""
    encoder: Encoder | None = None
    """The encoder to start from, if the caller has loaded it; else the experiment names it."""
    callbacks: Sequence[Any] = ()
    """Callbacks of training."""
    frozen_cache: FrozenCache | None = None
    """Keeps encoders that are not fine-tuned, and their hidden states, for other runs of this process."""

    @property
    def experiment(self) -> Experiment:
        """The settings of the experiment."""
        return self.config.experiment

    @property
    def task(self) -> Task:
        """The task."""
        return self.config.task

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a row."""
        return self.config.max_tokens

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the encoder."""
        return self.config.encoder.tokenizer

    @property
    def head_training(self) -> TrainingConfig:
        """How heads are trained. Their epochs depend on the number of rows, unless the experiment sets them."""
        training = self.config.head_training
        if training.epochs:
            return training
        rows = self.experiment.label_fraction * len(self.train.features.lengths)
        return replace(training, epochs=head_epochs(rows / training.batch_size))

    @property
    def pad_ids(self) -> dict[str, int]:
        """The padding value of each input."""
        return self.config.encoder.pad_ids

    @property
    def held_out(self) -> dict[str, Split]:
        """The splits that are predicted: validation, on which choices are made, and dev, which is scored."""
        return {"validation": self.validation, "dev": self.dev}

    def change(self, *, heads: Sequence[HeadConfig] | None = None, **settings: Any) -> "ExperimentData":
        """Return the same data with other heads or with other settings of the experiment, such as `seed=1`."""
        return replace(self, config=self.config.change(heads=heads, **settings))

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

    def shuffled(self, training: TrainingConfig, *, label_fraction: float = 1.0) -> TokenBatches:
        """Return shuffled batches of the training split, or of a fraction of it."""
        chosen = None if label_fraction == 1 else self.labelled_rows(label_fraction)
        return TokenBatches(
            self.train.features, training.batch_size, self.pad_ids, seed=self.experiment.seed, chosen=chosen
        )

    def labelled_rows(self, fraction: float) -> np.ndarray:
        """Return the rows of a fraction of the training examples. A smaller fraction is part of a larger one. (N,)"""
        examples = self.train.examples
        count = max(1, round(fraction * len(examples)))
        drawn = draw_nested(self.task.strata(examples), count, self.experiment.data.split_seed)
        ids = {examples[index].id for index in drawn}
        return np.flatnonzero([id in ids for id in self.train.features.example_ids])

    def vocabulary(self) -> Tensor:
        """Return the ids of all tokens in batches of the training split. (V,)"""
        ids = np.unique(self.train.features.tokens["input_ids"])
        return torch.from_numpy(np.union1d(ids, self.pad_ids["input_ids"]).astype(np.int64))

    def ordered(self, split: Split) -> TokenBatches:
        """Return batches of a split in a fixed order, for prediction."""
        token_bytes = self.config.encoder.num_layers * self.config.encoder.hidden_size * 4
        return evaluation_batches(split.features, self.pad_ids, token_bytes, devices.device().type)

    def predict(
        self, models: Mapping[str, nn.Module], batches: Batches, split: Split, label: str
    ) -> dict[str, Predictions]:
        """Predict a split with every model, in one pass over its batches."""
        offsets = split.features.offsets if self.task.per_token else None
        return predict(models, batches, split.features.ids, offsets, label=label)

    def predict_held_out(
        self, models: Mapping[str, nn.Module], open_batches: Callable[[str], Batches], label: str
    ) -> dict[str, dict[str, Predictions]]:
        """Predict validation and dev with every model; return the predictions by model and split."""
        predictions: dict[str, dict[str, Predictions]] = {name: {} for name in models}
        for split_name, split in self.held_out.items():
            is_validation_again = split_name == "dev" and split is self.validation
            outputs = (
                {}
                if is_validation_again
                else self.predict(models, open_batches(split_name), split, f"{label} on {split_name}")
            )
            for name in models:
                predictions[name][split_name] = (
                    predictions[name]["validation"] if is_validation_again else outputs[name]
                )
        return predictions


def head_epochs(steps_per_epoch: float) -> float:
    """Return how many epochs heads are trained: fewer rows are repeated more often, for the same number of steps."""
    return float(min(MOST_HEAD_EPOCHS, max(FEWEST_HEAD_EPOCHS, math.ceil(HEAD_STEPS / steps_per_epoch))))


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
    """Return the task that an experiment names, or make one from the user's own files."""
    data = experiment.data
    if data.train_file:
        return task_from_files(
            UserFiles(
                train=data.train_file, dev=data.dev_file, validation=data.validation_file, skip_bad=data.skip_bad
            ),
            text=data.text,
            text_pair=data.text_pair,
            label=data.label,
            label_separator=data.label_separator,
            kind=data.kind,
            name=experiment.task,
            reserved=TASKS,
        )
    if not experiment.task:
        raise BertVisionError("Name a task (`bertvision tasks` lists them), or your own data with --train-file FILE.")
    return lookup(TASKS, experiment.task, "task")


def prepare(experiment: Experiment) -> ExperimentData:
    """Find the task and the encoder of an experiment, fill in its defaults, and load its data."""
    task = find_task(experiment)
    fractions = resolve_fractions(experiment, task.example_kind).fractions
    return load_data(resolve(experiment, task, load_encoder_info(experiment.encoder_at(min(fractions)))))


def load_data(config: PipelineConfig, splits: DataSplits | None = None) -> ExperimentData:
    """Split off validation and tokenize. Without `splits`, the task loads the rows from its data source."""
    expect_stages([ExpectedStage(title=READ_ROWS), *planned_stages(config)])
    with stage(READ_ROWS):
        data = _load_data(config, splits)
    lengths = [int(split.features.lengths.sum()) for split in (data.train, data.validation, data.dev)]
    expect_stages(planned_stages(config, (lengths[0], lengths[1] + lengths[2]), data.head_training.epochs))
    return data


def _load_data(config: PipelineConfig, splits: DataSplits | None) -> ExperimentData:
    task, settings = config.task, config.experiment.data
    splits = splits or load_splits(config)
    train_count = max(2, round(settings.train_fraction * len(splits.train))) if settings.train_fraction < 1 else 0
    train = task.sample(splits.train, settings.limit or train_count, settings.split_seed)
    if splits.validation is None:
        train, validation = split_validation(task, train, settings)
    else:
        validation = task.sample(splits.validation, settings.limit, settings.split_seed)
    dev = task.sample(splits.dev, settings.limit_dev, settings.split_seed)
    if settings.class_weight:
        train = balance(task, train)
    validation_split = tokenize(config, validation)
    loaded = ExperimentData(
        config=config,
        source=splits.source,
        train=tokenize(config, train),
        validation=validation_split,
        dev=tokenize(config, dev) if dev else validation_split,
    )
    _warn_truncated(loaded)
    warn_data(task, loaded.train.examples, loaded.validation.examples, loaded.dev.examples if dev else [])
    if task.example_kind != "span":  # many questions share a context
        _warn_near_repeats(train, {"validation": validation, "dev": dev})
    return loaded


def load_splits(config: PipelineConfig) -> DataSplits:
    """Load the rows from the data source of the task."""
    task, settings = config.task, config.experiment.data
    splits = task.load(DataRequest(data_dir=settings.data_dir, source=settings.source))
    if settings.time and settings.groups:
        raise BertVisionError(
            f"Rows are split by time ({settings.time!r}) or by groups ({settings.groups!r}), not both; give one."
        )
    if settings.time:
        own = require_own_files(task, settings.time)
        splits = split_by_time(own, settings.time, splits, settings.validation_fraction)
    elif settings.groups:
        own = require_own_files(task, settings.groups)
        splits = split_by_groups(own, settings.groups, splits, settings.validation_fraction)
    return splits


def _warn_near_repeats(train: list[Example], held_out: Mapping[str, list[Example]]) -> None:
    """Log how many rows of each split nearly repeat the words of a training row. Equal texts have another warning."""
    for name, examples in held_out.items():
        repeats = near_repeats(train, examples)
        if repeats.any():
            logger.warning(
                f"{np.count_nonzero(repeats):,} of {len(examples):,} {name} rows nearly repeat the words of a training "
                f"row, e.g. {' / '.join(examples[repeats.argmax()].texts)[:80]!r}, so their scores are too good."
            )


def _warn_truncated(data: ExperimentData) -> None:
    """Log how many texts are cut."""
    features = {"training": data.train.features} | {name: split.features for name, split in data.held_out.items()}
    if data.dev is data.validation:
        del features["dev"]
    most = data.config.encoder.max_tokens
    advice = f"`max_tokens` may be up to {most} for this encoder; `long_texts=windows` reads longer texts."
    if isinstance(data.task, WindowedText):
        log_windows(features, data.task.window_tokens)
        advice = "This is the largest number of tokens that windows cover."
    elif type(data.task) is not TextTask or len(data.task.texts) > 1:
        advice = f"`max_tokens` may be up to {most} for this encoder."
    warn_truncated(features, data.max_tokens, advice)


def split_validation(task: Task, examples: list[Example], settings: DataConfig) -> tuple[list[Example], list[Example]]:
    """Split training examples into (train, validation). Examples that share text stay on one side."""
    share, seed = settings.validation_fraction, settings.split_seed
    if lookup(SPLITS, settings.split, "value of data.split") == SPLITS["rows"] or not isinstance(task, TextTask):
        return task.split_validation(examples, share, seed)
    groups = text_groups(examples)
    if not groups.any():  # all rows share their text
        return task.split_validation(examples, share, seed)
    return split_at(examples, draw_whole_groups(task.strata(examples), groups, share, seed))


def balance(task: Task, examples: list[Example]) -> list[Example]:
    """Weight training examples so that all classes have the same total weight, and the mean weight stays the same."""
    if task.outputs == 1 or task.independent_outputs:
        raise BertVisionError(f"data.class_weight is for tasks with classes, one per row, unlike {task.name}.")
    classes = task.strata(examples)
    weights = compute_sample_weight("balanced", classes)
    return [replace(row, weight=row.weight * float(weight)) for row, weight in zip(examples, weights, strict=True)]


def tokenize(config: PipelineConfig, examples: list[Example]) -> Split:
    """Tokenize examples, and give their rows their weights."""
    features = config.task.encode(examples, config.encoder.tokenizer, config.max_tokens)
    if any(example.weight != 1 for example in examples):
        weights = {example.id: example.weight for example in examples}
        rows = [weights[id] for id in features.example_ids]
        features = replace(features, weights=np.array(rows, dtype=np.float32))
    return Split(examples, features)


def dev_examples(experiment: Experiment) -> list[Example]:
    """Return the rows that an experiment is scored on, without tokenizing anything."""
    settings = experiment.data
    task = find_task(experiment)
    splits = task.load(DataRequest(data_dir=settings.data_dir, source=settings.source))
    return task.sample(splits.dev, settings.limit_dev, settings.split_seed)
