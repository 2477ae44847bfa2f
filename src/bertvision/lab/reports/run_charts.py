"""Charts of one run: score by seconds, layers, confusion matrix, calibration, and answers by length."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from scipy.special import softmax

from bertvision import pipeline
from bertvision.errors import BertVisionError, lookup
from bertvision.evaluation_reports import evaluation
from bertvision.files import atomic_write
from bertvision.heads import HEADS, HeadConfig
from bertvision.runs import Run, find_runs
from bertvision.shared_encoders import layers_read
from bertvision.tasks import Task, task_from_dict

WIDTH, HEIGHT = 480, 260
MAX_CLASSES = 15
"""A confusion matrix shows this many classes at most: those with the most errors."""
CALIBRATION_BINS = 10
LENGTH_BINS = 6
FORMATS = ("svg", "png", "html")
MISSING = "The rows that the run was scored on cannot be read again"


def save_charts(run: Run, directory: Path, format: str = "svg") -> tuple[list[Path], dict[str, str]]:
    """Write the charts of a run as files. Return their paths, and for each chart that does not apply the reason."""
    import vl_convert  # imported here because it takes a second to load

    lookup(dict.fromkeys(FORMATS), format, "format")
    convert: Mapping[str, Callable[[dict[str, Any]], bytes]] = {
        "svg": lambda chart: vl_convert.vegalite_to_svg(chart).encode(),
        "png": lambda chart: vl_convert.vegalite_to_png(chart, scale=2),
        "html": lambda chart: vl_convert.vegalite_to_html(chart, bundle=True).encode(),
    }
    charts, reasons = run_charts(run)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, chart in charts.items():
        paths.append(directory / f"{name}.{format}")
        with atomic_write(paths[-1]) as file:
            file.write(convert[format](chart.to_dict()))
    return paths, reasons


def run_charts(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the Altair charts of a run by name, and for each chart that does not apply the reason."""
    draw = {
        "score-by-seconds": _score_by_seconds,
        "layers": _layers,
        "confusion": _confusion,
        "calibration": _calibration,
        "length": _by_length,
    }
    charts, reasons = {}, {}
    for name, function in draw.items():
        try:
            charts[name] = function(run, task_from_dict(run.record.task))
        except _NotApplicable as reason:
            reasons[name] = str(reason)
    return charts, reasons


class _NotApplicable(Exception):
    """Why a chart cannot be drawn of this run."""


def _score_by_seconds(run: Run, task: Task) -> Any:
    """Draw the scores of all runs on the same data by their training time."""
    tree = run.directory.resolve().parent.parent
    runs = list(find_runs(tree)) if (tree / "settings.json").is_file() else []  # elsewhere other things lie around it
    runs = [other for other in runs if other.record.task == run.record.task and other.kind in KIND_LABELS]
    if len(runs) < 2:
        raise _NotApplicable("There are no other runs on the same data.")
    rows = [
        {
            "model": _short_name(other, task),
            "kind": KIND_LABELS[other.kind],
            "seconds": other.metrics.seconds.total,
            "score": other.primary_score,
            "low": other.metrics.interval[0],
            "high": other.metrics.interval[1],
            "label": _label(other, task) if _is_labelled(other, run) else "",
        }
        for other in runs
    ]
    base = alt.Chart(alt.Data(values=rows))
    x = alt.X("seconds:Q", title="seconds of training")
    color = alt.Color("kind:N", title=None, legend=alt.Legend(symbolOpacity=1))
    rules = base.mark_rule(opacity=0.5).encode(
        x=x, y=alt.Y("low:Q", title=_metric(run), scale=alt.Scale(zero=False)), y2="high:Q", color=color
    )
    points = base.mark_point(filled=True, size=80, opacity=1).encode(x=x, y="score:Q", color=color)
    middle = max(row["seconds"] for row in rows) / 2
    sides: dict[Any, str] = {"left": f"datum.seconds <= {middle}", "right": f"datum.seconds > {middle}"}
    texts = [
        base.transform_filter(where)
        .mark_text(align=side, dx=8 if side == "left" else -8, fontSize=11)  # pyright: ignore[reportArgumentType]
        .encode(x=x, y="score:Q", text="label:N")
        for side, where in sides.items()
    ]
    return _titled(alt.layer(rules, points, *texts), f"{task.name}: score by seconds, with 95 % intervals")


KIND_LABELS = {"bert": "BERT", "head": "head", "control": "control", "ensemble": "ensemble"}


def _label(run: Run, task: Task) -> str:
    return f"{_short_name(run, task)} ({run.record.fraction:g} epochs)"


def _is_labelled(other: Run, run: Run) -> bool:
    return other.kind == "bert" or other.directory.resolve() == run.directory.resolve()


def _short_name(run: Run, task: Task) -> str:
    if members := run.members():
        return " + ".join(_short_name(member, task) for member in members)
    known = run.name.partition(":")[0] in HEADS and " + " not in run.name
    return HeadConfig.parse(run.name).label(task.example_kind) if known else run.name


def _layers(run: Run, task: Task) -> Any:
    """Draw the weights of the layers that a head has learned."""
    nearby = sorted(run.directory.resolve().parent.glob("learned*"))
    candidates = [*(run.members() or [run]), *(Run(path) for path in nearby if (path / "metrics.json").is_file())]
    for candidate in candidates:
        reads = layers_read(candidate)
        if reads["weights"]:
            names = [*map(str, reads["layers"]), *(["pooler"] if reads["pooler_output"] else [])]
            names = ["embedding" if name == "0" else name for name in names]
            rows = [{"layer": name, "weight": weight} for name, weight in zip(names, reads["weights"], strict=True)]
            chart = alt.Chart(alt.Data(values=rows)).mark_bar()
            chart = chart.encode(
                x=alt.X("layer:N", sort=None, axis=alt.Axis(labelAngle=0)), y=alt.Y("weight:Q", title="learned weight")
            )
            return _titled(chart, f"{task.name}: weights of the layers in {_short_name(candidate, task)}")
    raise _NotApplicable("Neither this head nor a head `learned` beside it has learned weights of the layers.")


