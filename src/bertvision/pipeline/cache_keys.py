"""The names of everything that a pipeline keeps on disk. A result is reused if all that it depends on is the same.

Every key is a hash of the settings and the data behind a result. Settings that were added later are part of a key only
where they differ from their default, so that older results are still found.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.convex import SOLVERS
from bertvision.encoders import tokenizer_hash
from bertvision.files import value_hash
from bertvision.heads import BERT_HEAD, HeadConfig
from bertvision.pipeline.data import ExperimentData, Split
from bertvision.pipeline.experiment import FRACTION, Experiment, SpanConfig
from bertvision.runs import Run, slug
from bertvision.states import view_to_manifest
from bertvision.training import TrainingConfig
from bertvision.types import StateView

if TYPE_CHECKING:
    from bertvision.pipeline.finetuning import Checkpoint


def fingerprint(*splits: Split) -> str:
    """Return a hash of the tokens and labels of splits."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update("\n".join(split.features.ids).encode())
        for array in (split.features.offsets, split.features.labels, *split.features.tokens.values()):
            digest.update(array.tobytes())
        if split.features.weights is not None:
            digest.update(split.features.weights.tobytes())
    return digest.hexdigest()


def _training_settings(training: TrainingConfig) -> dict[str, Any]:
    """Return the settings of an optimizer; those that were added later only where they differ from their default."""
    return {key: value for key, value in asdict(training).items() if (key, value) != ("layer_decay", 1.0)}


def finetuning_settings(members: Sequence[ExperimentData], encoder_hash: str) -> dict[str, Any]:
    """Return all that a fine-tuning on one or more tasks depends on. Their hash names its directory."""
    data, experiment = members[0], members[0].experiment
    training = replace(data.config.finetuning, epochs=max(experiment.fractions))
    if training.schedule != "linear":  # with a constant rate, a longer training begins with the steps of a shorter one
        training = replace(training, epochs=0.0)
    settings: dict[str, Any] = {
        "tasks": [
            {
                "task": member.task.name,
                "data": fingerprint(member.train, member.validation),
                "rows": len(member.train.examples),
                "validation_rows": len(member.validation.examples),
                "max_tokens": member.max_tokens,
                "batch_size": member.config.finetuning.batch_size,
            }
            for member in members
        ],
        "encoder": experiment.encoder,
        "encoder_hash": encoder_hash,
        "finetune": _training_settings(training),
        "seed": experiment.seed,
        "precision": experiment.precision,
    }
    if data.config.auxiliary_head.name != BERT_HEAD and len(members) == 1:
        settings |= {"auxiliary_head": experiment.auxiliary_head}
        if data.config.auxiliary_head.name not in SOLVERS:  # a fitted head learns at the rate of the encoder
            settings |= {"head_learning_rate": data.head_training.learning_rate}
    if experiment.frozen:
        settings |= {"frozen": experiment.frozen}
    if experiment.span != SpanConfig():
        settings |= {"span": asdict(experiment.span)}
    if not experiment.cpu_optimizations:
        settings |= {"cpu_optimizations": False}
    return settings


def finetuning_directory(root: Path, data: ExperimentData, settings: Mapping[str, Any]) -> Path:
    """Return the directory of a task's checkpoints."""
    names = sorted(member["task"] for member in settings["tasks"])
    encoder = Path(data.experiment.encoder).name
    return (
        Path(root)
        / slug(data.task.name)
        / slug(encoder if len(names) == 1 else f"{encoder}-shared-{'-'.join(names)}")
        / value_hash(settings)
    )


def given_checkpoint_settings(data: ExperimentData) -> dict[str, Any]:
    """Return all that checkpoints which were fine-tuned elsewhere depend on."""
    settings = {
        "task": data.task.name,
        "data": fingerprint(data.train, data.validation),
        "max_tokens": data.max_tokens,
        "encoder": str(Path(data.experiment.encoder).absolute()),
        "precision": data.experiment.precision,
    }
    if data.experiment.span != SpanConfig():
        settings |= {"span": asdict(data.experiment.span)}
    return settings if data.experiment.cpu_optimizations else settings | {"cpu_optimizations": False}


def given_checkpoint_directory(root: Path, data: ExperimentData, settings: Mapping[str, Any]) -> Path:
    """Return the directory of checkpoints which were fine-tuned elsewhere."""
    name = slug(data.experiment.encoder.replace(FRACTION, "").rstrip("/")[-40:])
    return Path(root) / slug(data.task.name) / name / value_hash(settings)


def head_training_settings(data: ExperimentData, checkpoint: "Checkpoint", start: Run | None) -> dict[str, Any]:
    """Return all that the training of heads depends on, apart from the heads."""
    experiment = data.experiment
    settings = {
        "train": _training_settings(data.head_training),
        "learning_rates": experiment.extra_learning_rates,
        "seed": experiment.seed,
        "encoder_hash": checkpoint.encoder_hash,
    }
    if experiment.label_fraction != 1:
        settings["label_fraction"] = experiment.label_fraction
    if experiment.metric:
        settings["metric"] = experiment.metric
    if data.train.features.weights is not None:
        settings["weights"] = fingerprint(data.train)
    if start is not None:
        settings["start"] = [start.directory.name, start.record.encoder_hash]
    return settings


