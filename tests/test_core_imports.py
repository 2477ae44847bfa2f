"""The core imports without optional packages, without side effects, and without torch until it is needed."""

import ast
import json
import re
import subprocess
import sys
import threading
import time
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import bertvision
from bertvision.errors import BertVisionError
from bertvision.files import file_lock

SOURCE = Path(__file__).parents[1] / "src" / "bertvision"
OPTIONAL = (
    "altair fastapi fastapi_offline h5py jinja2 onnx onnxruntime onnxscript optuna peft prometheus_client pydantic ray "
    "starlette tomli_w uvicorn vl_convert"
).split()
CORE = sorted(
    ".".join(("bertvision", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.relative_to(SOURCE).parts[0] not in ("lab", "serving", "__main__.py")
)
# The lab's pipeline is what `bertvision run` runs, so it must work without extras, too.
CORE += [
    "bertvision.pipeline.experiment",
    "bertvision.pipeline",
    "bertvision.statistics",
    "bertvision.lab.extraction",
]

# pydantic is also used by dependencies of the core; it is blocked only for modules of bertvision.
BLOCK = """
import builtins, sys
real_import = builtins.__import__
def guarded_import(name, globals=None, *rest, **more):
    importer = (globals or {{}}).get("__name__", "")
    if importer.startswith("bertvision") and name.split(".")[0] in {blocked}:
        raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    return real_import(name, globals, *rest, **more)
builtins.__import__ = guarded_import
"""


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_quick_and_has_no_side_effects():
    code = """
import os, sys, json, time
before, began = dict(os.environ), time.process_time()
import bertvision
seconds = time.process_time() - began
names = dir(bertvision)
print(json.dumps({
    "environment": dict(os.environ) == before, "seconds": seconds, "names": names,
    "heavy": [name for name in ("torch", "transformers", "numpy", "rich", "typer") if name in sys.modules],
}))
"""
    imported = json.loads(run_python(code))
    assert imported["environment"] and imported["heavy"] == [] and imported["seconds"] < 0.3
    assert set(bertvision.__all__) <= set(imported["names"])


def test_every_public_name_can_be_imported():
    assert all(getattr(bertvision, name) is not None for name in bertvision.__all__)
    assert set(bertvision.__all__) == set(bertvision._MODULES)


def test_core_needs_no_optional_package():
    code = BLOCK.format(blocked=OPTIONAL) + (
        "import importlib, os\nbefore = dict(os.environ)\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "from bertvision.cpu_optimizations.environment import VARIABLES\n"
        "print([name for name in VARIABLES if os.environ.get(name) != before.get(name)])"
    )
    assert run_python(code, *CORE).strip() == "[]"


def declared(*extras: str) -> set[str]:
    """Return the distributions that pyproject.toml names for the core and for some extras."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {re.split(r"[\[<>=;]", line)[0].lower().replace("_", "-") for line in lines}


@pytest.mark.parametrize(("floor", "extras"), [("core", ()), ("lab", ("lab", "ray")), ("serving", ("serve", "onnx"))])
def test_every_imported_distribution_is_declared(floor, extras):
    """Installing a core-only environment takes minutes, so imports are compared with pyproject.toml instead."""
    distributions, undeclared = packages_distributions(), {}
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0]
        if (part if part in ("lab", "serving") else "core") != floor or path.name == "onnx_model.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"bertvision"}:
                owners = {owner.lower().replace("_", "-") for owner in distributions.get(name, [name])}
                if not owners & declared(*extras):
                    undeclared.setdefault(name, []).append(path.name)
    assert undeclared == {}


def test_the_command_line_imports_no_torch_and_sets_the_environment_first():
    code = """
import os, sys
sys.argv = ["bertvision", "--help"]
from bertvision.cli import main
try:
    main()
except SystemExit:
    pass
print("torch" in sys.modules, os.environ["GOMP_SPINCOUNT"])
"""
    assert run_python(code).splitlines()[-1] == "False 20000"


MISSING = {
    "report .": ("jinja2", "lab"),
    "presets mrpc-head-base": ("tomli_w", "lab"),
    "search --task stsb": ("optuna", "lab"),
    "serve .": ("fastapi", "serve"),
}
"""Commands, the package that each needs, and the extra that installs it."""


def test_a_missing_extra_is_named():
    code = BLOCK.format(blocked=[package for package, _ in MISSING.values()]) + (
        "from bertvision.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv[1:] = command.split()\n"
        "    try: main()\n"
        "    except SystemExit as error: print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *MISSING], capture_output=True, text=True)
    expected = [
        f"bertvision: This command needs the package {package}: pip install 'bertvision[{extra}]'."
        for package, extra in MISSING.values()
    ]
    assert done.stderr.splitlines() == expected and done.stdout.split() == ["1"] * len(MISSING)


def test_file_lock(tmp_path):
    path, entered = tmp_path / "sub" / "store", []

    def wait_for_it():
        with file_lock(path, wait=True):
            entered.append("second")

    with file_lock(path, wait=False):
        with pytest.raises(BertVisionError, match="Another process is at work"), file_lock(path, wait=False):
            pass
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        time.sleep(0.3)
        assert not entered
    waiting.join(5)
    assert entered == ["second"]
    with pytest.raises(FileNotFoundError), file_lock(path, wait=False):  # errors of the body are not changed
        raise FileNotFoundError
    with file_lock(path, wait=False):
        pass


LOCK = """
import sys, time
from pathlib import Path
{before}
from bertvision.files import file_lock
with file_lock(Path(sys.argv[1]), wait=False):
    print("locked", flush=True)
    {inside}
"""


def test_the_lock_of_a_process_that_was_killed_is_released(tmp_path):
    code = LOCK.format(before="", inside="time.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"
        with pytest.raises(BertVisionError, match="at work"), file_lock(tmp_path / "store", wait=False):
            pass
        process.kill()
    with file_lock(tmp_path / "store", wait=False):
        pass


def test_file_lock_without_fcntl(tmp_path):
    code = LOCK.format(before="sys.modules['fcntl'] = None", inside="pass")
    assert run_python(code, str(tmp_path / "store")) == "locked\n"
