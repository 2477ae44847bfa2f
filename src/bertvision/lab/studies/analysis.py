"""Analyses of where models differ: layer weights, kinds of questions, second answers, text lengths."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.lab.studies.context import StudyContext
from bertvision.lab.studies.result import Figure, StudyTable
from bertvision.runs import Run
from bertvision.tasks import Answer, Example
from bertvision.tasks.metrics import compare

BERT = "BERT"
QUARTERS = [f"quarter {number}" for number in range(1, 5)]
Row = dict[str, Any]
Measurement = dict[str, float]


def layer_weights(context: StudyContext) -> StudyTable:
    """The weights that learned pooling gives to each layer, over seeds."""
    rows, findings = [], []
    for fraction in context.head_fractions:
        runs = [context.head_runs(seed, fraction, [HeadConfig("learned")])["learned"] for seed in context.seeds]
        weights = np.stack([softmax(run.weights()["layer_pooling.weights"].numpy()) for run in runs])
        for layer, over_seeds in enumerate(weights.T):
            row = {"layer": layer, "fraction": fraction, "weight": float(over_seeds.mean())}
            rows.append(row | {"low": float(over_seeds.min()), "high": float(over_seeds.max())})
        mean = weights.mean(axis=0)
        findings.append(
            f"After {fraction:g} epochs, layer {int(mean.argmax())} of 0 to {len(mean) - 1} has the largest weight "
            f"({mean.max():.2f}; uniform weights would be {1 / len(mean):.2f}). The upper half of the layers has "
            f"{mean[len(mean) // 2 :].sum():.2f} of the total weight."
        )
    title = "Layer weights (range over seeds)"
    figure = Figure(title=title, kind="line", x="layer", y="weight", color="fraction", low="low", high="high")
    columns = ["layer", "fraction", "weight", "low", "high"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def _models(context: StudyContext, seed: int, fraction: float) -> dict[str, Run]:
    """Return BERT, the main head, and the first ensemble of both."""
    bert = context.bert_run(seed, fraction)
    head = context.head_runs(seed, fraction, [context.main_head])[str(context.main_head)]
    method = context.ensemble_methods()[0]
    return {
        BERT: bert,
        str(context.main_head): head,
        f"{BERT} + {context.main_head} ({method})": context.ensemble_run(seed, [bert, head], method),
    }


def _answer_rows(
    context: StudyContext, measure: Callable[[list[Example], list[Answer], np.ndarray], Measurement]
) -> list[Row]:
    """Apply `measure` to every model's answers to the dev questions and average over seeds.

    `measure` gets the examples, the answers in the same order, and a boolean array of which answers are correct.
    """
    task = context.task
    if task.example_kind != "span":
        raise BertVisionError(f"This study analyses answers to questions and needs squad2, got {task.name}.")
    rows: list[Row] = []
    for fraction in context.head_fractions:
        measurements: dict[str, list[Measurement]] = {}
        for seed in context.seeds:
            dev = context.data(seed).dev
            for name, run in _models(context, seed, fraction).items():
                answers = task.decode(run.predictions(), dev.features, run.metrics.decoding)
                correct = task.is_correct(run.outcomes())
                assert correct is not None
                measured = measure(dev.examples, [answers[example.id] for example in dev.examples], correct)
                measurements.setdefault(name, []).append(measured)
        rows += _mean_rows(fraction, measurements)
    return rows


def _mean_rows(fraction: float, measurements: dict[str, list[Measurement]]) -> list[Row]:
    """Return a row for each model: the means of its measurements over seeds."""
    return [
        {"model": name, "fraction": fraction, "seeds": len(over_seeds)}
        | {key: float(np.mean([measured[key] for measured in over_seeds])) for key in over_seeds[0]}
        for name, over_seeds in measurements.items()
    ]


def _percent(flags: np.ndarray | Sequence[bool]) -> float:
    return 100 * float(np.mean(flags)) if len(flags) else 0.0


def question_types(context: StudyContext) -> StudyTable:
    """Accuracy of each model on questions with an answer and on questions without."""

    def measure(examples: list[Example], answers: list[Answer], correct: np.ndarray) -> Measurement:
        has_answer = np.array([bool(example.label) for example in examples])
        predicted_null = np.array([not answer.text for answer in answers])
        return {
            "HasAns right": _percent(correct[has_answer]),
            "NoAns right": _percent(correct[~has_answer]),
            "answered null": _percent(predicted_null),
            "wrong HasAns that were null": _percent(predicted_null[has_answer & ~correct]),
        }

    rows = _answer_rows(context, measure)
    findings = [
        f"After {row['fraction']:g} epochs, {row['model']} is correct on {row['HasAns right']:.0f} % of the questions "
        f"with an answer and on {row['NoAns right']:.0f} % of those without. It predicts no answer for "
        f"{row['wrong HasAns that were null']:.0f} % of its errors on questions with an answer."
        for row in rows
    ]
    title = "Correct on questions with an answer (%)"
    figure = Figure(title=title, kind="dot", x="HasAns right", y="model", color="fraction")
    columns = ["model", "fraction", "HasAns right", "NoAns right", "answered null", "wrong HasAns that were null"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def second_answer(context: StudyContext) -> StudyTable:
    """How often the second most likely answer is correct where the first is wrong."""

    def measure(examples: list[Example], answers: list[Answer], correct: np.ndarray) -> Measurement:
        errors = np.flatnonzero(~correct)
        second_correct = [_second_is_correct(examples[row], answers[row]) for row in errors]
        recovered = [examples[row] for row, is_correct in zip(errors, second_correct, strict=True) if is_correct]
        return {
            "wrong": float(len(errors)),
            "second right": _percent(second_correct),
            "of these HasAns": _percent([bool(example.label) for example in recovered]),
        }

    rows = _answer_rows(context, measure)
    findings = [
        f"After {row['fraction']:g} epochs, the second answer of {row['model']} is correct for "
        f"{row['second right']:.0f} % of its errors. {row['of these HasAns']:.0f} % of these questions have an answer."
        for row in rows
    ]
    title = "Second answer correct (% of errors)"
    figure = Figure(title=title, kind="dot", x="second right", y="model", color="fraction")
    columns = ["model", "fraction", "wrong", "second right", "of these HasAns"]
    return StudyTable(columns=columns, rows=rows, figures=[figure], findings=findings)


def _second_is_correct(example: Example, answer: Answer) -> bool:
    golds = [span.text for span in example.label]
    second = next((candidate.text for candidate in answer.nbest if candidate.text != answer.text), None)
    return second is not None and compare(second, golds)[0] == 1


def context_length(context: StudyContext) -> StudyTable:
    """Score by length of the text, and the lengths of the texts that models get right."""
    examples = context.data(context.seeds[0]).dev.examples
    if len(examples[0].texts) < 2:
        raise BertVisionError(
            f"context-length needs a task of text pairs or of questions with a context; {context.task.name} has one "
            "text per example."
        )
    first_text = 1 if context.task.example_kind == "span" else 0  # only the context counts, not the question
    lengths = np.array([sum(len(text.split()) for text in example.texts[first_text:]) for example in examples])
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    rows: list[Row] = []
    for fraction in context.head_fractions:
        measurements: dict[str, list[Measurement]] = {}
        for seed in context.seeds:
            for name, measured in _by_length(context, seed, fraction, lengths, edges).items():
                measurements.setdefault(name, []).append(measured)
        rows += _mean_rows(fraction, measurements)
    drawn = [
        {"model, states": f"{row['model']}, {row['fraction']:g}", "quarter": number, "score": row[quarter]}
        for row in rows
        for number, quarter in enumerate(QUARTERS, 1)
    ]
    findings = [f"The quartiles of the text length are {', '.join(f'{edge:g}' for edge in edges)} words."]
    findings += [
        f"After {row['fraction']:g} epochs, the texts that only {row['model']} gets right have "
        f"{row['words, right alone']:.1f} words on average; all texts that it gets right have "
        f"{row['words, right']:.1f}."
        for row in rows
        if "words, right" in row
    ]
    title = "Score by quarter of text length"
    figure = Figure(title=title, kind="line", x="quarter", y="score", color="model, states")
    columns = ["model", "fraction", *QUARTERS, "words, right", "words, right alone"]
    return StudyTable(columns=columns, rows=rows + drawn, figures=[figure], findings=findings)


def _by_length(
    context: StudyContext, seed: int, fraction: float, lengths: np.ndarray, edges: np.ndarray
) -> dict[str, Measurement]:
    """Measure BERT and the main head in each quarter of the text lengths, by model."""
    task = context.task
    quarter_of_row = np.searchsorted(edges, lengths)
    models = dict(list(_models(context, seed, fraction).items())[:2])
    correct = {name: task.is_correct(run.outcomes()) for name, run in models.items()}
    measurements = {}
    for name, run in models.items():
        measured = {
            quarter: task.compute_metrics(run.outcomes()[quarter_of_row == number])[task.primary]
            for number, quarter in enumerate(QUARTERS)
        }
        own, others = correct[name], next(flags for model, flags in correct.items() if model != name)
        if own is not None and others is not None:
            alone = own & ~others
            measured["words, right"] = float(lengths[own].mean()) if own.any() else 0.0
            measured["words, right alone"] = float(lengths[alone].mean()) if alone.any() else 0.0
        measurements[name] = measured
    return measurements
