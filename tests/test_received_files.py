"""Files that others made: what they may refer to, how large they may be, and what is said when they are malformed."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file

import bertvision
from bertvision.arrays import load_array, load_predictions, save_array, save_predictions
from bertvision.encoders import load_encoder, load_encoder_info
from bertvision.errors import BertVisionError
from bertvision.files import inside, parse_json, read_json, save_tensors
from bertvision.heads import HeadConfig
from bertvision.inputs.labels import ClassLabelEncoder
from bertvision.onnx_model import OnnxEncoder, exported_runs
from bertvision.pipeline import experiment
from bertvision.prediction_files import open_input
from bertvision.runs import open_run
from bertvision.tasks import TASKS
from bertvision.tasks.reading import read_squad, read_table
from bertvision.types import Predictions
from conftest import save_tiny

DEEP = b"[" * 3000 + b"]" * 3000


@pytest.fixture(scope="module")
def shared(tiny, reviews, tmp_path_factory) -> dict[str, Path]:
    """A shared head and a shared ensemble."""
    settings = {"fractions": [0.0], "controls": False, "train": {"epochs": 1, "learning_rate": 1e-2}}
    heads, folder = ["adapter:size=8,token_pooling=max"], tmp_path_factory.mktemp("shared")
    result = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=heads, root=folder / "runs", **settings)
    runs = {run.kind: run for run in result.runs}
    for kind in ("head", "ensemble"):
        bertvision.TrainedModel(runs[kind]).save_pretrained(folder / kind)
    return {kind: folder / kind for kind in ("head", "ensemble")}


@pytest.fixture
def received(shared, tmp_path):
    """Copy a shared model to a directory beside a secret one; return a function that edits one of its JSON files."""
    (tmp_path / "secret").mkdir()
    for path in [shared["head"], *shared["head"].iterdir()]:
        if path.is_file():
            shutil.copy(path, tmp_path / "secret" / path.name)

    def make(source="head", file="experiment.json", **changes):
        target = tmp_path / "received"
        if not target.exists():
            shutil.copytree(shared[source], target)
        values = json.loads((target / file).read_text())
        (target / file).write_text(json.dumps(values | changes))
        return target

    return make


def test_paths_stay_inside(tmp_path):
    (tmp_path / "root" / "a").mkdir(parents=True)
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.write_text("secret")
    (root / "file").write_text("")
    (root / "link").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    assert inside(root, "file") == inside(root, "../file", root / "a") == inside(root, "a/../file") == root / "file"
    assert inside(root, ".") == root
    for name in (
        "../outside",
        "a/../../outside",
        str(outside),
        "link",
        "folder/outside",
        "folder",
        "fi\0le",
        "fifo",
        300 * "x",
        3000 * "a/",
    ):
        with pytest.raises(BertVisionError, match="outside of it|symbolic link|neither a file|too long a name"):
            inside(root, name)


def test_links_of_the_hub_cache_are_followed(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "content").write_text("{}")
    (tmp_path / "secret").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/content")
    (snapshot / "vocab.txt").symlink_to(tmp_path / "secret")
    assert inside(snapshot, "config.json").read_text() == "{}"
    with pytest.raises(BertVisionError, match="symbolic link"):
        inside(snapshot, "vocab.txt")
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BertVisionError, match="symbolic link"):
        inside(snapshot, "config.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (DEEP, "nested more than 100 levels"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested more than 100 levels"),
        (b"[" + b"9" * 5000 + b"]", "number of 5,000 digits"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": "\xed\xa0\x80"}', "lone surrogate"),
        ('{"a": "\\ud800"}'.encode("utf-16"), "lone surrogate"),
        (b"\xff\xff", "decode"),
        (b"{", "Expecting"),
    ],
)
def test_json_of_unknown_origin(content, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        parse_json(content)
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(BertVisionError, match=f"not valid JSON, so it cannot be the record: .*{reason}"):
        read_json(tmp_path / "file.json", "record")


def test_sound_json_is_read(tmp_path):
    text = '{"a": [1, -2.5, "\\ud83d\\ude00", null, true, ' + "9" * 300 + "]}"
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
    (tmp_path / "large.json").write_text("1" * 11)
    with pytest.raises(BertVisionError, match="it has 11 bytes, more than 10"):
        read_json(tmp_path / "large.json", "record", max_bytes=10)


@pytest.mark.parametrize("content", [DEEP, b'{"text": ' + b"9" * 5000 + b"}", b'{"text": "\\udfff", "label": "a"}'])
def test_hostile_rows_of_data_files(content, tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b'{"text": "a", "label": "b"}\n' + content)
    with pytest.raises(BertVisionError, match="line 2: not valid JSON"):
        read_table(tmp_path / "data.jsonl")
    (tmp_path / "data.json").write_bytes(content)
    with pytest.raises(BertVisionError):
        read_squad(tmp_path / "data.json")


def test_texts_in_parquet_that_are_not_utf8(tmp_path):
    texts = pyarrow.array([b"a film", b"\xe1bc"], pyarrow.binary()).view(pyarrow.string())
    table = pyarrow.table({"text": texts, "label": ["a", "b"]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(BertVisionError, match="not a readable Parquet file"):
        read_table(tmp_path / "rows.parquet")
    with (
        open_input(tmp_path / "rows.parquet", TASKS["rotten-tomatoes"]) as opened,
        pytest.raises(BertVisionError, match="not a readable Parquet file"),
    ):
        list(opened.rows)


def test_numbers_of_thousands_of_digits_in_a_label_column(tmp_path):
    digits = "9" * 5000
    (tmp_path / "data.csv").write_text(f"text,label\na film,{digits}\na plot,1\n")
    with pytest.raises(BertVisionError):
        bertvision.TextClassifier("minilm").fit(str(tmp_path / "data.csv"))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 3000 + "]" * 3000,
        "seed = " + "9" * 5000,
        "seed = 9223372036854775808",
        "fractions = [" + "9" * 400 + "]",
        "seed = 4294967296",
        "seed = -1",
        "[data]\nsplit_seed = -1",
        "[data]\nlimit = 99999999999999999999",
    ],
)
def test_hostile_toml(text, tmp_path):
    (tmp_path / "e.toml").write_text(text)
    with pytest.raises(BertVisionError):
        experiment.load(tmp_path / "e.toml")


@pytest.mark.parametrize(
    "text", ["experiments = 3", "study = 3", "experiments = [1]", "[[experiments]]\nstudy = 2020-01-01", "preset = [1]"]
)
def test_files_of_experiments_with_other_types(text, tmp_path):
    (tmp_path / "e.toml").write_text(text)
    with pytest.raises(BertVisionError):
        experiment.load_several(tmp_path / "e.toml")


def test_the_largest_seed_trains(fast, texts, labels):
    model = bertvision.TextClassifier(**fast, random_state=2**32 - 1).fit(texts[:16], labels[:16])
    assert len(model.predict(texts[:2])) == 2


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("head", {"encoder_path": "../secret"}),
        ("head", {"encoder_path": "/etc"}),
        ("ensemble", {"members": ["../secret", "../secret"]}),
        ("ensemble", {"members": ["members/0", "/etc"]}),
        ("head", {"export": {"directory": "../secret", "bert_output": "a"}}),
    ],
)
def test_a_received_run_refers_to_nothing_outside(kind, changes, received, tmp_path):
    directory = received(kind, **changes)
    with pytest.raises(BertVisionError, match="Nothing outside of it is read"):
        bertvision.load(directory)
    with pytest.raises(BertVisionError, match="Nothing outside of it is read"):
        bertvision.TrainedModel(open_run(directory)).save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["/etc", "../secret", "~/secret", "./secret"])
def test_a_received_run_names_no_path_as_its_encoder(name, received):
    directory = received(encoder=name)
    for file in directory.glob("model*.safetensors"):
        file.unlink()
    with pytest.raises(BertVisionError, match="which is not a name"):
        bertvision.load(directory)


@pytest.mark.parametrize(
    "file", ["head.safetensors", "last.safetensors", "tokenizer.json", "config.json", "notes.json"]
)
def test_links_in_a_received_run_are_not_shared(file, received, tmp_path):
    directory = received()
    (directory / file).unlink(missing_ok=True)
    (directory / file).symlink_to(tmp_path / "secret" / "model.safetensors")
    with pytest.raises(BertVisionError, match="is a symbolic link"):
        bertvision.load(directory)


def test_only_files_of_a_model_are_shared(received, tmp_path):
    directory = received()
    (directory / "notes.json").write_text('"private"')
    bertvision.load(directory).save_pretrained(tmp_path / "again")
    assert {path.name for path in directory.iterdir()} - {path.name for path in (tmp_path / "again").iterdir()} == {
        "notes.json"
    }


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("experiment.json", {"format": [2]}),
        ("experiment.json", {"name": 3}),
        ("experiment.json", {"kind": "else"}),
        ("experiment.json", {"task": []}),
        ("experiment.json", {"task": {"kind": "text", "name": "x", "texts": 5}}),
        ("experiment.json", {"task": {"kind": "text", "name": "x", "texts": ["a"], "metrics": []}}),
        ("experiment.json", {"max_tokens": "128"}),
        ("experiment.json", {"members": "members"}),
        ("experiment.json", {"shape": {"num_layers": 4}}),
        ("experiment.json", {"settings": [1]}),
        ("metrics.json", {"scores": {}}),
        ("metrics.json", {"scores": {"accuracy": "high"}}),
        ("metrics.json", {"interval": [1]}),
        ("metrics.json", {"decoding": {"temperature": None}}),
        ("metrics.json", {"seconds": 3}),
    ],
)
def test_malformed_records(file, changes, received):
    directory = received(file=file, **changes)
    with pytest.raises(BertVisionError):
        bertvision.load(directory)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", DEEP])
@pytest.mark.parametrize("file", ["experiment.json", "metrics.json", "exported.json"])
def test_records_that_are_no_objects(file, content, received):
    directory = received()
    (directory / file).write_bytes(content)
    with pytest.raises(BertVisionError):
        bertvision.load(directory)


@pytest.mark.parametrize("size", ["0", "-1", "9" * 400])
def test_sizes_of_heads_are_bounded(size):
    with pytest.raises(BertVisionError, match="needs size >= 1, <= 1,000,000"):
        HeadConfig.parse(f"adapter:size={size}", "text")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_outputs": 10**7},
        {"max_tokens": 10**12},
        {"num_layers": 10**9},
        {"hidden_size": 10**6},
        {"hidden_size": 16},
    ],
)
def test_huge_heads_are_refused_before_memory_is_allocated(changes, received):
    directory = received()
    shape = json.loads((directory / "experiment.json").read_text())["shape"]
    received(shape=shape | changes)
    with pytest.raises(BertVisionError, match="damaged"):
        bertvision.load(directory)
    received(shape=shape, name="adapter:members=100,size=1000000,token_pooling=max")
    with pytest.raises(BertVisionError, match="its head needs"):
        bertvision.load(directory)


def test_a_tokenizer_with_more_tokens_than_the_encoder(received):
    directory = received()
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {word: number + 5000 for word, number in tokenizer["model"]["vocab"].items()}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BertVisionError, match="no embedding for a token"):
        bertvision.load(directory).predict("the film was good")


@pytest.mark.parametrize("manifest", [{}, {"runs": "x"}, {"runs": [3]}, {"runs": ["../secret"]}, {"runs": ["/etc"]}])
def test_malformed_manifests_of_exports(manifest, tmp_path):
    sound = {"format": 3, "type": "float32", "weights": "0", "sha256": "0", "runs": []}
    (tmp_path / "exported.json").write_text(json.dumps(sound | manifest if manifest else {}))
    with pytest.raises(BertVisionError, match="damaged|outside of it"):
        exported_runs(tmp_path)


def test_links_in_an_export(tmp_path):
    sound = {"format": 3, "type": "float32", "weights": "0", "sha256": "0", "runs": []}
    (tmp_path / "exported.json").write_text(json.dumps(sound))
    (tmp_path / "model.onnx.data").symlink_to("/etc/passwd")
    with pytest.raises(BertVisionError, match="is a symbolic link"):
        OnnxEncoder(tmp_path)


def test_arrays_with_pickles_or_false_sizes(tmp_path):
    path = tmp_path / "a.npy"
    save_array(path, np.arange(3.0))
    assert load_array(path, "file").tolist() == [0, 1, 2]
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BertVisionError, match="Python objects"):
        load_array(path, "file")
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"shape": (10**12,), "fortran_order": False, "descr": "<f8"})
    with pytest.raises(BertVisionError, match="is not that of an array of shape"):
        load_array(path, "file")
    predictions = Predictions(ids=["a", "b"], logits=np.zeros((2, 3), np.float32))
    save_predictions(tmp_path / "p.npz", predictions)
    assert load_predictions(tmp_path / "p.npz").ids == ["a", "b"]
    np.savez_compressed(tmp_path / "p.npz", ids=np.array(["a"]), logits=np.zeros((1, 2), np.float32))
    with pytest.raises(BertVisionError, match="it is compressed"):
        load_predictions(tmp_path / "p.npz")
    for ids, logits in (
        (["a"], np.zeros((2, 2), np.float32)),
        (["a"], np.zeros(1, np.float32)),
        ([1], np.zeros((1, 2))),
    ):
        np.savez(tmp_path / "p.npz", ids=np.array(ids), logits=logits)
        with pytest.raises(BertVisionError, match="predictions file"):
            load_predictions(tmp_path / "p.npz")
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("ids.npy", b"nothing")
    with pytest.raises(BertVisionError, match="not a readable predictions file"):
        load_predictions(tmp_path / "p.npz")


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"classes": 3, "dtype": "<U1"},
        {"classes": ["a"], "dtype": "<U99999999"},
        {"classes": ["a", []], "dtype": "O"},
    ],
)
def test_damaged_labels(description):
    with pytest.raises(BertVisionError, match="labels are damaged"):
        ClassLabelEncoder.from_dict(description)


def _edited(**changes):
    def edit(directory, file="config.json"):
        (directory / file).write_text(json.dumps(json.loads((directory / file).read_text()) | changes))

    return edit


def _tokenizer(**changes):
    return lambda directory: _edited(**changes)(directory, "tokenizer_config.json")


def _written(file, content):
    return lambda directory: (directory / file).write_text(content)


def _sharded(directory):
    index = {
        "metadata": {},
        "weight_map": dict.fromkeys(load_file(directory / "model.safetensors"), "../w.safetensors"),
    }
    (directory / "model.safetensors").rename(directory.parent / "w.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _linked(directory):
    (directory / "model.safetensors").rename(directory.parent / "w.safetensors")
    (directory / "model.safetensors").symlink_to(directory.parent / "w.safetensors")


def _without_embeddings(directory):
    tensors = load_file(directory / "model.safetensors")
    save_tensors(directory / "model.safetensors", {k: v for k, v in tensors.items() if "word_emb" not in k})
    _edited(vocab_size=2**31)(directory)


HOSTILE = {
    "no heads": _edited(num_attention_heads=0),
    "million layers": _edited(num_hidden_layers=10**6),
    "negative layers": _edited(num_hidden_layers=-1),
    "billion labels": _edited(num_labels=10**9),
    "wide": _edited(hidden_size=10**9),
    "no width": _edited(hidden_size=0),
    "wrong type": _edited(num_hidden_layers="three"),
    "model type": _edited(model_type=["bert"]),
    "dtype": _edited(dtype="evil"),
    "padding": _edited(pad_token_id=10**9),
    "kernel": _edited(attn_implementation="some/kernel"),
    "quantized": _edited(quantization_config={"quant_method": "gptq", "bits": 4}),
    "list": _written("config.json", "[]"),
    "deep": _written("config.json", DEEP.decode()),
    "digits": _written("config.json", '{"model_type": "bert", "hidden_size": ' + "9" * 5000 + "}"),
    "tokenizer list": _written("tokenizer_config.json", "[]"),
    "tokenizer class": _tokenizer(tokenizer_class=["a"]),
    "tokenizer of protobuf": _tokenizer(tokenizer_class="T5Tokenizer"),
    "tokenizer length": _tokenizer(model_max_length="x"),
    "no tokens": _tokenizer(model_max_length=-1),
    "inputs that are no names": _tokenizer(model_input_names=["input_ids", ["a"]]),
    "no input": _tokenizer(model_input_names=["attention_mask"]),
    "special tokens": _written("special_tokens_map.json", "[]"),
    "added tokens": _written("added_tokens.json", '{"x": "y"}'),
    "registered": _written("registered_encoder.json", "[]"),
    "registered list": _written("registered_encoder.json", '{"name": ["x"]}'),
    "adapter": _written("adapter_config.json", '{"base_model_name_or_path": "/etc"}'),
    "weights elsewhere": _sharded,
    "link": _linked,
    "missing embeddings": _without_embeddings,
    "own head": _written("last.safetensors", "no tensors"),
}


WEIGHTS = {"own head", "missing embeddings", "padding", "no heads", "wide", "no width", "dtype"}
"""Those that are found when the weights are read."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_model_directories(name, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    HOSTILE[name](tmp_path / "model")
    with pytest.raises(BertVisionError):
        load_encoder(str(tmp_path / "model"))
    if name not in WEIGHTS:
        with pytest.raises(BertVisionError):
            load_encoder_info(str(tmp_path / "model"))


def test_outputs_do_not_depend_on_the_configuration(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    _edited(return_dict=False, output_hidden_states=False)(tmp_path / "model")
    hidden = [
        load_encoder(str(place)).encoder({"input_ids": torch.ones(1, 4, dtype=torch.long)}, torch.ones(1, 4).bool())
        for place in (tiny, tmp_path / "model")
    ]
    assert torch.equal(*hidden)


def test_a_sharded_checkpoint_is_read(tmp_path):
    from transformers import AutoModel

    place = save_tiny(tmp_path / "model")
    before = load_encoder(str(place)).encoder.weights_hash()
    model = AutoModel.from_pretrained(place)
    (place / "model.safetensors").unlink()
    model.save_pretrained(place, max_shard_size="20KB")
    assert (place / "model.safetensors.index.json").is_file()
    assert load_encoder(str(place)).encoder.weights_hash() == before
