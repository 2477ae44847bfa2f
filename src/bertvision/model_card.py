"""The card of a shared run: what it is, how good it is, how that was measured, how to use it."""

from typing import Any

from bertvision.encoders import ENCODERS
from bertvision.records import KINDS
from bertvision.runs import Run


def card(run: Run, *, with_encoder: bool) -> str:
    """Return the model card of a run as Markdown with a header that the Hub reads."""
    task, metrics = run.record.task, run.metrics
    first = (run.members() or [run])[0]
    encoder = first.record.encoder
    known = ENCODERS.get(encoder)
    base = known.hub if known else encoder.rstrip("/").rsplit("/", 1)[-1] if encoder.startswith("/") else encoder
    settings = run.record.settings
    low, high = metrics.interval
    primary = metrics.primary_metric
    scores = [f"| {key} | {value:.2f} |" for key, value in metrics.scores.items()]
    validation = [f"| {key}, validation | {value:.2f} |" for key, value in metrics.validation_scores.items()]
    calibration = [f"| {key} (expected, in %) | {value:.2f} |" for key, value in metrics.calibration.items()]
    where = "with it" if with_encoder else "not in this directory: name it when you load the head"
    header = ["---", "library_name: bertvision", f"pipeline_tag: {pipeline_tag(task)}", f"base_model: {base}"]
    header += ["tags:", "- bertvision", f"- {task['name']}", "---"]
    lines = [
        f"# {task['name']}: {run.name}",
        "",
        f"{task['summary']} This is {KINDS[run.kind]}, made with bertvision.",
        "",
        "## Scores",
        "",
        f"{primary} {metrics.scores[primary]:.2f} on dev, 95 % of bootstrap samples of its rows within "
        f"{low:.2f} - {high:.2f}.",
        "",
        "| score | value |",
        "|---|---:|",
        *scores,
        *validation,
        *calibration,
        "",
        "## Protocol",
        "",
        f"- Backbone: {base}, fine-tuned for {run.record.fraction:g} epochs; {where}.",
        f"- SHA-256 of its weights: `{first.record.encoder_hash}`. Loading with any other is refused.",
        f"- Parameters: {metrics.parameters:,}. At most {run.record.max_tokens} tokens a window.",
        f"- One seed ({settings.get('seed', 0)}). Epoch, learning rate and thresholds were chosen on rows held out of "
        "train; dev was predicted once.",
        f"- Rows: {_rows(settings)}.",
        "",
        "## Use",
        "",
        "```python",
        "import bertvision",
        "",
        'predictor = bertvision.load("this directory")',
        f"print(predictor.predict({_sample(task)}))",
        "```",
        "",
        "Answers are only as good as the data were like yours; measure on your own before you rely on them.",
    ]
    return "\n".join([*header, "", *lines]) + "\n"


def pipeline_tag(task: dict[str, Any]) -> str:
    """Return the Hub's word for what a task does."""
    if task["kind"] == "squad":
        return "text-classification" if task["answerable"] else "question-answering"
    return "text-classification" if task["classes"] else "sentence-similarity"


def _rows(settings: dict[str, Any]) -> str:
    data = settings.get("data", {})
    limit, dev = data.get("limit", 0), data.get("limit_dev", 0)
    return f"{f'{limit:,} drawn at random' if limit else 'all'} of train, {f'{dev:,}' if dev else 'all'} of dev"


def _sample(task: dict[str, Any]) -> str:
    if task["kind"] == "squad":
        return '("Who wrote it?", "It was written by Ann in Rome.")'
    return '("one text", "another text")' if len(task["texts"]) > 1 else '"a text"'
