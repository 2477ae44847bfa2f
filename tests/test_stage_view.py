"""The live view of runs: its table on terminals, its lines elsewhere, and the stages that the pipeline reports."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

import bertvision
from bertvision import TextClassifier, progress, run_stages, stage_view
from bertvision.progress import bar
from bertvision.run_stages import ExpectedStage, StageListener, add_note, add_score, expect_stages, listened_by, stage
from bertvision.stage_view import RunView, duration

SETTINGS = {"heads": ["learned"], "fractions": [0.5, 1.0], "train": {"epochs": 2}}


class Recorder(StageListener):
    """Keeps what it is told."""

    def __init__(self):
        self.expected, self.begun, self.ended, self.notes, self.scores = [], [], 0, [], {}

    def expect_stages(self, stages):
        self.expected = stages

    def begin_stage(self, title):
        self.begun.append(title)

    def end_stage(self):
        self.ended += 1

    def add_note(self, note):
        self.notes.append(note)

    def add_score(self, name, score):
        self.scores[name] = score


class FakeTime:
    """A clock that tests set."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(stage_view.time, "monotonic", lambda: self.now)


@pytest.fixture
def terminal(monkeypatch):
    """Let stderr be a terminal on which the table is shown at once."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # or rich sees that stderr is captured
    monkeypatch.setattr(progress, "can_show_bars", lambda console: True)


def shown(view, width):
    """Return the lines of the table on a terminal of this width."""
    file = io.StringIO()
    view.console = Console(file=file, width=width, force_terminal=False)
    view.console.print(view.render())
    return file.getvalue().rstrip("\n").split("\n")


def test_the_stages_that_run_are_those_that_were_expected(tiny, reviews, tmp_path):
    recorder = Recorder()
    with listened_by(recorder):
        result = bertvision.run(train_file=str(reviews), encoder=str(tiny), task="reviews", root=tmp_path, **SETTINGS)
    expected = [each.title for each in recorder.expected]
    assert recorder.begun == ["read the rows", *expected] and recorder.ended == len(recorder.begun)
    assert "train 3 heads and controls after 0.5 epochs" in expected and expected[-1] == "score after 1 epoch"
    assert [each.work > 0 for each in recorder.expected] == [True, True, True, True, False, False, True]
    head = next(run for run in result.runs if run.name == "learned" and run.kind == "head")
    assert recorder.scores["learned"] <= head.validation_score[0] + 100 and "BERT" in recorder.scores
    again = Recorder()
    with listened_by(again):
        bertvision.run(train_file=str(reviews), encoder=str(tiny), task="reviews", root=tmp_path, **SETTINGS)
    assert again.notes == ["found on disk"] and "train 3 heads and controls after 0.5 epochs" not in again.begun


def test_without_a_terminal_there_are_lines(cli, tiny, reviews, tmp_path):
    words = ["--train-file", reviews, "--encoder", tiny, "--task", "reviews", "--heads", "learned", "--fractions", "1"]
    code, out, err = cli("run", *words, "--set", "train.epochs=1", "--runs", tmp_path / "runs")
    lines = err.splitlines()
    assert code == 0, err
    assert "\x1b" not in err and "to do: read the rows; fine-tune" in err and "Next:" in out
    titles = ["read the rows", "fine-tune", "read hidden states", "train 3 heads", "predict", "score", "combine"]
    ended = [line for line in lines if re.match(r" *\d+\.\d s  .* in \d", line)]
    assert [title in line for title, line in zip(titles, ended, strict=True)] == [True] * 7
    assert any(re.search(r", validation \d+\.\d \(learned\)$", line) for line in ended)
    code, out, err = cli("run", *words, "--set", "train.epochs=1", "--runs", tmp_path / "runs", "--json")
    assert code == 0 and " s  " not in err


def test_long_work_is_reported_where_there_is_no_table(monkeypatch, capsys):
    time = FakeTime(monkeypatch)
    with RunView(), stage("train"), bar("steps", total=100) as advance:
        for _ in range(30):
            time.now += 1
            advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  11.0 s  train: 11/100, about 89 s left" and len(lines) == 3
    assert lines[-1] == "  30.0 s  train in 30.0 s"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_names_what_is_done_running_and_to_come(monkeypatch, width):
    time = FakeTime(monkeypatch)
    with RunView(silent=True, lines=False) as view:
        expect_stages(
            [
                ExpectedStage(title="read the rows"),
                ExpectedStage(title="fine-tune minilm for 1 epoch", work=30),
                ExpectedStage(title=f"read {'hidden ' * 20}states", work=10),
                *(ExpectedStage(title=f"score {number}", work=1) for number in range(10)),
            ]
        )
        with stage("read the rows"):
            time.now += 2
        assert view.seconds_left is None and "left" not in view.footer()
        assert shown(view, width)[1].split() == "now 0 s fine-tune minilm for 1 epoch".split()
        with stage("fine-tune minilm for 1 epoch"):
            view.follow("fine-tune", 0, 120)
            time.now += 15
            view.follow("fine-tune", 60, 120)
            assert view.seconds_left == pytest.approx(15 + 20)  # half a second for each unit of work
            view.follow("validate", 3, 10)
            lines = shown(view, width)
            assert "60/120 (validate 3/10)" in lines[1] and "now" in lines[1] and lines[0].startswith("done")
            view.follow("fine-tune", 61, 120)
            assert "validate" not in "".join(shown(view, width))
            add_score("learned", 70.0)
            add_score("adapter", 69.0)
            time.now += 5
        lines = shown(view, width)
    assert max(map(len, lines)) <= width and any("…" in line for line in lines) and "and 2 more" in lines[-2]
    assert lines[-1].startswith("22 s, about ") and "best validation score so far 70.0 (learned)." in lines[-1]


def test_what_is_found_on_disk_is_no_measure_of_speed(monkeypatch, capsys):
    time = FakeTime(monkeypatch)
    with RunView() as view:
        expect_stages([ExpectedStage(title="fine-tune", work=30), ExpectedStage(title="score", work=1)])
        with stage("fine-tune"):
            time.now += 2
            add_note("found on disk")
        assert view.seconds_left is None
    assert "fine-tune in 2.0 s, found on disk" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_terminals_without_a_table(terminal, monkeypatch, capsys, name, value):
    with RunView() as view:
        assert view.is_live
    monkeypatch.setenv(name, value)
    capsys.readouterr()
    with RunView() as view, stage("work"):
        assert not view.is_live
    assert capsys.readouterr().err == "   0.0 s  work in 0.0 s\n"


def test_an_exception_ends_the_view_and_bars_are_shown_again(terminal, capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    with pytest.raises(KeyboardInterrupt), RunView(), stage("work"):
        raise KeyboardInterrupt
    assert "\x1b[?25h" in capsys.readouterr().err  # the cursor is visible
    with stage("nobody listens"), bar("a bar", total=2) as advance:
        advance(1)
    add_note("nobody listens")
    assert "a bar" in capsys.readouterr().err and run_stages._listener.get() is None


def test_estimators_show_stages_as_verbose_says(terminal, tiny, tmp_path, monkeypatch, capsys):
    texts, labels = [f"{word} text {n}" for n in range(20) for word in ("good", "bad")], ["yes", "no"] * 20
    monkeypatch.setattr("bertvision.estimators.base.PATIENCE", 0.0)

    def fit(verbose, name):
        TextClassifier(tiny, fraction=0, controls=False, verbose=verbose, cache_dir=tmp_path / name).fit(texts, labels)
        return capsys.readouterr().err.replace(NOTICE, "")

    assert fit(0, "silent") == ""
    assert "read the rows" in fit(1, "table") and "\x1b[2K" in fit(1, "again")
    monkeypatch.setattr(progress, "can_show_bars", lambda console: False)
    assert fit(1, "nothing") == ""
    assert "s  read the rows in" in fit(2, "lines")


NOTICE = "text-classification: 36 rows to train on, 4 to choose on, 4 to score, from memory.\n"
PROGRAM = """
import time
from bertvision.progress import bar
from bertvision.run_stages import ExpectedStage, expect_stages, stage
from bertvision.stage_view import RunView
with RunView():
    expect_stages([ExpectedStage(title="one", work=1), ExpectedStage(title="two, with a " + "long " * 40)])
    with stage("one"), bar("steps", total=3) as advance:
        for _ in range(3):
            advance(1)
            time.sleep(0.4)
print("the result")
"""


def test_on_a_real_terminal():
    leader, follower = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"COLUMNS": "80", "TERM": "xterm-256color"}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    text = b""
    try:
        while part := os.read(leader, 4096):
            text += part
    except OSError:  # the program has ended
        pass
    assert process.wait() == 0
    os.close(leader)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode()).replace("\r", "\n")
    assert (
        "now" in plain
        and "2/3" in plain
        and "long …" in plain.replace("g…", "g …")
        and re.search(r"\d s  one in \d", plain)
    )
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert plain.rstrip().endswith("the result") and text.count(b"\x1b[?25h")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (8, "8 s"), (99, "99 s"), (200, "3:20 min"), (3600, "1:00 h"), (3900, "1:05 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
