"""Where models differ: layer weights, kinds of question, second answers, lengths."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import softmax

from bertvision.errors import BertVisionError
from bertvision.lab.studies.context import StudyContext
from bertvision.lab.studies.result import Figure
from bertvision.runs import Run
from bertvision.tasks import Answer, Example
from bertvision.tasks.metrics import compare

BERT = "BERT"
StudyRows = dict[str, Any]


def layer_weights(context: StudyContext) -> StudyRows:
    """The weights that learned pooling gives to each layer, over seeds."""
    rows, words = [], []
    for fraction in context.head_fractions:
        runs = [context.trained(seed, fraction, ["learned"])["learned"] for seed in context.seeds]
        weights = np.stack([softmax(run.weights()["layer_pooling.weights"].numpy()) for run in runs])
        for layer, each in enumerate(weights.T):
            low, high = float(each.min()), float(each.max())
            rows.append({"layer": layer, "fraction": fraction, "weight": float(each.mean()), "low": low, "high": high})
        mean = weights.mean(axis=0)
        words.append(
            f"After {fraction:g} epochs layer {int(mean.argmax())} of 0 to {len(mean) - 1} weighs most "
            f"({mean.max():.2f}; even weights would be {1 / len(mean):.2f}); the upper half holds "
            f"{mean[len(mean) // 2 :].sum():.2f}."
        )
    title = "Layer weights (range over seeds)"
    figure = Figure(title=title, kind="line", x="layer", y="weight", color="fraction", low="low", high="high")
    columns = ["layer", "fraction", "weight", "low", "high"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def _models(context: StudyContext, seed: int, fraction: float) -> dict[str, Run]:
    """BERT, the head, and the first of their ensembles."""
    bert, head = context.bert(seed, fraction), context.trained(seed, fraction, [context.default])[context.default]
    how = context.ways()[0]
    return {
        BERT: bert,
        context.default: head,
        f"{BERT} + {context.default} ({how})": context.ensemble(seed, [bert, head], how),
    }


def _by_model(
    context: StudyContext, measure: Callable[[list[Example], list[Answer], np.ndarray], dict[str, float]]
) -> list[StudyRows]:
    """Measure every model's answers to the dev questions, given which are right; mean over seeds."""
    if not context.task.per_token:
        raise BertVisionError(
            f"This study is about answers to questions, so it needs squad2; {context.task.name} has none."
        )
    rows: list[StudyRows] = []
    for fraction in context.head_fractions:
        seen: dict[str, list[dict[str, float]]] = {}
        for seed in context.seeds:
            dev = context.data(seed).dev
            for name, run in _models(context, seed, fraction).items():
                answers = context.task.decode(run.predictions(), dev.features, run.metrics.decoding)
                right = context.task.is_correct(run.outcomes())
                assert right is not None
                found = measure(dev.examples, [answers[example.id] for example in dev.examples], right)
                seen.setdefault(name, []).append(found)
        rows += [_averaged({"model": name, "fraction": fraction}, each) for name, each in seen.items()]
    return rows


