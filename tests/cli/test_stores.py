"""extract and store, as their user calls them."""

import json
import re
import shutil
from pathlib import Path

import pytest
import test_cli

from bertvision.lab import extraction
from bertvision.pipeline.experiment import make
from bertvision.states import FORMATS, Store
from conftest import squad_json

refused = test_cli.refused
SPLITS = ["train", "validation", "dev"]


@pytest.fixture(scope="module")
def words(tiny, reviews):
    """What names the experiment."""
    settings = ["finetune.learning_rate=1e-3", "train.learning_rate=1e-2", "train.epochs=2"]
    named = ["--train-file", reviews, "--encoder", tiny, "--at", "0.5"]
    return [*named, *(word for each in settings for word in ("--set", each))]


@pytest.fixture(scope="module")
def extracted(tiny, reviews, tmp_path_factory):
    """Runs with the stores of all layers, exact; nobody may change them."""
    root = tmp_path_factory.mktemp("runs")
    experiment = make(
        train_file=str(reviews),
        encoder=str(tiny),
        head_fractions=[0.5],
        finetune={"learning_rate": 1e-3},
        train={"learning_rate": 1e-2, "epochs": 2.0},
        store={"dtype": "float32"},
    )
    return root, {store.identity["split"]: store for store in extraction.extract(experiment, root, SPLITS)}


@pytest.fixture
def runs(extracted, tmp_path):
    """A copy that a test may change: the root, and where its stores are."""
    shutil.copytree(extracted[0], tmp_path / "runs")
    return tmp_path / "runs", tmp_path / "runs" / extracted[1]["train"].path.parent.relative_to(extracted[0])


def tree(path: Path) -> dict[str, int]:
    """Every file but locks, and when it was written."""
    found = [file for file in path.rglob("*") if file.is_file() and file.suffix != ".lock"]
    return {str(file.relative_to(path)): file.stat().st_mtime_ns for file in found}


def damage(store: Path, at: int = 5) -> None:
    shard = store / "00000.states"
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize(
    "command", ["extract", *(f"store {name}" for name in "info verify estimate list convert remove".split())]
)
def test_help_has_an_example(cli, command):
    code, out, _ = cli(*command.split(), "--help")
    assert code == 0 and f"Example: bertvision {command}" in re.sub(r"\s+", " ", out)


def test_extract_writes_once(cli, extracted, words):
    root, stores = extracted
    before = tree(root)
    code, out, _ = cli("extract", *words, "--store-dtype", "float32", "--runs", root, "--json")
    made = json.loads(out)
    assert code == 0 and [each["split"] for each in made] == SPLITS
    assert [each["store"] for each in made] == [str(stores[name].path) for name in SPLITS]
    assert all(each["layers"] == [0, 1, 2, 3] and each["type"] == "float32" for each in made)
    code, out, _ = cli("extract", *words, "--store-dtype", "float32", "--runs", root, "--splits", "dev, train")
    assert code == 0 and [line.split()[1] for line in out.splitlines()] == ["split", "dev", "train"]
    assert tree(root) == before


def test_extract_a_part_to_a_place_of_its_own(cli, runs, words, tmp_path):
    root, states = runs
    before = tree(states)
    options = ["--splits", "dev", "--layers", "last2", "--first-token-only", "--pooler-output", "--store-dtype", "int4"]
    code, out, _ = cli("extract", *words, *options, "--store-dir", tmp_path / "mine", "--runs", root, "--json")
    (made,) = json.loads(out)
    assert code == 0 and made["store"] == str(tmp_path / "mine" / "dev") and tree(states) == before
    assert (made["layers"], made["pooler_output"], made["kept"], made["type"]) == ([2, 3], True, "first", "int4")
    store = Store(Path(made["store"]))
    assert store.rows == made["rows"] == made["tokens"] and store.layout.bytes == made["bytes"]
    assert store.identity["task"] == made["task"] == "reviews" and "pooler" in store.identity


