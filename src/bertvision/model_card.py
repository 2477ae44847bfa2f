"""The model card of a shared run: a README.md with the metadata that the Hugging Face Hub reads."""

import json
from typing import Any

from bertvision.encoders import ENCODERS
from bertvision.runs import Run

KINDS = {
    "bert": "an encoder that was fine-tuned with its own classification head",
    "head": "a small head on the hidden states of all layers of a fine-tuned encoder",
    "control": "a control model: a head that was trained for comparison with others",
    "ensemble": "an ensemble of heads on fine-tuned encoders",
}

LICENSES = {
    "sentence-transformers/all-MiniLM-L6-v2": "apache-2.0",
    "google-bert/bert-base-uncased": "apache-2.0",
    "google-bert/bert-large-uncased": "apache-2.0",
    "FacebookAI/roberta-base": "mit",
    "distilbert/distilbert-base-uncased": "apache-2.0",
    "google/electra-base-discriminator": "apache-2.0",
    "albert/albert-base-v2": "apache-2.0",
    "microsoft/deberta-v3-base": "mit",
    "answerdotai/ModernBERT-base": "apache-2.0",
}
"""The licences of encoders, as their model cards state them."""


def model_card(run: Run, *, with_encoder: bool) -> str:
    """Return the model card of a run as Markdown with YAML metadata."""
    task = run.record.task
    lines = [
        *_metadata(run),
        "",
        f"# {task['name']}: {run.name}",
        "",
        f"{task['summary']} This model is {KINDS.get(run.kind, KINDS['head'])}. It was trained with bertvision.",
        "",
        *_usage(task),
        "",
        *_evaluation(run),
        "",
        *_training(run, with_encoder=with_encoder),
        "",
        "## Limitations",
        "",
        "The scores hold for data like the training data. Evaluate the model on your own data before you rely on it.",
        f"Inputs are truncated or split after {run.record.max_tokens} tokens.",
        "",
        "## Licence",
        "",
        _license_sentence(run),
    ]
    return "\n".join(lines) + "\n"


def pipeline_tag(task: dict[str, Any]) -> str:
    """Return the Hub's name for the type of a task."""
    if task["kind"] == "squad":
        return "text-classification" if task["answerable"] else "question-answering"
    if task["kind"] == "tokens":
        return "token-classification"
    is_pair_regression = len(task.get("texts", ())) == 2 and not task.get("classes")
    return "sentence-similarity" if is_pair_regression else "text-classification"


def _base_model(run: Run) -> tuple[str, bool]:
    """Return the name of the pretrained encoder, and whether it is a name on the Hub."""
    encoder = (run.members() or [run])[0].record.encoder
    entry = ENCODERS.get(encoder)
    if entry:
        return entry.hub or encoder, bool(entry.hub)
    if encoder.startswith(("/", ".", "~")):
        return encoder.rstrip("/").rsplit("/", 1)[-1], False
    return encoder, True


def _license_sentence(run: Run) -> str:
    base_model, _ = _base_model(run)
    if base_model in LICENSES:
        return f"The encoder, {base_model}, has the licence {LICENSES[base_model]}. The weights here derive from it."
    return f"The weights here derive from the encoder {base_model}. Its licence applies; see its model card."


def _validation_only(run: Run) -> bool:
    """Whether there was no scored split apart from validation, as in models that estimators train."""
    data = run.record.settings.get("data", {})
    return not data.get("dev_file") and run.metrics.scores == run.metrics.validation_scores


def _metadata(run: Run) -> list[str]:
    """Return the YAML block. Names are quoted as JSON strings, which are valid YAML."""
    task, scores = run.record.task, run.metrics.scores
    base_model, on_hub = _base_model(run)
    name, tag = json.dumps(task["name"]), pipeline_tag(task)
    return [
        "---",
        "library_name: bertvision",
        f"pipeline_tag: {tag}",
        *([f"base_model: {base_model}"] if on_hub else []),
        *([f"license: {LICENSES[base_model]}"] if base_model in LICENSES else []),
        "tags:",
        "- bertvision",
        f"- {name}",
        "metrics:",
        *(f"- {metric}" for metric in scores),
        "model-index:",
        f"- name: {name}",
        "  results:",
        "  - task:",
        f"      type: {tag}",
        "    dataset:",
        f"      name: {name}",
        f"      type: {name}",
        f"      split: {'validation' if _validation_only(run) else 'dev'}",
        "    metrics:",
        *(line for metric, value in scores.items() for line in (f"    - type: {metric}", f"      value: {value:.2f}")),
        "---",
    ]


def _usage(task: dict[str, Any]) -> list[str]:
    if task["kind"] == "squad":
        example = '("Who wrote it?", "It was written by Ann in Rome.")'
    else:
        example = '("one text", "another text")' if len(task.get("texts", ())) > 1 else '"a text"'
    return [
        "## Usage",
        "",
        "```python",
        "from bertvision import TrainedModel",
        "",
        'model = TrainedModel.from_pretrained("path/to/this/directory")',
        f"model.predict({example})",
        "```",
    ]


def _evaluation(run: Run) -> list[str]:
    metrics = run.metrics
    primary, (low, high) = metrics.primary_metric, metrics.interval
    validation, calibration = metrics.validation_scores, metrics.calibration
    if _validation_only(run):
        return [
            "## Evaluation",
            "",
            f"The {primary} on the validation rows is {metrics.scores[primary]:.2f} (95 % bootstrap interval over the "
            f"rows: {low:.2f} to {high:.2f}). The head was chosen on the same rows, so the score is optimistic.",
            "",
            "| metric | validation |",
            "|---|---:|",
            *(f"| {metric} | {value:.2f} |" for metric, value in metrics.scores.items()),
        ]
    return [
        "## Evaluation",
        "",
        f"The {primary} on the dev split is {metrics.scores[primary]:.2f} (95 % bootstrap interval over its rows: "
        f"{low:.2f} to {high:.2f}).",
        "",
        "| metric | dev | validation |",
        "|---|---:|---:|",
        *(
            f"| {metric} | {value:.2f} | {f'{validation[metric]:.2f}' if metric in validation else ''} |"
            for metric, value in metrics.scores.items()
        ),
        *(f"| {error} (calibration error, %) | {value:.2f} | |" for error, value in calibration.items()),
    ]


def _training(run: Run, *, with_encoder: bool) -> list[str]:
    record, first = run.record, (run.members() or [run])[0]
    settings = record.settings
    data = settings.get("data", {})
    rows, dev_rows = data.get("limit", 0), data.get("limit_dev", 0)
    included = "included" if with_encoder else "not included; pass its directory as `encoder` to `from_pretrained`"
    return [
        "## Training",
        "",
        f"- Encoder: {_base_model(run)[0]}, fine-tuned for {record.fraction:g} epochs ({included}).",
        f"- SHA-256 of the encoder's weights: `{first.record.encoder_hash}`. Other weights are refused.",
        f"- Head: `{run.name}`, {run.metrics.parameters:,} parameters.",
        f"- Maximum length: {record.max_tokens} tokens per window.",
        f"- Data: {f'a random sample of {rows:,} rows' if rows else 'all rows'} of the train split, "
        f"{f'{dev_rows:,} rows' if dev_rows else 'all rows'} of the dev split.",
        f"- Seed: {settings.get('seed', 0)}. Epoch, learning rate and thresholds were selected on validation rows held "
        "out of the train split. The dev split was evaluated once.",
    ]