def question_types(context: StudyContext) -> StudyRows:
    """How often each model is right on questions with an answer and on those without."""

    def measure(examples: list[Example], answers: list[Answer], right: np.ndarray) -> dict[str, float]:
        has = np.array([bool(example.label) for example in examples])
        null = np.array([not answer.text for answer in answers])
        wrong = has & ~right
        return {
            "HasAns right": 100 * float(right[has].mean()),
            "NoAns right": 100 * float(right[~has].mean()),
            "answered null": 100 * float(null.mean()),
            "wrong HasAns that were null": 100 * float(null[wrong].mean()) if wrong.any() else 0.0,
        }

    rows = _by_model(context, measure)
    words = [
        f"After {row['fraction']:g} epochs {row['model']} is right on {row['HasAns right']:.0f} % of questions with an "
        f"answer and {row['NoAns right']:.0f} % of those without; of the former that it got wrong "
        f"{row['wrong HasAns that were null']:.0f} % were predicted null."
        for row in rows
    ]
    title = "Right on questions with an answer"
    figure = Figure(title=title, kind="bar", x="HasAns right", y="model", color="fraction")
    columns = ["model", "fraction", "HasAns right", "NoAns right", "answered null", "wrong HasAns that were null"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def second_answer(context: StudyContext) -> StudyRows:
    """How often the second most likely answer is right where the first is wrong."""

    def measure(examples: list[Example], answers: list[Answer], right: np.ndarray) -> dict[str, float]:
        wrong = np.flatnonzero(~right)
        second = [_second_is_right(examples[row], answers[row]) for row in wrong]
        has = [bool(examples[row].label) for row, found in zip(wrong, second, strict=True) if found]
        return {
            "wrong": float(len(wrong)),
            "second right": 100 * float(np.mean(second)) if second else 0.0,
            "of these HasAns": 100 * float(np.mean(has)) if has else 0.0,
        }

    rows = _by_model(context, measure)
    words = [
        f"After {row['fraction']:g} epochs the second answer of {row['model']} is right for "
        f"{row['second right']:.0f} % of its errors; {row['of these HasAns']:.0f} % of these questions have an answer."
        for row in rows
    ]
    figure = Figure(title="Second answer right, % of errors", kind="bar", x="second right", y="model", color="fraction")
    columns = ["model", "fraction", "wrong", "second right", "of these HasAns"]
    return {"columns": columns, "rows": rows, "figures": [figure], "words": words}


def _second_is_right(example: Example, answer: Answer) -> bool:
    golds = [span.text for span in example.label]
    second = next((candidate.text for candidate in answer.nbest if candidate.text != answer.text), None)
    return second is not None and compare(second, golds)[0] == 1


def context_length(context: StudyContext) -> StudyRows:
    """Length of what models get right, what one alone gets right, and the score by length."""
    dev = context.data(context.seeds[0]).dev
    if len(dev.examples[0].texts) < 2:
        raise BertVisionError(f"context-length is about pairs and contexts; {context.task.name} has one text.")
    spans = context.task.per_token
    lengths = np.array([sum(len(t.split()) for t in (e.texts[1:] if spans else e.texts)) for e in dev.examples])
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    quarter = np.searchsorted(edges, lengths)
    rows, means = [], []
    for fraction in context.head_fractions:
        seen: dict[str, list[dict[str, float]]] = {}
        for seed in context.seeds:
            models = dict(list(_models(context, seed, fraction).items())[:2])
            right = {name: context.task.is_correct(run.outcomes()) for name, run in models.items()}
            for name, run in models.items():
                score = {
                    f"quarter {part + 1}": context.task.compute_metrics(run.outcomes()[quarter == part])[
                        context.task.primary
                    ]
                    for part in range(4)
                }
                own, other = right[name], next(value for key, value in right.items() if key != name)
                if own is not None and other is not None:
                    alone = own & ~other
                    score |= {"words, right": float(lengths[own].mean()) if own.any() else 0.0}
                    score |= {"words, right alone": float(lengths[alone].mean()) if alone.any() else 0.0}
                seen.setdefault(name, []).append(score)
        rows += [_averaged({"model": name, "fraction": fraction}, each) for name, each in seen.items()]
    for row in rows:
        for part in range(4):
            means.append({"model, states": f"{row['model']}, {row['fraction']:g}", "quarter": part + 1})
            means[-1]["score"] = row[f"quarter {part + 1}"]
    words = [f"Quarters of length end at {', '.join(f'{edge:g}' for edge in edges)} words."]
    words += [
        f"After {row['fraction']:g} epochs what {row['model']} alone gets right has "
        f"{row['words, right alone']:.1f} words on average, all it gets right {row['words, right']:.1f}."
        for row in rows
        if "words, right" in row
    ]
    figure = Figure(title="Score by quarter of length", kind="line", x="quarter", y="score", color="model, states")
    columns = ["model", "fraction", *(f"quarter {part + 1}" for part in range(4)), "words, right", "words, right alone"]
    return {"columns": columns, "rows": rows + means, "figures": [figure], "words": words}


def _averaged(row: dict[str, Any], each: list[dict[str, float]]) -> dict[str, Any]:
    """Lay the means over seeds beside a row's names."""
    return row | {key: float(np.mean([found[key] for found in each])) for key in each[0]} | {"seeds": len(each)}