def test_mistakes_cost_no_fine_tuning(cli, words, tmp_path):
    root = tmp_path / "runs"
    extract = ["extract", *words, "--runs", root]
    refused(cli(*extract, "--store-dtype", "int88"), "Unknown type of stored states 'int88'", "Did you mean 'int8'")
    refused(cli(*extract, "--splits", "trian"), "Unknown split 'trian'", "Did you mean 'train'")
    refused(cli(*extract, "--splits", ","), "Name a split")
    refused(cli(*extract, "--layers", "3-9"), "layers that do not exist: there are layers 0 to 3")
    refused(cli(*extract, "--layers", "top"), "is not understood")
    refused(cli(*extract, "--at", "0.5,1", "--store-dir", tmp_path / "s"), "can hold one fraction only")
    estimate = ["store", "estimate", *words]
    refused(cli(*estimate, "--splits", "devv"), "Did you mean 'dev'")
    refused(cli(*estimate, "--splits", ""), "Name a split")
    refused(cli(*estimate, "--layers", "3-9"), "there are layers 0 to 3")
    assert not root.exists()


def test_pooled_is_for_sentence_tasks(cli, tiny, tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(squad_json(6, 2, 0)))
    words = ["extract", "--train-file", tmp_path / "train.json", "--encoder", tiny, "--runs", tmp_path / "runs"]
    refused(cli(*words, "--pooler-output"), "Leave out --pooler-output")
    assert not (tmp_path / "runs").exists()


def test_usage_errors_are_2_and_others_1(cli, tmp_path):
    for words in (["info"], ["verify"], ["remove"], ["convert", tmp_path], ["list", "--nonsense"], ["nonsense"]):
        assert cli("store", *words)[0] == 2
    for name in ("info", "verify", "remove"):
        code, out, err = cli("store", name, tmp_path)
        assert (code, out) == (1, "") and f"There is no store of hidden states at {tmp_path}" in err
    refused(cli("store", "convert", tmp_path, tmp_path / "x"), "no store of hidden states")
    assert not list(tmp_path.iterdir())


def test_info(cli, extracted):
    store = extracted[1]["train"]
    code, out, _ = cli("store", "info", store.path, "--json")
    found = json.loads(out)
    assert code == 0 and found["identity"] == store.identity and found["rows"] == store.rows
    assert found["bytes"] == sum(file.stat().st_size for file in store.path.glob("*.states"))
    code, out, _ = cli("store", "info", store.path)
    assert code == 0 and re.search(r"^layers +0,1,2,3$", out, re.M) and re.search(r"^type +float32$", out, re.M)


def test_verify(cli, runs):
    store = next(runs[1].glob("train-*"))
    code, out, _ = cli("store", "verify", store)
    assert code == 0 and re.fullmatch(r"\d+ rows, [\d.,]+ [kM]B: no errors\.\n", out)
    code, out, _ = cli("store", "verify", store, "--json")
    assert code == 0 and json.loads(out)["problems"] == []
    damage(store)
    refused(cli("store", "verify", store), "row 0 (", "00000.states is damaged", "extract again")
    code, out, err = cli("store", "verify", store, "--json")
    assert code == 1 and len(json.loads(out)["problems"]) == 1 and err.startswith("bertvision: ")
    damage(store, at=-5)
    refused(cli("store", "verify", store), "the checksums at the end of shard")
    (store / "00000.states").unlink()
    refused(cli("store", "verify", store), "00000.states is missing")
    (store / "manifest.json").write_text("{}")
    refused(cli("store", "verify", store), "manifest.json is damaged")


