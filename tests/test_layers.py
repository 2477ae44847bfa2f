"""The import rule: modules import downwards only, and heavy libraries stay behind their fences."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "bertvision"

ROWS = [
    ["errors"],
    ["files", "progress"],
    ["types", "sources"],
    ["config", "runtime", "cluster", "tasks", "heads", "backbones"],
    ["activations"],
    ["training", "ensemble", "runs", "statistics"],
    ["trunks", "cards"],
    ["sharing", "exported"],
    ["pipeline", "predictor"],
    ["search", "studies", "export", "serving"],
    ["report"],
    ["cli"],
    ["__init__", "__main__"],
]
LEVEL = {name: level for level, row in enumerate(ROWS) for name in row}
FENCES = {
    "accelerate": "runtime",
    "transformers": "backbones",
    "datasets": "tasks",
    "typer": "cli",
    "fastapi": "serving",
    "uvicorn": "serving",
    "optuna": "search",
    "ray": "cluster",
    "altair": "report",
    "onnxruntime": "exported",
}


def owner(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "bertvision":
                yield from (f"bertvision.{alias.name}" for alias in node.names)
            else:
                yield node.module


def violations() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        here = owner(path)
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "bertvision" and rest and rest[0] != here and LEVEL[rest[0]] >= LEVEL[here]:
                yield f"{path.name} ({here}, row {LEVEL[here]}) imports {rest[0]} (row {LEVEL[rest[0]]})"
            if FENCES.get(top, here) != here:
                yield f"{path.name} imports {top}, which belongs to {FENCES[top]}"


def test_every_module_has_a_row():
    assert {owner(path) for path in SOURCE.rglob("*.py")} == set(LEVEL)


def test_imports_go_downwards():
    assert list(violations()) == []
