"""Scoring of SQuAD prediction files in the official format."""

from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.files import read_json
from bertvision.tasks.metrics import best_threshold
from bertvision.tasks.reading import read_squad
from bertvision.tasks.squad import compare_all, span_metrics


def score_file(
    data_path: str | Path, predictions_path: str | Path, na_probabilities: str | Path | None = None
) -> dict[str, Any]:
    """Return exact match and F1 in percent. `ignored` is the number of predictions for unknown questions.

    With `na_probabilities`, {id: score of "no answer"}, the result also has `best_possible_*`: the scores of the best
    threshold on these values. The threshold is chosen on the scored set, so they are upper bounds.
    """
    examples = read_squad(Path(data_path))
    ids = [example.id for example in examples]
    texts = _values(Path(predictions_path), "predictions", str, ids)
    outcomes = compare_all(texts, examples)
    scores: dict[str, Any] = span_metrics(outcomes)
    scores |= {"total": len(examples), "ignored": len(set(texts).difference(ids))}
    scores |= {"HasAns_total": int(outcomes[:, 2].sum()), "NoAns_total": int((1 - outcomes[:, 2]).sum())}
    if na_probabilities is not None:
        values = _values(Path(na_probabilities), "no-answer scores", (int, float), ids)
        no_answer_scores, nulled = np.array([values[id] for id in ids], dtype=np.float64), 1 - outcomes[:, 2]
        for column, key in enumerate(("exact", "f1")):
            threshold, best = best_threshold(no_answer_scores, outcomes[:, column], nulled)
            scores[f"best_possible_{key}"], scores[f"best_possible_{key}_threshold"] = 100.0 * best, threshold
    return scores


def _values(path: Path, name: str, value_type: Any, ids: list[str]) -> dict[str, Any]:
    values = read_json(path, f"file of {name}")
    if not isinstance(values, dict):
        raise BertVisionError(f"{path} must be a JSON object from question id to value, got a {type(values).__name__}.")
    missing = [id for id in ids if id not in values]
    if missing:
        raise BertVisionError(f"{path} lacks {len(missing):,} of {len(ids):,} questions, e.g. {missing[0]!r}.")
    for id, value in values.items():
        if not isinstance(value, value_type) or isinstance(value, bool):
            expected = "a text" if value_type is str else "a number"
            raise BertVisionError(f"{path}: the value of question {id!r} must be {expected}, got {value!r}.")
    return values