def test_list(cli, runs):
    root, states = runs
    code, out, _ = cli("store", "list", "--runs", root)
    assert code == 0 and len(out.splitlines()) == 4 and str(states) in out
    train, dev = next(states.glob("train-*")), next(states.glob("dev-*"))
    (train / "manifest.json").rename(train / "unfinished.json")
    (dev / "manifest.json").write_text("{}")
    (root / "manifest.json").write_text('{"name": "my web app"}')
    code, out, _ = cli("store", "list", "--runs", root, "--json")
    found = json.loads(out)
    assert code == 0 and [each["split"] for each in found["stores"]] == ["validation"]
    assert found["unfinished"] == [str(train)]
    assert [str(dev) in text for text in found["damaged"]] == [True]
    code, out, _ = cli("store", "list", "--runs", root)
    assert code == 0 and f"unfinished: {train}" in out and "manifest.json is damaged" in out
    code, out, _ = cli("store", "list", "--runs", root / "none")
    assert code == 0 and "No stores under" in out


def test_convert(cli, extracted, tmp_path):
    store = extracted[1]["dev"].path
    code, out, _ = cli("store", "convert", store, tmp_path / "a", "--type", "int4", "--layers", "last", "--json")
    (made,) = json.loads(out)
    assert code == 0 and (made["type"], made["layers"], made["kept"]) == ("int4", [3], "all")
    code, out, _ = cli("store", "convert", store, tmp_path / "b", "--first-token-only")
    assert code == 0 and "float32" in out and Store(tmp_path / "b").view.first_token_only
    assert cli("store", "verify", tmp_path / "a")[0] == cli("store", "verify", tmp_path / "b")[0] == 0
    refused(cli("store", "convert", tmp_path / "a", tmp_path / "c", "--layers", "1,3"), "but not [1]")
    refused(cli("store", "convert", store, tmp_path / "c", "--layers", "7"), "there are layers 0 to 3")
    refused(cli("store", "convert", store, tmp_path / "c", "--type", "flaot16"), "Did you mean 'float16'")
    refused(cli("store", "convert", store, store, "--type", "int8"), "in place")
    refused(cli("store", "convert", store, tmp_path / "b"), "holds another store: tokens is first instead of all")
    assert not (tmp_path / "c").exists()


def test_remove_takes_the_store_alone(cli, runs):
    root, states = runs
    train, dev = next(states.glob("train-*")), next(states.glob("dev-*"))
    (train / "notes.txt").write_text("mine")
    before = tree(root)
    size = sum(file.stat().st_size for file in dev.iterdir())
    code, out, _ = cli("store", "remove", dev, "--json")
    assert code == 0 and json.loads(out) == {"removed": str(dev), "bytes": size} and not dev.exists()
    code, out, _ = cli("store", "remove", train)
    assert code == 0 and re.fullmatch(rf"Removed {re.escape(str(train))}: [\d.,]+ [kM]B\.\n", out)
    assert [file.name for file in train.iterdir()] == ["notes.txt"]
    gone = {name for name in before if not (root / name).exists()}
    assert {Path(name).parent.name for name in gone} == {train.name, dev.name}
    refused(cli("store", "remove", train), "nothing is removed")
    refused(cli("store", "remove", root), "nothing is removed")


@pytest.mark.parametrize(
    "options", [[], ["--layers", "0,2"], ["--first-token-only"], ["--splits", "dev"]], ids=" ".join
)
def test_the_estimate_is_what_is_then_written(cli, runs, words, tmp_path, options):
    code, out, _ = cli("store", "estimate", *words, *options, "--json")
    found = json.loads(out)
    assert code == 0 and list(found["bytes"]) == list(FORMATS)
    type = {0: "float32", 2: "int8" if "--splits" in options else "int4"}.get(len(options), "bfloat16")
    more = ["--store-dtype", type, "--store-dir", tmp_path / "s", "--runs", runs[0], "--json"]
    made = json.loads(cli("extract", *words, *options, *more)[1])
    assert sum(each["rows"] for each in made) == found["rows"]
    assert sum(each["tokens"] for each in made) == found["tokens"]
    assert sum(file.stat().st_size for file in (tmp_path / "s").rglob("*.states")) == found["bytes"][type]
    code, out, _ = cli("store", "estimate", *words, *options)
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:6]] == list(FORMATS)
    assert f"{found['rows']:,} rows" in out


