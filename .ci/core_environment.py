"""Imports every module of the core and the library where only the dependencies of a plain installation exist.

Installing these takes minutes, mostly for torch. Instead, an empty virtual environment is filled with symbolic links to
the files of the installed distributions that bertvision requires without extras, directly or indirectly, as their
metadata say. Other distributions have no link and cannot be imported; the script checks that, too.

Run it with the interpreter of an environment in which bertvision is installed with all that the tests need.
"""

import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from test_import_rules import CORE, LIBRARY, SOURCE, owner  # noqa: E402

IMPORT_ALL = """
import importlib, sys
import bertvision
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
FIND_ALL = """
import sys
from importlib.util import find_spec
print(*(name for name in sys.argv[1:] if find_spec(name)))
"""


def required_distributions(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """Return a distribution and all that it requires, by name."""
    required: dict[str, Distribution] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    pending = [(canonicalize_name(name), extras)]
    while pending:
        current = pending.pop()
        if current in visited:
            continue
        visited.add(current)
        name, extras = current
        try:
            required[name] = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{name} is required by the core, but it is not installed.")
        for requirement in map(Requirement, required[name].requires or []):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
                pending.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return required


def link_files(dist: Distribution, site_packages: Path) -> None:
    """Link the files of a distribution that are inside its site-packages directory."""
    for file in dist.files or []:
        if ".." not in file.parts:
            link = site_packages / file
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(Path(str(dist.locate_file(file))))


def modules() -> list[str]:
    """Return the modules of the core, the library and the command line, which a plain installation has to run."""
    names = {name for row in [*CORE, *LIBRARY, ["cli"]] for name in row}
    paths = (path for path in sorted(SOURCE.rglob("*.py")) if owner(path) in names)
    dotted = (".".join(("bertvision", *path.relative_to(SOURCE).with_suffix("").parts)) for path in paths)
    return [name.removesuffix(".__init__") for name in dotted]


def main() -> None:
    allowed = required_distributions("bertvision")
    hidden = sorted(
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier() and not {canonicalize_name(owner) for owner in owners} & set(allowed)
    )
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=False, symlinks=True)
        python = str(Path(directory, "bin", "python"))
        site_packages = next(Path(directory).glob("lib/python*/site-packages"))
        for dist in allowed.values():
            link_files(dist, site_packages)
        # bertvision itself comes from this directory, wherever it is installed from.
        for path in site_packages.glob("*bertvision*.pth"):
            path.unlink()
        (site_packages / "bertvision.pth").write_text(f"{SOURCE.parent}\n")

        visible = subprocess.run([python, "-I", "-c", FIND_ALL, *hidden], check=True, capture_output=True, text=True)
        if visible.stdout.strip():
            sys.exit(f"The environment is not empty enough: it has {visible.stdout.strip()}.")
        names = modules()
        if subprocess.run([python, "-I", "-W", "error::ImportWarning", "-c", IMPORT_ALL, *names]).returncode:
            sys.exit("A module of the core or the library needs more than the dependencies of the core.")
        for listing in ("heads", "tasks", "encoders"):  # these load the entry points of the laboratory
            done = subprocess.run([python, "-I", "-m", "bertvision", listing], capture_output=True, text=True)
            if done.returncode or "cannot be used" in done.stderr:
                sys.exit(f"`bertvision {listing}` failed: {done.stderr}")
    print(
        f"{len(names)} modules were imported with {len(allowed) - 1} distributions; {len(hidden)} others were hidden."
    )


if __name__ == "__main__":
    main()
