"""Dev examples that BERT or the best head gets wrong, with the answers of both."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertvision import pipeline
from bertvision.errors import BertVisionError
from bertvision.lab.studies import StudyResult
from bertvision.runs import Run, open_run
from bertvision.token_tasks import find_entities

MAX_EXAMPLES = 40


def misclassified(results: Sequence[StudyResult]) -> Iterator[dict[str, Any]]:
    """Yield the errors of BERT and of the head with the best validation score, for each zoo study in `results`."""
    for result in results:
        if result.study != "zoo":
            continue
        for fraction in dict.fromkeys(row["fraction"] for row in result.rows):
            rows = [row for row in result.rows if row["fraction"] == fraction]
            bert = next(row for row in rows if row["model"] == "BERT")
            heads = [row for row in rows if row["model"] != "BERT" and not row["model"].startswith("control")]
            head = max(heads, key=lambda row: row["validation"])
            try:
                examples, counts = compare_errors(open_run(bert["runs"][0]), open_run(head["runs"][0]))
            except BertVisionError as error:  # the data may have been deleted; the rest of the report needs none
                examples, counts = [], {"note": str(error)}
            title = f"{result.task} after {fraction:g} epochs"
            yield {"title": title, "head": head["model"], "rows": examples, "counts": counts}


def compare_errors(bert: Run, head: Run) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return examples that either model gets wrong, disagreements first, and the number of errors of each kind.

    For a regression task, return the examples with the largest errors of the head, and both mean errors.
    """
    data = pipeline.prepare(pipeline.experiment_of(head))
    task, dev = data.task, data.dev
    answers = [task.format_answers(run.predictions(), dev.features, run.metrics.decoding) for run in (bert, head)]
    bert_correct, head_correct = task.is_correct(bert.outcomes()), task.is_correct(head.outcomes())
    if bert_correct is None or head_correct is None:
        errors = [np.abs(run.outcomes()[:, 0] - run.outcomes()[:, 1]) for run in (bert, head)]
        order = np.argsort(-errors[1], kind="stable")[:MAX_EXAMPLES]
        counts = {"mean error of BERT": float(errors[0].mean()), "mean error of the head": float(errors[1].mean())}
    else:
        kinds = {
            "only the head right": head_correct & ~bert_correct,
            "only BERT right": bert_correct & ~head_correct,
            "both wrong": ~bert_correct & ~head_correct,
        }
        counts = {name: int(flags.sum()) for name, flags in kinds.items()}
        order = np.concatenate([np.flatnonzero(flags)[: MAX_EXAMPLES // 3] for flags in kinds.values()])
    rows = []
    for index in order:
        example = dev.examples[index]
        row = {"text": " | ".join(example.texts), "right": _format_label(task, example.label)}
        rows.append(row | {name: _format_answer(answers[i][example.id]) for i, name in enumerate(("BERT", head.name))})
    return rows, counts


def _format_label(task: Any, label: Any) -> str:
    if task.example_kind == "tokens":
        return ", ".join(f"{e.type} (words {e.start + 1}-{e.end})" for e in find_entities(label)) or "no entities"
    if task.per_token:
        return " / ".join(dict.fromkeys(span.text for span in label)) or "no answer"
    if task.outputs == 1:
        return f"{label:g}"
    classes = getattr(task, "classes", ())
    if task.independent_outputs:
        return ", ".join(str(classes[index]) for index in label) or "no label"
    return str(classes[int(label)]) if isinstance(label, int) else ("no answer" if not label else "an answer")


def _format_answer(answer: dict[str, Any]) -> str:
    if "answer" in answer:
        return answer["answer"] or "no answer"
    if "labels" in answer:
        return ", ".join(answer["labels"]) or "no label"
    if "entities" in answer:
        return ", ".join(f"{e['type']} ({e['text']})" for e in answer["entities"]) or "no entities"
    return f"{answer['label']} ({answer['probability']:.2f})" if "label" in answer else f"{answer['score']:.2f}"
