"""Write predictions in the formats of the official GLUE and SQuAD 2.0 leaderboards."""

import json
from pathlib import Path
from typing import Any

from bertvision import pipeline
from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.lab.reports.diagnostics import TEXTS
from bertvision.runs import Run, open_run
from bertvision.tasks import read_table
from bertvision.trained_model import TrainedModel

# File names that the GLUE server expects.
GLUE_FILES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI-m",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}
DIAGNOSTIC = "AX"
"""The file of the answers of an mnli model to the diagnostic set."""


def write_submission(run: Path, out: Path, file: Path | None = None) -> list[Path]:
    """Write the predictions of a run for the official test file and return the files written.

    Without `file`, the saved predictions for dev are written; only SQuAD 2.0 allows that.
    """
    opened = open_run(run)
    model = TrainedModel(opened)
    if model.task.kind == "squad" and model.task.per_token:
        return _write_squad(opened, model, out, file)
    name = model.task.name
    if name not in GLUE_FILES:
        raise BertVisionError(
            f"Submissions exist for the tasks of GLUE and for squad2, got {name!r}. "
            "`bertvision predict` works for every task."
        )
    if file is None:
        raise BertVisionError("Name the official test file of a GLUE task: --file glue/.../test.tsv.")
    table = read_table(file)
    description = model.task.to_dict()
    is_diagnostic = name == "mnli" and (file.stem == DIAGNOSTIC or file.stem.startswith("diagnostic"))
    columns = TEXTS if is_diagnostic and set(TEXTS) <= set(table.columns) else description["texts"]
    texts = [values for _, values in table.pick(columns)]
    indices = [values[0] for _, values in table.pick(["index"])] if "index" in table.columns else range(len(texts))
    answers = model.predict([row[0] if len(row) == 1 else tuple(row) for row in texts])
    lines = ["index\tprediction"]
    lines += [
        f"{index}\t{_format_prediction(description, answer)}" for index, answer in zip(indices, answers, strict=True)
    ]
    title = "MNLI-mm" if name == "mnli" and "mismatched" in file.name else GLUE_FILES[name]
    title = DIAGNOSTIC if is_diagnostic else title
    return [_write(out / f"{title}.tsv", "\n".join(lines) + "\n")]


def _format_prediction(description: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return a class by name or by number, as the data set writes it, or a score clipped to 0 to 5."""
    if "label" not in answer:
        return f"{min(max(answer['score'], 0.0), 5.0):.3f}"
    return str(description["classes"].index(answer["label"])) if description["numbered"] else answer["label"]


def _write_squad(run: Run, model: TrainedModel, out: Path, file: Path | None) -> list[Path]:
    """Write the answers by question id, and the probabilities that there is no answer."""
    if file is None:
        dev = pipeline.prepare(pipeline.experiment_of(run)).dev
        presented = model.task.format_answers(run.predictions(), dev.features, run.metrics.decoding)
    else:
        examples = model.task.read(file)
        answers = model.predict([{"question": each.texts[0], "context": each.texts[1]} for each in examples])
        presented = dict(zip((example.id for example in examples), answers, strict=True))
    texts = {id: answer["answer"] for id, answer in presented.items()}
    null_probabilities = {id: answer["null_probability"] for id, answer in presented.items()}
    return [
        _write(out / "predictions.json", json.dumps(texts, ensure_ascii=False, indent=1) + "\n"),
        _write(out / "na_prob.json", json.dumps(null_probabilities, indent=1) + "\n"),
    ]


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as file:
        file.write(text.encode())
    return path
