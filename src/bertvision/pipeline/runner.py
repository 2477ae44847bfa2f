"""Run an experiment: fine-tune, train heads and controls, evaluate, combine with BERT.

Each step is skipped if its result is already on disk:

    runs/<task>/<encoder>/<8 hex of data, fine-tuning and seed>/
        settings.json               what the 8 digits stand for
        <fraction>/encoder/         the fine-tuned encoder, with BERT's own head
        <fraction>/bert-<8 hex>/    a run: BERT's own predictions
        <fraction>/<head>-<8 hex>/  a run: a head, a control or an ensemble
        results-<8 hex>.json        the comparison
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision import distributed
from bertvision.errors import BertVisionError
from bertvision.files import write_json
from bertvision.heads import HeadConfig
from bertvision.inputs import warn_one_answer
from bertvision.pipeline import cache_keys
from bertvision.pipeline.config import heads_and_controls
from bertvision.pipeline.data import ExperimentData, prepare
from bertvision.pipeline.evaluation import METHOD, best_combination, ensemble, evaluate, preferred
from bertvision.pipeline.experiment import Experiment, make, merge
from bertvision.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, finetune_tasks, open_checkpoint
from bertvision.pipeline.head_training import bert_output, outputs_at, train_heads
from bertvision.pipeline.planned_stages import stage_titles
from bertvision.run_stages import add_score, stage
from bertvision.runs import Run, is_finished

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExperimentResult:
    """The runs of an experiment, in the order of the table."""

    runs: list[Run]
    best: Run
    """The head, or the ensemble of heads, that validation prefers, at the last fraction with heads."""
    file: Path
    """The comparison as JSON."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the comparison as plain rows, for tables and files."""
        return [
            {
                "name": run.name,
                "kind": run.kind,
                "fraction": run.record.fraction,
                "chosen": run.directory == self.best.directory,
                "primary": run.metrics.primary_metric,
                "score": run.metrics.scores,
                "interval": list(run.metrics.interval),
                "validation": run.validation_score[0],
                "parameters": run.metrics.parameters,
                "seconds": run.metrics.seconds.to_dict(),
                "directory": os.path.relpath(run.directory, self.file.parent),
            }
            for run in self.runs
        ]


def run(experiment: Experiment | None = None, *, root: str | Path = "runs", **settings: Any) -> ExperimentResult:
    """Run an experiment, given as an `Experiment` or by its settings: run(task="mrpc"), run(train_file="mine.csv")."""
    if experiment is not None and settings:
        raise BertVisionError(
            f"Give an experiment or settings, not both; got an experiment and {', '.join(settings)}. "
            "dataclasses.replace changes the settings of an experiment."
        )
    return run_data(prepare(experiment or make(**settings)), Path(root))


def run_data(data: ExperimentData, root: Path, *, start: Run | None = None) -> ExperimentResult:
    """Run the experiment of data that is already loaded. With `start`, heads are initialised with that run's head."""
    counts = [len(split.examples) for split in (data.train, data.validation, data.dev)]
    logger.info(
        f"{data.task.name}: {counts[0]:,} rows to train on, {counts[1]:,} to choose on, {counts[2]:,} to score, "
        f"from {data.source}."
    )
    checkpoints = finetune(data, root)
    runs = runs_of(data, checkpoints, with_ensembles=True, start=start)
    trained = [run for run in runs if run.kind in ("head", "control") or is_head_ensemble(run)]
    last = [run for run in trained if run.record.fraction == max(run.record.fraction for run in trained)]
    best = choose_best(data, last) if last else max(runs, key=lambda run: run.validation_score)
    result = ExperimentResult(runs, best, cache_keys.results_file(checkpoints.directory, runs))
    warn_one_answer(data.task, best.outcomes(), best.name)
    if distributed.is_main_process():
        values = {"experiment": data.experiment.to_dict(), "source": data.source, "rows": result.to_rows()}
        write_json(result.file, values)
    return result


def run_multitask(experiments: Sequence[Experiment], root: Path) -> dict[str, list[Run]]:
    """Fine-tune one encoder on several tasks, and train heads for each task on it; return the runs by task."""
    return {
        data.task.name: runs_of(data, checkpoints)
        for data, checkpoints in finetune_multitask([prepare(experiment) for experiment in experiments], root)
    }


def finetune_multitask(members: Sequence[ExperimentData], root: Path) -> list[tuple[ExperimentData, CheckpointSet]]:
    """Fine-tune one encoder on several tasks; return each task's data with its checkpoints."""
    names = [member.task.name for member in members]
    if members[0].experiment.checkpoints_given or len(set(names)) < len(names) or len(names) < 2:
        raise BertVisionError(f"A shared encoder needs two or more different tasks to be fine-tuned on, got {names}.")
    return list(zip(members, finetune_tasks(members, root), strict=True))


