"""The pages of the site: their examples run, their links lead somewhere, and the reference is complete."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import bertvision
from bertvision.cli import main
from bertvision.encoders import ENCODERS, EncoderEntry
from bertvision.heads import HEADS
from bertvision.pipeline.experiment import Experiment
from bertvision.tasks import TASKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXECUTED = [DOCS / "index.md", DOCS / "quickstart.md", *sorted((DOCS / "how-to").glob("*.md"))]
EXECUTED += [DOCS / "reference" / "api.md", DOCS / "reference" / "assistants.md"]
SLOW = {"export", "reproduce-the-paper", "runs", "search", "hidden-states", "quickstart"}
"""Pages whose commands take long; the README and the other pages run by default."""
GENERATED = {"reference/cli.md", "reference/configuration.md"}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the executed blocks of a page with their languages."""
    return re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def with_few_rows(command: str) -> str:
    """Return a command with fewer rows than a page shows."""
    command = re.sub(r" --limit-dev \d+", "", command)
    return re.sub(r"--limit \d+", "--limit 120 --limit-dev 60", command)


def run_block(language: str, code: str, page: str, names: dict, monkeypatch) -> None:
    """Run a block of Python, or the commands of a block."""
    if language == "python":
        exec(compile(code, page, "exec"), names)
        return
    for command in code.strip().splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(with_few_rows(command)))
        with pytest.raises(SystemExit) as stopped:
            main()
            sys.exit(0)
        assert (stopped.value.code or 0) == 0, command


@pytest.fixture
def place(tiny, reviews, tmp_path, monkeypatch):
    """A directory with the files that pages mention, where MiniLM is a tiny encoder."""
    entry = EncoderEntry(hub=str(tiny), layers=3, width=32, parameters=1, learning_rate=1e-3)
    monkeypatch.setitem(ENCODERS._entries, "minilm", entry)
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    text = reviews.read_text()
    (work / "reviews.csv").write_text(text)
    (work / "tickets.csv").write_text(text.replace("text,label", "body,team", 1))
    before = [{name: registry[name] for name in list(registry)} for registry in (HEADS, TASKS, ENCODERS)]
    yield work
    for registry, entries in zip((HEADS, TASKS, ENCODERS), before, strict=True):
        registry._entries.clear()
        registry._entries.update(entries)


PAGES = [page for page in EXECUTED if blocks(page)]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else []) for page in PAGES],
)
def test_examples_of_pages(page, place, monkeypatch):
    names = {"__name__": page.stem.replace("-", "_")}
    for language, code in blocks(page):
        run_block(language, code, page.name, names, monkeypatch)


def documents() -> Iterator[Path]:
    """Yield all documents for readers."""
    yield from ROOT.glob("*.md")
    yield from (page for page in DOCS.rglob("*.md") if "_build" not in page.parts)


def test_links_lead_somewhere():
    broken = []
    for page in documents():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            path = (page.parent / target).resolve()
            generated = path.is_relative_to(DOCS) and str(path.relative_to(DOCS)) in GENERATED
            if not (target.startswith("http") or path.exists() or generated):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for page in DOCS.rglob("*.md"):
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.S | re.M):
            for line in tree.splitlines():
                if line and not line.startswith(":"):
                    listed |= {path.resolve() for path in page.parent.glob(f"{line}.md")}
    pages = {
        page for page in documents() if page.is_relative_to(DOCS) and page.name not in {"cli.md", "configuration.md"}
    }
    assert {str(page.relative_to(DOCS)) for page in pages - listed} == {"index.md"}


def test_llms_txt_names_pages():
    targets = re.findall(r"\]\(([^)]+)\.html\)", (DOCS / "llms.txt").read_text())
    assert len(targets) > 15
    missing = [name for name in targets if not (DOCS / f"{name}.md").exists() and f"{name}.md" not in GENERATED]
    assert missing == []


@pytest.fixture(scope="module")
def generator():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("generate_reference")
    finally:
        sys.path.remove(str(DOCS))


def test_the_reference_has_every_command_and_flag(generator):
    page = generator.cli_page()
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    commands = dict(generator.commands())
    assert set(commands) == set(sections) and len(commands) > 30
    for name, command in commands.items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden:
                row = next(line for line in sections[name].splitlines() if line.startswith(f"| `{parameter.opts[0]}`"))
                assert row.count(" | ") >= 2 and not row.endswith("|  |"), f"{name} {parameter.opts[0]} has no help"


def test_the_reference_has_every_setting(generator):
    page = generator.configuration_page()
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", page, flags=re.M))
    experiment, wanted = Experiment(), set()
    for field in fields(experiment):
        value = getattr(experiment, field.name)
        wanted |= {f"{field.name}.{inner.name}" for inner in fields(value)} if is_dataclass(value) else {field.name}
    assert set(rows) == wanted
    assert [name for name, meaning in rows.items() if not meaning.strip()] == []


def test_public_names_are_in_the_reference():
    page = (DOCS / "reference" / "api.md").read_text()
    for name in bertvision.__all__:
        assert re.search(rf"auto\w+:: {name}$", page, flags=re.M) or name in {"HEADS", "TASKS", "ENCODERS"}, name
        assert inspect.getdoc(getattr(bertvision, name)), f"{name} has no docstring"
    for name in ("HEADS", "TASKS", "ENCODERS"):
        assert name in page


def test_public_names_have_an_example_that_is_executed():
    examples = "\n".join(code for _, code in blocks(DOCS / "reference" / "api.md"))
    for name in bertvision.__all__:
        docstring = inspect.getdoc(getattr(bertvision, name)) or ""
        assert ">>>" in docstring or re.search(rf"\b{name}\b", examples), f"{name} has no example"


def test_spelling():
    done = subprocess.run([sys.executable, "-m", "codespell_lib"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert cited and project["version"] == bertvision.__version__ == cited[1]


def test_defaults_can_be_copied_into_an_experiment_file(generator):
    for default in re.findall(r"\| `([^`]*)` \| [^|]*\|$", generator.configuration_page(), flags=re.M):
        tomllib.loads(f"x = {default}")