def _confusion(run: Run, task: Task) -> Any:
    """Draw the counts of labels and predictions."""
    result = evaluation(task, _outcomes(run))
    if not result.confusion:
        raise _NotApplicable("A confusion matrix needs one class per text.")
    counts, classes = np.array(result.confusion), list(result.classes)[: len(result.confusion)]
    errors = counts.sum(axis=0) + counts.sum(axis=1) - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-errors, kind="stable")[:MAX_CLASSES])
    rows = [
        {"label": classes[i], "predicted": classes[j], "rows": int(counts[i, j]), "share": counts[i, j] / total}
        for i in shown
        for j in shown
        if (total := max(1, counts[i].sum()))
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("predicted:N", sort=None, axis=alt.Axis(orient="top", labelAngle=-40)), y=alt.Y("label:N", sort=None)
    )
    cells = base.mark_rect().encode(color=alt.Color("share:Q", scale=alt.Scale(scheme="blues"), legend=None))
    white = alt.condition("datum.share > 0.5", alt.value("white"), alt.value("black"))
    numbers = base.mark_text().encode(text="rows:Q", color=white)
    size = max(24, min(60, 420 // len(shown)))
    which = "" if len(shown) == len(classes) else f", the {len(shown)} classes with the most errors of {len(classes)}"
    chart = (cells + numbers).properties(width={"step": size}, height={"step": size})
    return chart.properties(title=alt.Title(f"{task.name}: labels and predictions{which}", anchor="start"))


def _calibration(run: Run, task: Task) -> Any:
    """Draw the share of correct predictions by their probability."""
    temperature, correct = run.metrics.decoding.get("temperature"), task.is_correct(_outcomes(run))
    if temperature is None or correct is None or not getattr(task, "classes", ()):
        raise _NotApplicable("Only classes have probabilities that are calibrated by a temperature.")
    probabilities = softmax(run.predictions().logits.astype(np.float64) / temperature, axis=1).max(axis=1)
    if len(probabilities) != len(correct):
        raise _NotApplicable("The run has several predictions per text.")
    bins = np.minimum((probabilities * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    rows = [
        {
            "probability": probabilities[bins == i].mean(),
            "correct": correct[bins == i].mean(),
            "rows": int(sum(bins == i)),
        }
        for i in np.unique(bins)
    ]
    low = min(0.5, *(row["probability"] for row in rows), *(row["correct"] for row in rows))
    scale = alt.Scale(domain=[round(float(low), 1), 1])
    x = alt.X("probability:Q", title="probability of the predicted class", scale=scale)
    y = alt.Y("correct:Q", title="share that is right", scale=scale)
    ends = [{"probability": end, "correct": end} for end in scale.domain]  # pyright: ignore[reportAttributeAccessIssue, reportGeneralTypeIssues]
    diagonal = alt.Chart(alt.Data(values=ends)).mark_line(strokeDash=[4, 4], color="gray").encode(x=x, y=y)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    size = alt.Size("rows:Q", title="rows", scale=alt.Scale(range=[20, 400]))
    chart = diagonal + base.mark_line(opacity=0.5) + base.mark_point(filled=True, opacity=1).encode(size=size)
    return _titled(chart, f"{task.name}: calibration (on the dashed line, probabilities are right)")


def _by_length(run: Run, task: Task) -> Any:
    """Draw how good the answers are by the number of words of the texts."""
    outcomes = _outcomes(run)
    try:
        examples = pipeline.dev_examples(pipeline.experiment_of(run))
    except BertVisionError as error:
        raise _NotApplicable(f"{MISSING}: {error}") from None
    if len(examples) != len(outcomes):
        raise _NotApplicable(f"{MISSING}: there are {len(examples):,} of them instead of {len(outcomes):,}.")
    words = np.array([sum(len(text.split()) for text in example.texts) for example in examples])
    correct = task.is_correct(outcomes)
    title = "share that is right"
    values = correct if correct is not None else np.abs(outcomes[:, 0] - outcomes[:, 1])
    if correct is None:
        title = "mean absolute error"
    edges = np.unique(np.quantile(words, np.arange(1, LENGTH_BINS) / LENGTH_BINS))
    bins = np.searchsorted(edges, words)
    rows = []
    for part in (np.flatnonzero(bins == number) for number in np.unique(bins)):
        mean, half = values[part].mean(), 1.96 * values[part].std() / max(1, len(part)) ** 0.5
        ends = {"low": max(0.0, mean - half), "high": mean + half if correct is None else min(1.0, mean + half)}
        rows.append({"words": f"{words[part].min()}-{words[part].max()}", "y": mean, **ends})
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("words:N", sort=None, title="words of the text", axis=alt.Axis(labelAngle=0))
    )
    bars = base.mark_bar().encode(y=alt.Y("y:Q", title=title))
    return _titled(bars + base.mark_rule().encode(y="low:Q", y2="high:Q"), f"{task.name}: answers by length")


def _outcomes(run: Run) -> np.ndarray:
    """Return how each scored row was answered."""
    if not (run.directory / "outcomes.npy").is_file():
        raise _NotApplicable("The predictions of a shared or exported run are not saved.")
    return run.outcomes()


def _metric(run: Run) -> str:
    return run.metrics.primary_metric.replace("_", " ")


def _titled(chart: Any, title: str) -> Any:
    return chart.properties(title=title, width=WIDTH, height=HEIGHT)
