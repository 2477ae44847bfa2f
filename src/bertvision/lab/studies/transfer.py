"""A head trained for one task, used for another."""

from dataclasses import replace
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.lab import pipeline
from bertvision.lab.studies.context import StudyContext, describe
from bertvision.lab.studies.result import Figure
from bertvision.runs import Run

CATEGORIES = {
    "inference": ("rte", "mnli", "qnli", "wnli", "snli"),
    "paraphrase": ("mrpc", "qqp"),
    "sentiment": ("sst2", "rotten-tomatoes"),
    "similarity": ("stsb",),
}


def transfer(context: StudyContext) -> dict[str, Any]:
    """The head's body on another task, its read-out fresh where the answers differ, against a fresh head.

    On the new task's own backbone and on that of the old one; from no example of the new task, where the answers are
    the same, to some.
    """
    if not context.options.to:
        raise BertVisionError(
            f"transfer needs the tasks to go to, e.g. --to sst2 or study.to in a file ({context.task.name})."
        )
    fraction, rows = context.head_fractions[0], []
    for name in context.options.to:
        there = replace(context.experiment, task=name, fractions=[fraction], head_fractions=[fraction], labels=1.0)
        other = StudyContext(there, context.options, context.root)
        if other.task.per_token != context.task.per_token:
            raise BertVisionError(
                f"A head for {context.task.name} cannot answer {name}: one labels tokens, one sentences."
            )
        for whose in (name, context.task.name):
            for count in context.options.examples:
                found = _over_seeds(context, other, fraction, whose == name, count)
                for model, runs in found.items():
                    row = {"to": name, "encoder": whose, "examples": count, "model": model, "fraction": fraction}
                    row["category"] = "the same" if _category(name) == _category(context.task.name) else "another"
                    rows.append(row | describe(other.task, runs))
    words = []
    for to, whose in dict.fromkeys((row["to"], row["encoder"]) for row in rows):
        here = [row for row in rows if (row["to"], row["encoder"]) == (to, whose)]
        for count in dict.fromkeys(row["examples"] for row in here):
            pair = {row["model"]: row["score"] for row in here if row["examples"] == count}
            if len(pair) == 2:
                words.append(
                    f"{to} on the backbone of {whose}, {count} examples: {pair['transferred']:.1f} with the body of "
                    f"{context.task.name}'s head, {pair['fresh']:.1f} from scratch."
                )
    for row in rows:
        row["what"] = f"{row['model']}, {row['to']} on {row['encoder']}"
    title = f"{context.default} of {context.task.name} on other tasks"
    figure = Figure(title=title, kind="line", x="examples", y="score", color="what", low="low", high="high")
    columns = ["to", "category", "encoder", "examples", "model", "score", "low", "high"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def _over_seeds(
    context: StudyContext, other: StudyContext, fraction: float, own: bool, count: int
) -> dict[str, list[Run]]:
    """Train the transferred and the fresh head on `count` examples of the other task, for every seed."""
    found: dict[str, list[Run]] = {}
    for seed in context.seeds:
        old = context.trained(seed, fraction, [context.default])[context.default]
        here = other
        if not own:
            encoder = str(old.encoder_directory.resolve())
            experiment = replace(other.experiment, encoder=encoder, fractions=[0.0], head_fractions=[0.0])
            here = StudyContext(experiment, other.options, other.root)
        at = fraction if own else 0.0
        checkpoint = here.checkpoint(seed, at)
        if count == 0:
            if _agree(context, other):
                found.setdefault("transferred", []).extend(pipeline.evaluate_at(here.data(seed), [old], checkpoint))
            continue
        share = min(1.0, count / len(here.data(seed).train.examples))
        data = here.data(seed, heads=[context.default], controls=False, labels=share)
        for name, start in (("transferred", old), ("fresh", None)):
            runs = pipeline.train_heads(data, checkpoint, start=start)
            found.setdefault(name, []).append(runs[0])
    return found


def _agree(context: StudyContext, other: StudyContext) -> bool:
    """Whether both tasks give the same answers, by name."""
    first, second = (each.task.to_dict() for each in (context, other))
    return first.get("classes") == second.get("classes") and first["kind"] == second["kind"]


def _category(name: str) -> str:
    return next((kind for kind, tasks in CATEGORIES.items() if name in tasks), name)
