"""Predictions as official scorers and leaderboards take them."""

import json
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.files import atomic_write
from bertvision.lab import pipeline
from bertvision.runs import Run, open_run
from bertvision.tasks import read_table
from bertvision.trained_model import TrainedModel

# What the GLUE server calls each task's file.
NAMES = {
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


def write_submission(run: Path, out: Path, file: Path | None = None) -> list[Path]:
    """Write a run's answers to `file`, or to dev; return the files written."""
    found = open_run(run)
    predictor = TrainedModel(found)
    if predictor.task.kind == "squad" and predictor.task.per_token:
        return _squad(found, predictor, out, file)
    name = predictor.task.name
    if name not in NAMES:
        raise BertVisionError(
            f"GLUE and SQuAD 2.0 have leaderboards; {name!r} is neither. `bertvision predict` answers."
        )
    if file is None:
        raise BertVisionError("Name the official test file: --file glue/.../test.tsv.")
    table = read_table(file)
    description = predictor.task.to_dict()
    texts = [values for _, values in table.pick(description["texts"])]
    indices = [values[0] for _, values in table.pick(["index"])] if "index" in table.columns else range(len(texts))
    answers = predictor.predict([row[0] if len(row) == 1 else tuple(row) for row in texts])
    lines = ["index\tprediction"]
    lines += [f"{index}\t{_word(description, answer)}" for index, answer in zip(indices, answers, strict=True)]
    title = "MNLI-mm" if name == "mnli" and "mismatched" in file.name else NAMES[name]
    return [_write(out / f"{title}.tsv", "\n".join(lines) + "\n")]


def _word(description: dict[str, Any], answer: dict[str, Any]) -> str:
    """A class by name or number, as its data set has it; a score within its range."""
    if "label" not in answer:
        return f"{min(max(answer['score'], 0.0), 5.0):.3f}"
    return str(description["classes"].index(answer["label"])) if description["numbered"] else answer["label"]


def _squad(run: Run, predictor: TrainedModel, out: Path, file: Path | None) -> list[Path]:
    """Answers by question id, and the probability that there is none."""
    if file is None:
        dev = pipeline.load_data(pipeline.experiment_of(run)).dev
        shown = predictor.task.format_answers(run.predictions(), dev.features, run.metrics.decoding)
    else:
        examples = predictor.task.read(file)
        answers = predictor.predict([{"question": e.texts[0], "context": e.texts[1]} for e in examples])
        shown = dict(zip((example.id for example in examples), answers, strict=True))
    texts = {id: answer["answer"] for id, answer in shown.items()}
    chances = {id: answer["null_probability"] for id, answer in shown.items()}
    return [
        _write(out / "predictions.json", json.dumps(texts, ensure_ascii=False, indent=1) + "\n"),
        _write(out / "na_prob.json", json.dumps(chances, indent=1) + "\n"),
    ]


def _write(path: Path, text: str) -> Path:
    with atomic_write(path) as file:
        file.write(text.encode())
    return path