def test_stored_states_give_the_scores_of_streamed_ones(cli, words, tmp_path):
    heads = ["--heads", "mean,learned:token_pooling=max", "--fractions", "0.5", "--store-dtype", "float32", "--json"]
    found = {}
    for mode in ("store", "stream"):
        code, out, _ = cli("run", *words, *heads, "--states", mode, "--runs", tmp_path / mode)
        assert code == 0
        found[mode] = [(row["kind"], row["name"], row["score"], row["validation"]) for row in json.loads(out)]
    assert found["store"] == found["stream"] and len(found["store"]) > 4
    assert sorted(path.parent.name.split("-")[0] for path in (tmp_path / "store").rglob("manifest.json")) == [
        "train",
        "validation",
    ]
    assert not list((tmp_path / "stream").rglob("*.states"))


@pytest.mark.parametrize("mode", ["store", "auto"])
@pytest.mark.parametrize("heads", ["mean", "adapter:layers=last2,token_pooling=cls"])
def test_train_uses_what_was_extracted(cli, runs, words, mode, heads):
    """A smaller view, or another type, needs no store of its own."""
    root, states = runs
    train = ["train", *words, "--heads", heads, "--states", mode, "--runs", root, "--json"]
    before = tree(states)
    code, out, _ = cli(*train)
    assert code == 0 and tree(states) == before
    for name in ("train", "validation"):  # they were read: what is wrong with them is noticed
        store = next(states.glob(f"{name}-*"))
        sound = (store / "00000.states").read_bytes()
        damage(store)
        refused(cli(*train, "--seed", "0", "--set", "train.learning_rate=2e-2"), store.name, "is damaged")
        (store / "00000.states").write_bytes(sound)


def test_stores_named_by_hand_must_be_of_the_same_states(cli, runs, words, tmp_path):
    root, mine = runs[0], tmp_path / "mine"
    given = ["--store-dir", mine, "--runs", root]
    assert cli("extract", *words, *given, "--splits", "train,validation")[0] == 0
    before = tree(mine)
    train = ["train", *words, *given, "--heads", "mean", "--states", "store"]
    assert cli(*train)[0] == 0
    refused(cli(*train, "--set", "finetune.learning_rate=2e-3"), "holds other hidden states", "backbone is ")
    refused(cli(*train, "--max-tokens", "12"), "max_tokens is 128 instead of 12")
    refused(cli(*train, "--limit", "60"), "data is ")
    refused(cli("extract", *words, *given, "--splits", "train", "--layers", "last"), "layers is 0-3 instead of [3]")
    refused(
        cli("extract", *words, *given, "--splits", "train", "--store-dtype", "int4"), "type is int8 instead of int4"
    )
    part = ["--store-dir", tmp_path / "part", "--runs", root]
    assert cli("extract", *words, *part, "--layers", "last2", "--splits", "train,validation")[0] == 0
    refused(cli("train", *words, *part, "--heads", "learned", "--states", "store"), "layers it holds [2, 3]")
    assert tree(mine) == before


def test_a_store_that_was_begun_is_finished(cli, runs, words):
    root, states = runs
    store = next(states.glob("train-*"))
    sound = {file.name: file.read_bytes() for file in store.iterdir()}
    header = json.loads(sound["manifest.json"])
    header.pop("checksum")
    for each in header["shards"]:
        each.pop("sha256")
    (store / "unfinished.json").write_text(json.dumps(header, indent=1) + "\n")
    for name in ("manifest.json", "00000.states"):
        (store / name).unlink()
    refused(cli("store", "info", store), "is unfinished", "it resumes")
    assert cli("extract", *words, "--store-dtype", "float32", "--splits", "train", "--runs", root)[0] == 0
    assert {file.name: file.read_bytes() for file in store.iterdir()} == sound
