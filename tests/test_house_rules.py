"""The rules of the code base that a reader relies on: small functions, a small core, one vocabulary."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_import_rules import CORE, LIBRARY, SOURCE, owner

MAX_CORE_LINES = 7000
MAX_LINES = 60
MAX_PARAMETERS = 8
OPTIONAL = {"cpu_optimizations"}
"""Packages that the plain path can be read without."""

RETIRED = set(
    """Kept Stored Streamed Wanted Copies Joint Reader Last Select reads_first halved Trunk Trunks Predictor Prepared
    Tuned Point Loaded Reading Known Student Grade descend give_back quicken Words narrow whole fold carry begin_from
    carve
    lay_over Lab Bench bars Order Cell Piece Mixed Together Served clerks Guard Ask say SPEAKS notify gather gathers
    copies pace paces activations backbones trunks predictor together looking comparing chorus nursery made test_group
    test_layers runtime probing prepared""".split()
)
"""Words of the first version that must not come back as the name of a class, function, module, file or option."""

RETIRED_IN_PROSE = {word for word in RETIRED if "_" in word} | {
    "backbone",
    "backbones",
    "activations",
    "clerks",
    "SPEAKS",
}
"""Retired words that are not ordinary English, or that have another name here. No document has them even in prose."""

ROOT = SOURCE.parents[1]
HISTORY = {ROOT / "CHANGELOG.md", ROOT / "docs" / "lab-log.md"}
DOCUMENTS = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
    if path not in HISTORY and path.parent.name != "decisions"
]
ON_DISK = {("store-format.md", "backbone")}
"""Keys of file formats, which stay as they are."""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def files_of(rows: list[list[str]]) -> list[Path]:
    """Return the files of the modules and packages in these rows."""
    names = {name for row in rows for name in row} - OPTIONAL
    return [path for path in sorted(SOURCE.rglob("*.py")) if owner(path) in names]


CORE_FILES = files_of(CORE)
CHECKED_FILES = [*CORE_FILES, *files_of(LIBRARY)]


def test_core_is_small_enough_to_be_read():
    assert sum(len(path.read_text().splitlines()) for path in CORE_FILES) <= MAX_CORE_LINES


def test_functions_of_core_and_library_are_short():
    long = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for path in CHECKED_FILES
        for node in functions(path)
        if node.end_lineno - node.lineno + 1 > MAX_LINES
    ]
    assert long == []


def test_functions_of_core_and_library_have_few_parameters():
    wide = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for path in CHECKED_FILES
        for node in functions(path)
        if len([a for a in node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]) > MAX_PARAMETERS
    ]
    assert wide == []


@pytest.mark.parametrize("root", [SOURCE, Path(__file__).parent], ids=["src", "tests"])
def test_retired_words_name_nothing(root):
    names = []
    for path in sorted(root.rglob("*.py")):
        names += [(path.name, part) for part in (*path.relative_to(root).parts[:-1], path.stem)]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.append((path.name, node.name))
    assert [(file, name) for file, name in names if name in RETIRED] == []


def test_no_two_classes_share_a_name():
    classes = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_init_files_only_export():
    for path in SOURCE.rglob("__init__.py"):
        if path.parent != SOURCE:  # the package itself loads its names lazily
            defined = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
            assert not defined, path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_have_no_retired_words(path):
    text = path.read_text()
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    words = set(re.findall(r"\w+", code)) & RETIRED | set(re.findall(r"\w+", text)) & RETIRED_IN_PROSE
    assert {word for word in words if (path.name, word) not in ON_DISK} == set()


def test_files_that_the_architecture_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", text))
    folders = (ROOT / name for name in ("src", "tests", "docs", ".ci", "examples"))
    files = [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.*")]
    missing = [name for name in names if not any(f"/{name}" in f"/{file}" for file in files)]
    assert names and missing == []


def test_tests_that_need_the_machine_for_themselves_are_those_of_the_server():
    """`make test` looks for them in tests/serving only, because collecting all tests takes seconds."""
    tests = ROOT / "tests"
    marked = [path for path in tests.rglob("test_*.py") if "mark.alone" in path.read_text() and path != Path(__file__)]
    assert marked and {path.parent for path in marked} == {tests / "serving"}
