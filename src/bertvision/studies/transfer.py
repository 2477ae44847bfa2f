"""A head trained for one task, used for another."""

from dataclasses import replace
from typing import Any

from bertvision import pipeline
from bertvision.errors import BertVisionError
from bertvision.runs import Run
from bertvision.studies.lab import Lab, describe
from bertvision.studies.result import Figure

CATEGORIES = {
    "inference": ("rte", "mnli", "qnli", "wnli", "snli"),
    "paraphrase": ("mrpc", "qqp"),
    "sentiment": ("sst2", "rotten-tomatoes"),
    "similarity": ("stsb",),
}


def transfer(lab: Lab) -> dict[str, Any]:
    """The head's body on another task, its read-out fresh where the answers differ, against a fresh head.

    On the new task's own backbone and on that of the old one; from no example of the new task, where the answers are
    the same, to some.
    """
    if not lab.options.to:
        raise BertVisionError(
            f"transfer needs the tasks to go to, e.g. --to sst2 or study.to in a file ({lab.task.name})."
        )
    fraction, rows = lab.read_at[0], []
    for name in lab.options.to:
        there = replace(lab.experiment, task=name, fractions=[fraction], read_at=[fraction], labels=1.0)
        other = Lab(there, lab.options, lab.root, lab.notify)
        if other.task.per_token != lab.task.per_token:
            raise BertVisionError(f"A head for {lab.task.name} cannot answer {name}: one labels tokens, one sentences.")
        for whose in (name, lab.task.name):
            for count in lab.options.examples:
                found = _over_seeds(lab, other, fraction, whose == name, count)
                for model, runs in found.items():
                    row = {"to": name, "backbone": whose, "examples": count, "model": model, "fraction": fraction}
                    row["category"] = "the same" if _category(name) == _category(lab.task.name) else "another"
                    rows.append(row | describe(other.task, runs))
    words = []
    for to, whose in dict.fromkeys((row["to"], row["backbone"]) for row in rows):
        here = [row for row in rows if (row["to"], row["backbone"]) == (to, whose)]
        for count in dict.fromkeys(row["examples"] for row in here):
            pair = {row["model"]: row["score"] for row in here if row["examples"] == count}
            if len(pair) == 2:
                words.append(
                    f"{to} on the backbone of {whose}, {count} examples: {pair['transferred']:.1f} with the body of "
                    f"{lab.task.name}'s head, {pair['fresh']:.1f} from scratch."
                )
    for row in rows:
        row["what"] = f"{row['model']}, {row['to']} on {row['backbone']}"
    figure = Figure(title=f"{lab.default} of {lab.task.name} on other tasks", kind="line", x="examples", y="score",
                    color="what", low="low", high="high")  # fmt: skip
    columns = ["to", "category", "backbone", "examples", "model", "score", "low", "high"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def _over_seeds(lab: Lab, other: Lab, fraction: float, own: bool, count: int) -> dict[str, list[Run]]:
    """Train the transferred and the fresh head on `count` examples of the other task, for every seed."""
    found: dict[str, list[Run]] = {}
    for seed in lab.seeds:
        old = lab.trained(seed, fraction, [lab.default])[lab.default]
        here = other
        if not own:
            backbone = str((old.directory / old.experiment["backbone_path"]).resolve())
            experiment = replace(other.experiment, backbone=backbone, fractions=[0.0], read_at=[0.0])
            here = Lab(experiment, other.options, other.root, other.notify)
        at = fraction if own else 0.0
        point = here.point(seed, at)
        if count == 0:
            if _agree(lab, other):
                found.setdefault("transferred", []).extend(
                    pipeline.carry(here.prepared(seed), [old], point, lab.notify)
                )
            continue
        share = min(1.0, count / len(here.prepared(seed).train.examples))
        prepared = here.prepared(seed, heads=[lab.default], controls=False, labels=share)
        for name, start in (("transferred", old), ("fresh", None)):
            runs = pipeline.train_heads(prepared, point, lab.notify, start=start)
            found.setdefault(name, []).append(runs[0])
    return found


def _agree(lab: Lab, other: Lab) -> bool:
    """Whether both tasks give the same answers, by name."""
    first, second = (each.task.describe() for each in (lab, other))
    return first.get("classes") == second.get("classes") and first["kind"] == second["kind"]


def _category(name: str) -> str:
    return next((kind for kind, tasks in CATEGORIES.items() if name in tasks), name)