def runs_of(
    data: ExperimentData, checkpoints: CheckpointSet, *, with_ensembles: bool = False, start: Run | None = None
) -> list[Run]:
    """Return the runs of all fractions: BERT, heads and controls, and ensembles of BERT with the best head."""
    runs: list[Run] = []
    for fraction in checkpoints.fractions:
        checkpoint = open_checkpoint(data, checkpoints, fraction)
        if fraction not in data.experiment.head_fractions and not checkpoints.stopped:
            with stage(stage_titles(fraction).scoring):
                runs.append(bert_run(data, checkpoint))
                add_score(runs[-1].name, runs[-1].validation_score[0])
            continue
        bert, *trained = checkpoint_runs(data, checkpoint, start=start)
        runs += [bert, *trained]
        add_score(bert.name, bert.validation_score[0])
        if with_ensembles and trained:
            with stage(stage_titles(fraction).combining):
                runs += _ensembles(data, checkpoint, bert, trained)
    return runs


def _ensembles(data: ExperimentData, checkpoint: Checkpoint, bert: Run, trained: Sequence[Run]) -> list[Run]:
    """Return the ensemble of heads, if there is one, and those of BERT with the best head."""
    methods = ["mean"] if data.task.outputs == 1 else data.experiment.ensembles
    best = choose_best(data, trained)
    with_bert = [ensemble(data, checkpoint.directory, [bert, best], method) for method in methods]
    return [*head_ensemble(data, checkpoint, trained), *with_bert]


def bert_run(data: ExperimentData, checkpoint: Checkpoint) -> Run:
    """Return the run of BERT itself at a checkpoint."""
    directory = checkpoint.directory / cache_keys.bert_run(data)
    return Run(directory) if is_finished(directory) else evaluate(data, checkpoint, bert_output(data, checkpoint))


def checkpoint_runs(data: ExperimentData, checkpoint: Checkpoint, *, start: Run | None = None) -> list[Run]:
    """Return the runs of BERT, of every head and of every control at a checkpoint; train those that are missing.

    Heads whose training diverged are left out. With `start`, heads are initialised with the head of that run.
    """
    kinds = heads_and_controls(data.config)
    directories = {
        config: checkpoint.directory / cache_keys.head_run(data, checkpoint, config, start) for config in kinds
    }
    missing = {config: kind for config, kind in kinds.items() if not is_finished(directories[config])}
    if missing:
        # If the process was killed between the first and the last evaluation, the saved training is of all heads.
        if distributed.broadcast_decision(cache_keys.head_resume_file(data, checkpoint, list(kinds), start).exists()):
            missing = kinds
        outputs = train_heads(data, checkpoint, missing, start)
        with stage(stage_titles(checkpoint.fraction).scoring):
            for output in outputs:
                if output.stopped or not is_finished(checkpoint.directory / output.directory):
                    evaluate(data, checkpoint, output)
        stopped = any(output.stopped for output in outputs)
        if stopped:
            names = {output.name: checkpoint.directory / output.directory for output in outputs}
            directories = {config: names.get(str(config), path) for config, path in directories.items()}
        elif distributed.is_main_process():
            cache_keys.head_resume_file(data, checkpoint, list(missing), start).unlink(missing_ok=True)
    trained = [Run(directory) for directory in directories.values() if is_finished(directory)]
    return [bert_run(data, checkpoint), *trained]


def evaluate_at(data: ExperimentData, runs: Sequence[Run], checkpoint: Checkpoint) -> list[Run]:
    """Evaluate trained heads on the hidden states of another checkpoint. Decoding settings are tuned there again."""
    directories = [checkpoint.directory / cache_keys.evaluated_run(data, run) for run in runs]
    missing = [run for run, directory in zip(runs, directories, strict=True) if not is_finished(directory)]
    for output in outputs_at(data, checkpoint, missing):
        evaluate(data, checkpoint, output)
    return [Run(directory) for directory in directories]


def head_ensemble(data: ExperimentData, checkpoint: Checkpoint, runs: Sequence[Run]) -> list[Run]:
    """Return the ensemble of heads that validation prefers; nothing if it prefers a head alone.

    The heads of an ensemble read pairs in the same encoding, so that an answer takes one pass of the encoder.
    """
    heads = [run for run in runs if run.kind == "head"]
    if not data.experiment.combine_heads or len(heads) < 2:
        return []
    members, _ = best_combination(
        data, heads, lambda run: run.predictions("validation"), lambda run: HeadConfig.parse(run.name).encoding
    )
    return [ensemble(data, checkpoint.directory, members, METHOD)] if len(members) > 1 else []


def is_head_ensemble(run: Run) -> bool:
    """Return whether a run is an ensemble of heads, without BERT itself."""
    return run.kind == "ensemble" and all(member.kind == "head" for member in run.members())


def choose_best(data: ExperimentData, runs: Sequence[Run]) -> Run:
    """Return the ensemble of heads, if there is one, else the head that validation prefers, else a control."""
    ensembles = [run for run in runs if is_head_ensemble(run)]
    candidates = ensembles or [run for run in runs if run.kind != "control"] or list(runs)
    return candidates[preferred([run.validation_score for run in candidates], len(data.validation.examples))]


def experiment_of(run: Run) -> Experiment:
    """Return the settings of a run."""
    return merge(Experiment(), run.record.settings)
