"""Notices about the data: texts that are cut, few rows, rows in two splits, the same answer to all rows."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from bertvision.tasks import Example, Task, TextTask
from bertvision.types import Features

logger: logging.Logger = logging.getLogger(__name__)

FEW_ROWS = 20
"""A training set with fewer rows gets a warning."""


def count_truncated(features: Features) -> int:
    """Return the number of examples whose text was cut."""
    if features.truncated is None:
        return 0
    return len({id for id, cut in zip(features.example_ids, features.truncated, strict=True) if cut})


def warn_truncated(splits: Mapping[str, Features], max_tokens: int, advice: str = "") -> None:
    """Log how many texts of each split are longer than `max_tokens` and are cut."""
    counts = {name: (count_truncated(features), len(set(features.example_ids))) for name, features in splits.items()}
    cut = [f"{count:,} of {total:,} {name} texts" for name, (count, total) in counts.items() if count]
    if cut:
        are = "is" if sum(count for count, _ in counts.values()) == 1 else "are"
        logger.warning(f"{', '.join(cut)} {are} longer than {max_tokens} tokens and cut there. {advice}".strip())


def warn_data(
    task: Task, train: Sequence[Example], validation: Sequence[Example], dev: Sequence[Example] | None
) -> None:
    """Log what makes scores unreliable: few training rows, a class that is missing, rows in two splits."""
    if len(train) < FEW_ROWS:
        logger.warning(f"There are only {len(train)} training rows and {len(validation)} to choose on.")
    classes = getattr(task, "classes", ()) if isinstance(task, TextTask) else ()
    if classes and not task.independent_outputs:
        counts = Counter(example.label for example in train)
        missing = [name for index, name in enumerate(classes) if not counts[index]]
        if missing:
            logger.warning(f"No training row is left of {len(missing)} of {len(classes)} classes, e.g. {missing[0]!r}.")
    known = {example.texts for example in train}
    for name, examples in (("validation", validation), ("dev", dev or ())):
        shared = sum(example.texts in known for example in examples)
        if examples and shared == len(examples):
            logger.warning(f"All {shared:,} {name} rows are also training rows, so their scores say nothing.")
        elif shared:
            logger.warning(f"{shared:,} of {len(examples):,} {name} rows have the texts of a training row.")


def warn_one_answer(task: Task, outcomes: np.ndarray, name: str) -> None:
    """Log that a classifier gives the same answer to all rows, whose labels differ."""
    if not isinstance(task, TextTask) or not task.classes or task.independent_outputs or len(outcomes) < 2:
        return
    labels, predicted = outcomes[:, 0].astype(int), outcomes[:, 1].astype(int)
    if len(np.unique(predicted)) == 1 and len(np.unique(labels)) > 1:
        answer = task.classes[predicted[0]]
        share = 100 * float(np.mean(labels == predicted[0]))
        logger.warning(
            f"{name} answers {answer!r} for all {len(outcomes):,} rows, of which {share:.0f} % have this label. More "
            "training, balanced class weights, or the metric macro_f1 may help."
        )
