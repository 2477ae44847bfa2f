"""Transfer of a head that was trained for one task to another task."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertvision import pipeline
from bertvision.errors import BertVisionError
from bertvision.lab.studies.context import StudyContext, score_row
from bertvision.lab.studies.result import Figure, StudyTable
from bertvision.runs import Run

CATEGORIES = {
    "inference": ("rte", "mnli", "qnli", "wnli", "snli"),
    "paraphrase": ("mrpc", "qqp"),
    "sentiment": ("sst2", "rotten-tomatoes"),
    "similarity": ("stsb",),
}
TRANSFERRED, FRESH = "transferred", "fresh"


def transfer(context: StudyContext) -> StudyTable:
    """The trained main head as the initialisation for another task, compared with a freshly initialised head.

    The classifier is initialised anew where the classes of the tasks differ. Both heads are trained on the encoder
    fine-tuned for the target task and on the one fine-tuned for the source task, with an increasing number of examples
    of the target task. Without examples, the transferred head is evaluated as it is if both tasks have the same
    classes.
    """
    source = context.task
    if not context.options.to:
        raise BertVisionError(
            f"transfer from {source.name} needs target tasks, e.g. --to sst2, or `to` in the table [study] of a file."
        )
    fraction, rows = context.head_fractions[0], []
    for target_name in context.options.to:
        experiment = replace(
            context.experiment, task=target_name, fractions=[fraction], head_fractions=[fraction], label_fraction=1.0
        )
        target = StudyContext(experiment, context.options, context.root)
        if target.task.per_token != source.per_token:
            raise BertVisionError(
                f"A head for {source.name} cannot be used for {target_name}: one of the tasks predicts spans, the "
                "other labels whole texts. Name target tasks of the same kind."
            )
        same = _category(target_name) == _category(source.name)
        for encoder_task in (target_name, source.name):
            for count in context.options.examples:
                models = _runs_by_model(context, target, encoder_task == target_name, count)
                for model, runs in models.items():
                    row = {"to": target_name, "encoder": encoder_task, "examples": count, "model": model}
                    row |= {"fraction": fraction, "category": "the same" if same else "another"}
                    row["series"] = f"{model}, {target_name} on {encoder_task}"
                    rows.append(row | score_row(target.task, runs))
    title = f"{context.main_head} of {source.name} on other tasks"
    figure = Figure(title=title, kind="line", x="examples", y="score", color="series", low="low", high="high")
    columns = ["to", "category", "encoder", "examples", "model", "score", "low", "high"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=_findings(source.name, rows))


def _findings(source: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Compare the transferred with the fresh head wherever both were trained."""
    scores: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in rows:
        scores.setdefault((row["to"], row["encoder"], row["examples"]), {})[row["model"]] = row["score"]
    return [
        f"{target} on the encoder of {encoder} with {count} examples: the head of {source} scores "
        f"{score[TRANSFERRED]:.1f}, a fresh head {score[FRESH]:.1f}."
        for (target, encoder, count), score in scores.items()
        if len(score) == 2
    ]


def _runs_by_model(
    context: StudyContext, target: StudyContext, on_target_encoder: bool, count: int
) -> dict[str, list[Run]]:
    """Train the transferred and the fresh head on `count` examples of the target task, for every seed."""
    fraction = context.head_fractions[0]
    models: dict[str, list[Run]] = {}
    for seed in context.seeds:
        trained = context.head_runs(seed, fraction, [context.main_head])[str(context.main_head)]
        evaluated, at = target, fraction
        if not on_target_encoder:
            encoder = trained.encoder_source
            experiment = replace(target.experiment, encoder=encoder, fractions=[0.0], head_fractions=[0.0])
            evaluated, at = StudyContext(experiment, target.options, target.root), 0.0
        checkpoint = evaluated.checkpoint(seed, at)
        if count == 0:
            if _same_classes(context, target):
                runs = pipeline.evaluate_at(evaluated.data(seed), [trained], checkpoint)
                models.setdefault(TRANSFERRED, []).extend(runs)
            continue
        share = min(1.0, count / len(evaluated.data(seed).train.examples))
        data = evaluated.data(seed, heads=[context.main_head], controls=False, label_fraction=share)
        for name, start in ((TRANSFERRED, trained), (FRESH, None)):
            models.setdefault(name, []).append(pipeline.checkpoint_runs(data, checkpoint, start=start)[1])
    return models


def _same_classes(context: StudyContext, target: StudyContext) -> bool:
    """Whether both tasks are of the same kind and have classes of the same names."""
    first, second = context.task.to_dict(), target.task.to_dict()
    return first.get("classes") == second.get("classes") and first["kind"] == second["kind"]


def _category(task: str) -> str:
    return next((category for category, tasks in CATEGORIES.items() if task in tasks), task)
