"""What the README shows runs: the Python, the commands, the experiment files, on a tiny encoder in place of MiniLM."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from bertvision.cli import main
from bertvision.cli.options import FLAGS
from bertvision.encoders import ENCODERS, EncoderEntry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


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
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 6
    exec(compile(code, "README.md", "exec"), {})
    assert "'label': '" in capsys.readouterr().out


@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.split()[1])
def test_commands(tiny_minilm, tmp_path, monkeypatch, capsys, block):
    monkeypatch.chdir(tmp_path)  # one place for a block: its commands build on one another
    for command in block.splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(with_few_rows(command)))
        main_exit(0)
        assert capsys.readouterr().out


def with_few_rows(command: str) -> str:
    """Return the command with fewer rows than the README shows."""
    command = re.sub(r" --limit-dev \d+", "", command)
    return re.sub(r"--limit \d+", "--limit 120 --limit-dev 60", command)


def main_exit(expected: int) -> None:
    with pytest.raises(SystemExit) as stopped:
        main()
        sys.exit(0)
    assert (stopped.value.code or 0) == expected


def test_every_flag_shown_exists():
    shown = set(re.findall(r"--([a-z][a-z-]+)", README))
    known = {name.replace("_", "-") for name in FLAGS} | {"set", "json", "runs", "help", "how", "data", "predictions"}
    known |= {
        "preset",
        "output",
        "nbest",
        "install-completion",
        "trials",
        "target",
        "storage",
        "shard",
        "seeds",
        "space",
        "nproc-per-node",
        "cluster",
        "num",
        "cpu",
        "tokens",
        "width",
        "layers",
        "outputs",
        "per-token",
        "question",
        "context",
        "file",
        "type",
        "onnx",
        "key-file",
        "files",
        "checkpoint",
    }
    assert shown <= known


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists() or target.startswith("http"), f"{page.name}: {target}"
