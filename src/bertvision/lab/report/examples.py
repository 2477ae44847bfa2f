"""What models get wrong: dev examples with the answers of two of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.lab import pipeline
from bertvision.lab.studies import Result
from bertvision.runs import Run, open_run

MOST = 40


def misclassified(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield, for each zoo of `results`, the errors of BERT and of the head that validation prefers."""
    for result in results:
        if result.study != "zoo":
            continue
        for fraction in dict.fromkeys(row["fraction"] for row in result.rows):
            here = [row for row in result.rows if row["fraction"] == fraction]
            bert = next(row for row in here if row["model"] == "BERT")
            heads = [row for row in here if row["model"] != "BERT" and not row["model"].startswith("control")]
            head = max(heads, key=lambda row: row["validation"])
            title = f"{result.task} after {fraction:g} epochs"
            try:
                rows, counts = compare(open_run(bert["runs"][0]), open_run(head["runs"][0]))
            except BertVisionError as error:  # the data may be gone; the rest of the report does not need them
                rows, counts = [], {"note": str(error)}
            yield {"title": title, "head": head["model"], "rows": rows, "counts": counts}


def compare(bert: Run, head: Run) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return examples that either model got wrong, those on which they disagree first, and how many of each kind."""
    data = pipeline.load_data(pipeline.experiment_of(head))
    task, dev = data.task, data.dev
    shown = [task.format_answers(run.predictions(), dev.features, run.metrics.decoding) for run in (bert, head)]
    right = [task.is_correct(run.outcomes()) for run in (bert, head)]
    if right[0] is None or right[1] is None:  # scores: the worst misses of the head
        errors = [np.abs(run.outcomes()[:, 0] - run.outcomes()[:, 1]) for run in (bert, head)]
        order = np.argsort(-errors[1], kind="stable")[:MOST]
        counts = {"mean error of BERT": float(errors[0].mean()), "mean error of the head": float(errors[1].mean())}
    else:
        kinds = {"only the head right": right[1] & ~right[0], "only BERT right": right[0] & ~right[1]}
        kinds["both wrong"] = ~right[0] & ~right[1]
        counts = {name: int(rows.sum()) for name, rows in kinds.items()}
        order = np.concatenate([np.flatnonzero(rows)[: MOST // 3] for rows in kinds.values()])
    rows = []
    for row in order:
        example = dev.examples[row]
        rows.append(
            {
                "text": " | ".join(example.texts),
                "right": _gold(task, example.label),
                "BERT": _said(shown[0][example.id]),
                head.name: _said(shown[1][example.id]),
            }
        )
    return rows, counts


def _gold(task: Any, label: Any) -> str:
    if task.per_token:
        return " / ".join(dict.fromkeys(span.text for span in label)) or "no answer"
    if task.outputs == 1:
        return f"{label:g}"
    classes = getattr(task, "classes", ())
    return str(classes[int(label)]) if isinstance(label, int) else ("no answer" if not label else "an answer")


def _said(answer: dict[str, Any]) -> str:
    if "answer" in answer:
        return answer["answer"] or "no answer"
    return f"{answer['label']} ({answer['probability']:.2f})" if "label" in answer else f"{answer['score']:.2f}"
