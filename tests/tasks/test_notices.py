"""Notices about texts that are cut."""

import numpy as np

from bertvision.inputs import warn_truncated
from bertvision.tasks import Example, TextTask

from .synthetic import wordpiece


def test_texts_that_are_cut_are_counted(messages):
    task = TextTask(name="t", summary="", texts=("text",), classes=("a", "b"), metrics=("accuracy",))
    examples = [Example(id=str(n), texts=("the cat sat " * n,), label=0) for n in range(1, 9)]
    features = task.encode(examples, wordpiece(), 12)
    assert np.count_nonzero(features.lengths == 12) == 5
    warn_truncated({"training": features}, 12)
    assert messages == ["5 of 8 training texts are longer than 12 tokens and cut there."]
