"""Rows as they are: all that cannot be used are listed at once, or skipped; other separators and encodings."""

import pytest

from bertvision.errors import BertVisionError
from bertvision.inputs import task_from_files, warn_data, warn_one_answer
from bertvision.tasks import DataRequest, UserFiles
from bertvision.tasks.reading import read_table

GOOD = [("a cat", "x"), ("a dog", "y"), ("a mat", "x"), ("a house", "y")] * 6
BAD = [("", "x"), ("a cat", ""), ("  ", "y")]


def write(path, rows, separator=",", encoding="utf-8"):
    lines = [separator.join(row) for row in [("text", "label"), *rows]]
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return str(path)


def test_bad_rows_are_listed_at_once(tmp_path):
    path = write(tmp_path / "own.csv", GOOD[:2] + BAD + GOOD[2:])
    with pytest.raises(BertVisionError) as caught:
        task_from_files(UserFiles(train=path))
    text = str(caught.value)
    assert "own.csv: 3 of 27 rows cannot be used." in text and "--skip-bad" in text
    assert "line 4: column 'text' holds ''" in text and "line 5: column 'label' is empty" in text and "line 6:" in text
    dev = write(tmp_path / "dev.csv", [*GOOD[:3], ("a cat", "z"), ("", "x")])
    with pytest.raises(BertVisionError, match=r"dev.csv: 2 of 5 rows(?s:.*)line 5: the label is 'z'(?s:.*)line 6"):
        task_from_files(UserFiles(train=write(tmp_path / "good.csv", GOOD), dev=dev))


def test_bad_rows_are_skipped_if_told_so(tmp_path, messages):
    path = write(tmp_path / "own.csv", GOOD[:2] + BAD + GOOD[2:])
    dev = write(tmp_path / "dev.csv", [*GOOD[:3], ("a cat", "z"), ("", "x")])
    task = task_from_files(UserFiles(train=path, dev=dev, skip_bad=True))
    assert any("3 of 27 rows cannot be used" in text and "They are skipped." in text for text in messages)
    assert any("2 of 5 rows cannot be used" in text for text in messages)
    data = task.load(DataRequest())
    assert len(data.train) == 24 and len(data.dev) == 3 and task.classes == ("x", "y")
    with pytest.raises(BertVisionError, match="no row is left"):
        task_from_files(UserFiles(train=write(tmp_path / "none.csv", BAD), skip_bad=True))


def test_other_separators_and_encodings_are_read_or_named(tmp_path):
    for separator in ";\t":
        assert read_table(tmp_path / write(tmp_path / "own.csv", GOOD, separator)).columns == ["text", "label"]
    assert len(read_table(tmp_path / write(tmp_path / "own.csv", [("a; b", "x"), ("é", "y")])).rows) == 2
    assert read_table(tmp_path / write(tmp_path / "wide.csv", [("é", "y")], encoding="utf-16")).rows == [["é", "y"]]
    with pytest.raises(BertVisionError, match=r"line 2: not valid UTF-8, perhaps Windows-1252"):
        read_table(tmp_path / write(tmp_path / "latin.csv", [("é", "y")], encoding="cp1252"))


def test_unreliable_data_get_a_warning(tmp_path, messages):
    task = task_from_files(UserFiles(train=write(tmp_path / "own.csv", GOOD)))
    train = task.load(DataRequest()).train
    messages.clear()
    warn_data(task, train[:3], train[3:5], train[:3])
    assert any("only 3 training rows" in text for text in messages)
    assert any("All 3 dev rows are also training rows" in text for text in messages)
    messages.clear()
    warn_data(task, [example for example in train if example.label == 0] * 3, [], [])
    assert any("No training row is left of 1 of 2 classes, e.g. 'y'." in text for text in messages)
    messages.clear()
    warn_one_answer(task, task.outcomes({example.id: 0 for example in train}, train), "default")
    assert len(messages) == 1 and "answers 'x' for all" in messages[0]
    messages.clear()
    warn_one_answer(task, task.outcomes({example.id: example.label for example in train}, train), "default")
    assert messages == []
