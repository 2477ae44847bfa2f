"""Source archives of the package registry, downloaded as data.

pip would run the setup.py of a source archive to learn its metadata. Here the index is read instead (PEP 503), with
the addresses, certificate and proxy that pip is configured with. `sources` verifies the hash.
"""

import ast
import base64
import netrc
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote, urljoin, urlsplit

from bertvision.sources import Package

INDEX = "https://pypi.org/simple"
MAX_PAGE = 64 * 1024**2  # bytes
SECTIONS = ("global", "download", ":env:")
"""The sections of pip's configuration, from the weakest to the strongest."""


def download_source(package: str, pinned: Package, directory: Path) -> str:
    """Download an archive to `directory`; return why it failed, or an empty string."""
    settings, reason = _pip_settings(), f"no directory or index of pip has {pinned.archive}."
    for page in _pages(package, pinned, settings):
        try:
            with _open(page, settings) as response:
                if PurePosixPath(urlsplit(page).path).name == pinned.archive:
                    link = page
                else:
                    link = _find_link(response, getattr(response, "url", page), pinned.archive)
            if link:
                with _open(link, settings) as response, open(directory / pinned.archive, "wb") as file:
                    shutil.copyfileobj(response, file)
                return ""
        except (OSError, ValueError, HTTPException) as error:
            reason = re.sub(r"\S*://\S+", "(address)", str(error) or type(error).__name__).rstrip(". ") + "."
    return reason


def _pip_settings() -> dict[str, str]:
    """Return the settings of `pip download`, from its files and the environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in process.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        with suppress(ValueError, SyntaxError):
            found.get(section, {})[key] = str(ast.literal_eval(value))
    return {key: value for section in SECTIONS for key, value in found[section].items()}


def _pages(package: str, pinned: Package, settings: dict[str, str]) -> Iterator[str]:
    """Yield the addresses of archives in pip's directories, and of the pages that list archives."""
    for place in settings.get("find-links", "").split():
        address = place if "://" in place else Path(place).expanduser().absolute().as_uri()
        path = _local_path(address)
        if path is None or path.is_file():
            yield address
        elif (path / pinned.archive).is_file():
            yield (path / pinned.archive).as_uri()
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on", "t", "y"):
        return
    project = re.sub(r"[-_.]+", "-", package).lower()
    for index in [settings.get("index-url", INDEX), *settings.get("extra-index-url", "").split()]:
        page = f"{index.rstrip('/')}/{project}/"
        path = _local_path(page)
        if path is None:
            yield page
        elif (path / "index.html").is_file():
            yield (path / "index.html").as_uri()


def _local_path(address: str) -> Path | None:
    parts = urlsplit(address)
    return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


def _open(address: str, settings: dict[str, str]) -> IO[bytes]:
    """Open an address with the certificate, timeout and credentials of pip."""
    parts = urlsplit(address)
    if parts.scheme not in ("https", "http", "file"):
        raise ValueError(f"the index names an address of type {parts.scheme!r}")
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers={"Accept": "text/html, */*;q=0.1"})
    user, password = parts.username, parts.password
    with suppress(OSError, netrc.NetrcParseError):
        if user is None and (entry := netrc.netrc().authenticators(parts.hostname or "")):
            user, _, password = entry
    if user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}".encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    certificate = settings.get("cert", "")
    file, folder = (None, certificate) if certificate and Path(certificate).is_dir() else (certificate or None, None)
    timeout = float(settings.get("timeout") or settings.get("default-timeout") or 15)
    context = ssl.create_default_context(cafile=file, capath=folder) if parts.scheme == "https" else None
    return urllib.request.urlopen(request, timeout=timeout, context=context)


def _find_link(page: IO[bytes], address: str, archive: str) -> str:
    """Return the address of an archive that a page links to; an empty string if it does not."""
    links: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value for name, value in attrs if tag == "a" and name == "href" and value)

    Links().feed(page.read(MAX_PAGE).decode("utf-8", "replace"))
    named = [link for link in links if unquote(PurePosixPath(urlsplit(link).path).name) == archive]
    link = urljoin(address, named[0]) if named else ""
    if urlsplit(link).scheme == "file" and urlsplit(address).scheme != "file":
        raise ValueError("the index names a file of this machine")
    return link