def head_run(data: ExperimentData, checkpoint: "Checkpoint", config: HeadConfig, start: Run | None) -> str:
    """Return the name of the run directory of a head."""
    settings = head_training_settings(data, checkpoint, start)
    return f"{head_label(data, config)}-{value_hash([settings, str(config), fingerprint(data.dev)])}"


def stopped_run(directory: str) -> str:
    """Return the name of the run directory of a head whose training was stopped by a callback."""
    return f"{directory}-stopped"


def head_label(data: ExperimentData, config: HeadConfig) -> str:
    """Return a short name of a head for directories: its name, or "default" and the control of the default head."""
    label = config.label(data.task.example_kind)
    return slug(label) if label.startswith("default") else slug(config.name)


def head_resume_file(
    data: ExperimentData, checkpoint: "Checkpoint", configs: Sequence[HeadConfig], start: Run | None
) -> Path:
    """Return the file from which the training of exactly these heads resumes."""
    settings = head_training_settings(data, checkpoint, start)
    key = value_hash([settings, [str(config) for config in configs], fingerprint(data.train, data.validation)])
    return checkpoint.directory / f"resume-{key}.safetensors"


def bert_run(data: ExperimentData) -> str:
    """Return the name of the run directory of BERT itself."""
    return f"bert-{value_hash(_scored(data))}"


def _scored(data: ExperimentData) -> Any:
    """Return what the scores of a run depend on: the rows that are scored, and the metric if one was chosen."""
    metric = data.experiment.metric
    return [fingerprint(data.dev), metric] if metric else fingerprint(data.dev)


def evaluated_run(data: ExperimentData, run: Run) -> str:
    """Return the name of the run directory of a trained head at another checkpoint."""
    label = slug(run.directory.name.rpartition("-")[0])
    return f"{label}-evaluated-{value_hash([run.directory.name, _scored(data)])}"


def untrained_run(data: ExperimentData, config: HeadConfig) -> str:
    """Return the name of the run directory of a head with its initial weights."""
    return f"{head_label(data, config)}-untrained-{value_hash([str(config), data.experiment.seed])}"


def epoch_runs(
    data: ExperimentData, checkpoint: "Checkpoint", config: HeadConfig, training: TrainingConfig
) -> tuple[list[str], str]:
    """Return the names of the run directories of a head after each epoch, and the key of its training."""
    settings = _training_settings(training)
    key = value_hash([str(config), settings, data.experiment.seed, checkpoint.encoder_hash, _scored(data)])
    label = head_label(data, config)
    return [f"{label}-epoch{epoch}-{key}" for epoch in range(1, round(training.epochs) + 1)], key


def ensemble_run(members: Sequence[Run], method: str) -> str:
    """Return the name of the run directory of an ensemble."""
    return f"ensemble-{method}-{value_hash([member.directory.name for member in members])}"


def results_file(directory: Path, runs: Sequence[Run]) -> Path:
    """Return the file with the comparison of the runs of an experiment."""
    return directory / f"results-{value_hash([str(run.directory.relative_to(directory)) for run in runs])}.json"


def states_identity(data: ExperimentData, checkpoint: "Checkpoint", name: str, view: StateView) -> dict[str, Any]:
    """Return all that the hidden states of a split depend on. The manifest of a store contains it."""
    split: Split = getattr(data, name)
    identity: dict[str, Any] = {
        "backbone": checkpoint.encoder_hash,  # the key that the documented format of stores has
        "tokenizer": tokenizer_hash(data.tokenizer),
        "task": data.task.name,
        "split": name,
        "data": fingerprint(split),
        "max_tokens": data.max_tokens,
        "precision": data.experiment.precision,
    }
    if split.features.second_text_starts is not None:
        identity["texts"] = 2
    if view.pooler_output:
        identity["pooler"] = value_hash([tensor.tolist() for tensor in checkpoint.bert_head.state_dict().values()])
    return identity


def frozen_states(experiment: Experiment, encoder_hash: str) -> str:
    """Return all that the hidden states of a text depend on, apart from its tokens, for the cache in memory."""
    return f"{encoder_hash} {experiment.precision} {experiment.cpu_optimizations}"


def states_directory(
    data: ExperimentData, checkpoint: "Checkpoint", name: str, view: StateView, identity: Mapping[str, Any]
) -> Path:
    """Return the directory of a store of hidden states."""
    store = data.experiment.store
    if store.directory:
        return Path(store.directory) / name
    manifest = view_to_manifest(view)
    channels = {"layers": manifest["layers"], "pooled": manifest["pooled"], "first": view.first_token_only}
    return checkpoint.directory / "states" / f"{name}-{store.dtype}-{value_hash([identity, channels])}"
