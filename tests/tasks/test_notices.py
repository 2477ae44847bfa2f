"""What would silently go wrong is said: joined labels, and texts that are cut."""

import numpy as np
import pytest

from bertvision.errors import BertVisionError
from bertvision.inputs import task_from_files, warn_truncated
from bertvision.inputs.label_lists import find_separator
from bertvision.tasks import Example, TextTask, UserFiles

from .synthetic import wordpiece


@pytest.mark.parametrize(
    ("labels", "separator"),
    [
        (["4,27", "3", "4"], ","),
        (["a;b", "a", "b;c"], ";"),
        (["a|b", "b|a", "c|a", "c|b"], "|"),
        (["Paris, France", "Rome, Italy"], ""),
        (["good", "bad"], ""),
        (["Smith, J.", "Smith, A.", "Jones, B."], ""),
    ],
)
def test_labels_that_seem_joined_are_recognised(labels, separator):
    assert find_separator(labels) == separator


def test_joined_labels_are_a_question_not_classes(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text("text\tlabel\n" + "".join(f"text\t{cell}\n" for cell in ("a;b", "a", "b")))
    with pytest.raises(BertVisionError, match="seems to hold several labels per text.*--kind classification"):
        task_from_files(UserFiles(train=str(path)))
    task = task_from_files(UserFiles(train=str(path)), kind="classification")
    assert isinstance(task, TextTask) and len(task.classes) == 3


def test_texts_that_are_cut_are_counted(messages):
    task = TextTask(name="t", summary="", texts=("text",), classes=("a", "b"), metrics=("accuracy",))
    examples = [Example(id=str(n), texts=("the cat sat " * n,), label=0) for n in range(1, 9)]
    features = task.encode(examples, wordpiece(), 12)
    assert np.count_nonzero(features.lengths == 12) == 5
    warn_truncated({"training": features}, 12)
    assert messages == ["5 of 8 training texts are longer than 12 tokens and cut there."]
