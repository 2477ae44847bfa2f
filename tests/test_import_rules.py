"""The import rules: three floors, imports that go downwards only, and libraries that only one module may import."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "bertvision"

CORE = [
    ["errors"],
    ["files", "progress", "distributed"],
    ["types", "sources", "devices", "registries"],
    ["threads", "tasks"],
    ["cpu_optimizations"],
    ["heads", "encoders"],
    ["states"],
    ["training"],
]
"""Modules and packages of the core, from the lowest row to the highest. A module imports from lower rows only."""
LIBRARY = [
    ["token_tasks", "run_stages"],
    [
        "statistics",
        "ensembles",
        "records",
        "legacy",
        "inputs",
        "trackers",
        "arrays",
        "memory",
        "convex",
        "near_duplicates",
        "prediction",
        "computed_states",
        "windowed_encoders",
        "stage_view",
    ],
    ["runs", "hidden_states"],
    ["shared_encoders", "model_card"],
    ["sharing", "onnx_model"],
    ["trained_model"],
    ["prediction_files", "evaluation_reports", "model_groups"],
    ["pipeline"],
    ["time_limits"],
]
"""Runs, trained models, and training as a whole: what uses the core and is meant for users."""
FLOORS = [*CORE, *LIBRARY, ["lab", "serving"], ["estimators"], ["cli"], ["__init__", "__main__"]]
LEVEL = {name: level for level, row in enumerate(FLOORS) for name in row}
FENCES = {
    "accelerate": ["distributed"],
    "transformers": ["encoders", "cpu_optimizations", "trackers"],
    "datasets": ["lab", "hidden_states"],
    "typer": ["cli"],
    "fastapi": ["serving"],
    "uvicorn": ["serving"],
    "optuna": ["lab"],
    "ray": ["lab"],
    "altair": ["lab"],
    "vl_convert": ["lab"],
    "jinja2": ["lab"],
    "onnxruntime": ["onnx_model"],
}
"""Libraries that only these modules import."""


def owner(path: Path) -> str:
    """Return the top-level module or package that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "bertvision":
                yield from (f"bertvision.{alias.name}" for alias in node.names)
            else:
                yield node.module


def violations() -> Iterator[str]:
    """Yield a sentence for each import that breaks a rule."""
    for path in sorted(SOURCE.rglob("*.py")):
        here = owner(path)
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "bertvision" and rest and rest[0] != here and LEVEL[rest[0]] >= LEVEL[here]:
                yield f"{path.name} ({here}, row {LEVEL[here]}) imports {rest[0]} (row {LEVEL[rest[0]]})"
            if here not in FENCES.get(top, [here]):
                yield f"{path.name} imports {top}, which belongs to {FENCES[top]}"


def test_every_module_has_a_row():
    assert {owner(path) for path in SOURCE.rglob("*.py")} == set(LEVEL)


def test_imports_go_downwards():
    assert list(violations()) == []
