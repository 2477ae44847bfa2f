"""What the README shows runs, on a tiny encoder in place of MiniLM, and its figures are those of the benchmark."""

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from bertvision.cli import main
from bertvision.encoders import ENCODERS, EncoderEntry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]


def commands():
    """Every command with its parameters."""
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("generate_reference").commands()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.fixture
def tiny_minilm(tiny, monkeypatch):
    monkeypatch.setitem(
        ENCODERS._entries, "minilm", EncoderEntry(hub=str(tiny), layers=3, width=32, parameters=1, learning_rate=1e-3)
    )


def test_python(tiny_minilm, reviews, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").write_text(reviews.read_text())
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "cache"))
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    assert "BERT" in capsys.readouterr().out and (tmp_path / "model").is_dir()


@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.split()[1])
def test_commands(tiny_minilm, reviews, tmp_path, monkeypatch, capsys, block):
    monkeypatch.chdir(tmp_path)  # one place for a block: its commands build on one another
    (tmp_path / "reviews.csv").write_text(reviews.read_text())
    for command in block.splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        main_exit(0)
        assert capsys.readouterr().out


def main_exit(expected: int) -> None:
    with pytest.raises(SystemExit) as stopped:
        main()
        sys.exit(0)
    assert (stopped.value.code or 0) == expected


def test_every_flag_shown_exists():
    known = {option for _, command in commands() for parameter in command.params for option in parameter.opts}
    known |= {"--install-completion", "--no-hub", "--table"}
    for page in DOCUMENTS:
        for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", page.read_text(), flags=re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                arguments = line.partition("bertvision ")[2] if re.match(r"(\S+/)?bertvision ", line) else ""
                assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", arguments)) <= known, f"{page.name}: {line}"


def test_it_is_short_and_has_the_two_commands():
    assert len(README.split()) <= 900
    assert "\nmake demo " in README and "\nmake test " in README
    for name in re.findall(r'(?:srcset|src)="([^"]+)"', README):
        assert (ROOT / name).is_file()


def test_figures_are_those_of_the_benchmark():
    rows = json.loads((ROOT / "benchmarks/results/peers.json").read_text())["rows"]
    chosen = {row["task"]: row for row in rows if row["method"] == "bertvision-run"}
    shown = ("fine-tuning", "lora", "bitfit", "embedding")

    def figures(row):
        return f"{row['score']:.1f}", f"{row['seconds']:.0f} s"

    def longest(task):
        return max(
            (row for row in rows if (row["task"], row["method"]) == (task, "fine-tuning")), key=lambda r: r["length"]
        )

    said = re.search(
        r"On stsb these defaults reach (.*?) in (.*?), full fine-tuning (.*?) in (.*?); "
        r"on rotten-tomatoes they reach (.*?) in (.*?), full fine-tuning (.*?) in (\d+ s)",
        README,
    )
    expected = [figures(row) for task in ("stsb", "rotten-tomatoes") for row in (chosen[task], longest(task))]
    assert said and said.groups() == tuple(value for pair in expected for value in pair)
    better = {
        task: {(row["method"], row["length"]) for row in rows if row["task"] == task and row["method"] in shown
               and row["score"] > ours["score"]}
        for task, ours in chosen.items()
    }  # fmt: skip
    assert "On mrpc, stsb and snli the earlier defaults score above every other method of the chart" in README
    assert {task for task, methods in better.items() if not methods} == {"mrpc", "stsb", "snli"}
    assert "full fine-tuning of two epochs and LoRA of three are better, in more than twice the time" in README
    assert better["rotten-tomatoes"] == {("fine-tuning", 2), ("fine-tuning", 3), ("lora", 3)}
    times = [row["seconds"] for row in rows if row["task"] == "rotten-tomatoes"
             and (row["method"], row["length"]) in better["rotten-tomatoes"]]  # fmt: skip
    assert min(times) > 2 * chosen["rotten-tomatoes"]["seconds"]


def test_figures_of_many_classes_are_those_of_the_benchmark():
    cells = json.loads((ROOT / "benchmarks/results/task-kinds.json").read_text())["cells"]
    ours = cells["intents/ours"]
    full = max((cell for name, cell in cells.items() if name.startswith(("intents/choose", "intents/full"))),
               key=lambda cell: cell["validation"])  # fmt: skip
    figures = (ours["scores"]["accuracy"], sum(ours["seconds"].values()), full["scores"]["accuracy"], full["seconds"])
    said = re.search(r"they reach ([\d.]+) in (\d+) s, full fine-tuning of ten epochs ([\d.]+) in (\d+) s", README)
    assert said and said.groups() == tuple(
        f"{value:.{digits}f}" for value, digits in zip(figures, (1, 0, 1, 0), strict=True)
    )


def test_the_chart_is_that_of_the_benchmark(tmp_path, monkeypatch):
    pytest.importorskip("vl_convert")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    chart = importlib.import_module("readme_chart")
    monkeypatch.chdir(ROOT)
    shown = (ROOT / "docs/chart-light.svg").read_text()
    rows = chart.timed_rows()
    assert {row["task"] for row in rows} == set(
        re.findall(r"class=\"mark-text role-title-text\".*?>([\w-]+)</text>", shown)
    )
    for name in {row["method"] for row in rows}:
        assert f">{name}</text>" in shown
