"""Feed malformed files, texts and requests to everything that reads what others wrote. tests/test_fuzzing.py runs it.

    python tests/fuzzing.py --inputs 100000 --seed 0 [--target stores]

An input is answered, or refused with a BertVisionError (HTTP: a status below 500). Everything else is a finding: other
exceptions, more than 5 seconds, files opened outside of the given directories, processes, connections, and code.
"""

import argparse
import asyncio
import hashlib
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import struct
import sys
import sysconfig
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "states"))

MAX_SECONDS = 5.0  # of CPU time; without any, 60 s
MEMORY = 6 * 1024**3
SHARES = {
    "toml": 20,
    "heads": 18,
    "data": 18,
    "tokens": 8,
    "stores": 8,
    "records": 8,
    "exports": 2,
    "models": 5,
    "http": 18,
}
"""How many of 105 inputs each target gets."""
FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
)
PATHS = [
    "../secret",
    "/etc/passwd",
    "../secret/model.safetensors",
    "~/x",
    ".",
    "..",
    "members/0",
    "a\0b",
    "x" * 300,
    "evil.py",
]
WORDS = ["", " ", "a", "nan", "\u202e", "😀", "\ud800", "__import__('os').system('x')", "{}", "%s%n", "a" * 5000, "é"]
NUMBERS = [0, 1, -1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")]
HEADS = [
    "adapter:size=8,token_pooling=max",
    "learned",
    "default:members=3",
    "adapter-skip:layers=0,2,encoding=both",
    "cnn",
]
HEADS += [
    "adapter:encoding=bi,layers=every2,token_pooling=max+compare",
    "bert-head:layers=last",
    "last:copies=2,gather=max",
]


class TookTooLong(BaseException):
    """An input was not answered in time."""


@dataclass
class AuditWatch:
    """Watches a process through its audit events while an input is read."""

    allowed: list[str]
    active: bool = False
    seen: set[str] = field(default_factory=set)

    def install(self) -> None:
        """Watch from now on; an audit hook cannot be removed."""
        own = [
            sys.prefix,
            sys.base_prefix,
            sysconfig.get_path("stdlib"),
            "/proc",
            "/sys",
            "/dev",
            "/usr/share/zoneinfo",
            os.path.expanduser("~/.cache/huggingface"),  # a record may name an encoder of the Hub
        ]
        source = Path(__file__).resolve().parents[1]
        self.allowed += [os.path.realpath(path) for path in [*own, str(source / "src"), str(source / "tests")]]
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in FORBIDDEN:
            self.seen.add(f"{event} {str(args)[:80]}")
        elif event == "open" and isinstance(args[0], str | bytes):
            self._check(event, os.path.realpath(os.fsdecode(args[0])))
        elif event == "exec" and not (name := args[0].co_filename).startswith("<"):
            self._check(event, os.path.realpath(name))

    def _check(self, event: str, path: str) -> None:
        if not path.startswith(tuple(self.allowed)):
            self.seen.add(f"{event} {path}")


@dataclass
class Report:
    """What a campaign found."""

    inputs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)
    slowest: float = 0.0


class Files:
    """A directory that is changed for each input and restored after it."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.content = {
            path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
        }

    @contextmanager
    def changed(self, changes: dict[str, Any]) -> Iterator[Path]:
        """Write other contents: bytes, None for no file, a Path for a link, or "fifo"."""
        for name, content in changes.items():
            path = self.directory / name
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif isinstance(content, Path):
                path.symlink_to(content)
            elif content == "fifo":
                os.mkfifo(path)
        try:
            yield self.directory
        finally:
            for name in changes:
                (self.directory / name).unlink(missing_ok=True)
                if name in self.content:
                    (self.directory / name).write_bytes(self.content[name])


def leaf(draw: random.Random) -> Any:
    """Return a value that programs do not expect."""
    return draw.choice([None, True, False, [], {}, [[]], *draw.choice([PATHS, WORDS, NUMBERS, HEADS])])


def value(draw: random.Random, depth: int) -> Any:
    """Return a nested value."""
    if depth == 0 or draw.random() < 0.5:
        return leaf(draw)
    if draw.random() < 0.5:
        return [value(draw, depth - 1) for _ in range(draw.randint(0, 4))]
    return {str(leaf(draw))[:20]: value(draw, depth - 1) for _ in range(draw.randint(0, 4))}


def mutated(draw: random.Random, original: Any) -> Any:
    """Return a copy of a JSON value in which one to three places differ."""
    copy = json.loads(json.dumps(original))
    for _ in range(draw.randint(1, 3)):
        here = copy
        while isinstance(here, dict | list) and here:
            key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
            if draw.random() < 0.4 or not isinstance(here[key], dict | list) or not here[key]:
                _change(draw, here, key)
                break
            here = here[key]
    return copy if draw.random() > 0.02 else value(draw, 3)


def _change(draw: random.Random, here: Any, key: Any) -> None:
    kind, old = draw.random(), here[key]
    if kind < 0.15:
        del here[key]
    elif kind < 0.3 and isinstance(here, list):
        here.insert(key, old)
    elif kind < 0.45 and type(old) in (int, float):
        here[key] = draw.choice([old + 1, old - 1, -old, old * 1000, old * 10**9, str(old)[:4000], [old]])
    elif kind < 0.55 and isinstance(here, dict):
        here[draw.choice([*PATHS, *WORDS, "auto_map", "quantization_config", "attn_implementation"])] = value(draw, 2)
    else:
        here[key] = leaf(draw) if kind < 0.9 else value(draw, 3)


def encoded(draw: random.Random, content: Any) -> bytes:
    """Return JSON, sometimes damaged or nested deeply."""
    text = json.dumps(content).encode("utf-8", "surrogatepass")
    kind = draw.random()
    if kind < 0.02:
        return b"[" * draw.choice([50, 900, 100_000]) + text
    if kind < 0.04:
        depth = draw.choice([50, 99, 300, 5000])
        return b'{"a":' * depth + text + b"}" * depth
    return damaged(draw, text) if kind < 0.12 else text


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Return bytes of which some are changed, inserted or missing."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at, kind = draw.randint(0, len(data)), draw.random()
        if kind < 0.4 and at < len(data):
            data[at] = draw.randrange(256)
        elif kind < 0.6:
            data[at:at] = draw.choice(
                [b"\0", b"\xff\xfe", b'"', b"[[[[", b"9" * 5000, b"\n", b"\r", b",", b"\xed\xa0\x80"]
            )
        elif kind < 0.8:
            del data[at : at + draw.randint(1, 40)]
        else:
            data = data[:at]
    return bytes(data)


def special(draw: random.Random, secret: Path) -> Any:
    """Return something else than a file of its own content."""
    return draw.choice(
        [None, secret / "model.safetensors", Path("/etc/passwd"), "fifo", b"", b"\x80\x04cos\nsystem\n."]
    )


Read = Callable[[random.Random], None]


def toml_target(folder: Path, secret: Path) -> Read:
    """Experiment files and settings of the command line."""
    from bertvision.pipeline import experiment

    base = experiment.Experiment().to_dict()
    keys = [*base, *(f"{table}.{key}" for table in base if isinstance(base[table], dict) for key in base[table])]
    presets = Path(experiment.__file__).with_name("presets.toml").read_bytes()
    path = folder / "e.toml"

    def text(draw: random.Random) -> str:
        entry = leaf(draw)
        return draw.choice(
            [json.dumps(entry), str(entry), f"[{entry}, {entry}]", '"""', "1979-05-27T07:32:00Z", "0xff", "inf"]
        )

    def read(draw: random.Random) -> None:
        if draw.random() < 0.3:
            content = damaged(draw, presets)
        else:
            lines = [
                f"{draw.choice([*keys, *WORDS, 'study', 'experiments'])} = {text(draw)}"
                for _ in range(draw.randint(1, 5))
            ]
            content = "\n".join(lines).encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        if draw.random() < 0.6:
            draw.choice([experiment.load, experiment.load_several])(path)
        else:
            experiment.load(None, [f"{draw.choice(keys)}={text(draw)}"])

    return read


def heads_target(folder: Path, secret: Path) -> Read:
    """Specifications of heads."""
    from bertvision.cli.options import split_specs
    from bertvision.heads import HeadConfig, count_parameters, resolve_heads
    from bertvision.types import HeadShape

    options = [
        "size",
        "layers",
        "members",
        "token_pooling",
        "encoding",
        "pooler_output",
        "dropout",
        "copies",
        "gather",
        "x",
    ]
    values = [
        "8",
        "all",
        "every2",
        "0-2",
        "2-0",
        "9" * 400,
        "-1",
        "max+compare+align",
        "bi",
        "true",
        "nan",
        "1e9",
        "last99",
        "",
    ]
    shape = HeadShape(num_layers=4, max_tokens=16, hidden_size=32, num_outputs=2, per_token=False, pooler_output=True)

    def read(draw: random.Random) -> None:
        spec = draw.choice(HEADS)
        if draw.random() < 0.6:
            pairs = (f"{draw.choice(options)}={draw.choice([*values, *WORDS])}" for _ in range(draw.randint(0, 4)))
            spec = f"{spec.partition(':')[0]}:{','.join(pairs)}"
        if draw.random() < 0.5:
            spec = damaged(draw, spec.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
        kind = draw.choice(["text", "pair", "span"])
        for config in resolve_heads(split_specs(spec), kind) if draw.random() < 0.5 else [HeadConfig.parse(spec, kind)]:
            count_parameters(config, shape)

    return read


def data_target(folder: Path, secret: Path) -> Read:
    """Data files of users."""
    import pyarrow
    import pyarrow.parquet

    from bertvision.inputs import read_rows
    from bertvision.inputs.custom_tasks import task_from_files
    from bertvision.prediction_files import open_input
    from bertvision.tasks import TASKS, UserFiles
    from bertvision.tasks.reading import read_squad
    from conftest import squad_json

    rows = [
        {"text": f"a film {i}", "text_pair": "a plot", "label": ["good", "bad"][i % 2], "score": i / 3}
        for i in range(8)
    ]
    squad = squad_json(1, 1, 0)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    parquet = (folder / "rows.parquet").read_bytes()

    def table(draw: random.Random, separator: str) -> bytes:
        cells = [list(rows[0])] + [[str(cell) for cell in row.values()] for row in rows]
        for _ in range(draw.randint(0, 3)):
            row = draw.choice(cells)
            row[draw.randrange(len(row))] = draw.choice([*WORDS, "9" * 5000, '"', "a\nb", "nan", "inf", "1", "-0"])
        return "\n".join(separator.join(row) for row in cells).encode("utf-8", "surrogatepass")

    def content(draw: random.Random, ending: str) -> bytes:
        if ending == "parquet":
            return parquet
        if ending == "json":
            return encoded(draw, mutated(draw, squad))
        if ending == "jsonl":
            return b"\n".join(
                encoded(draw, mutated(draw, row)) if draw.random() < 0.3 else json.dumps(row).encode() for row in rows
            )
        return table(draw, "\t" if ending == "tsv" else ",")

    def read(draw: random.Random) -> None:
        ending = draw.choice(["csv", "tsv", "jsonl", "json", "csv", "jsonl", "parquet"])
        data = content(draw, ending)
        path = folder / f"data.{ending}"
        path.write_bytes(damaged(draw, data) if draw.random() < 0.4 or ending == "parquet" else data)
        kind = draw.random()
        if kind < 0.3:
            with open_input(path, TASKS["squad2" if ending == "json" else "rotten-tomatoes"]) as opened:
                list(opened.rows)
        elif ending == "json":
            read_squad(path, training=draw.random() < 0.5)
        elif kind < 0.65:
            task_from_files(UserFiles(train=str(path)), label=draw.choice(["label", "score"])).read(path)
        else:
            read_rows(path, None, labelled=True)

    return read


def tokens_target(folder: Path, secret: Path) -> Read:
    """Data files of texts with entities: CoNLL, words and tags, texts and spans."""
    from bertvision.prediction_files import open_input
    from bertvision.tasks import TASKS
    from bertvision.token_tasks.reading import read_tagged_file

    words = ["Ann", "lives", "in", "New", "York", "."]
    tags = ["B-person", "O", "O", "B-place", "I-place", "O"]
    spans = [[0, 3, "person"], {"start": 13, "end": 21, "label": "place"}]
    tables = [{"tokens": words, "tags": tags}, {"text": "Ann lives in New York.", "spans": spans}]
    odd = [*WORDS, *tags, "I-person", "S-place", "B-", "-", "E-x", "-DOCSTART- O", "#", "\t", "1"]

    def conll(draw: random.Random) -> bytes:
        lines = [f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True)]
        for _ in range(draw.randint(0, 3)):
            cells = (
                draw.choice([draw.choice(words), draw.choice(odd)]),
                draw.choice([draw.choice(tags), draw.choice(odd)]),
            )
            lines[draw.randrange(len(lines))] = draw.choice(["\t", " ", "\t\t", ""]).join(cells)
        return "\n".join([*lines, "", *lines]).encode("utf-8", "surrogatepass")

    def read(draw: random.Random) -> None:
        ending = draw.choice(["conll", "jsonl", "jsonl", "txt"])
        if ending == "jsonl":
            row = draw.choice(tables)
            data = b"\n".join(
                encoded(draw, mutated(draw, row)) if draw.random() < 0.5 else json.dumps(row).encode() for _ in range(3)
            )
        else:
            data = conll(draw)
        path = folder / f"tagged.{ending}"
        path.write_bytes(damaged(draw, data) if draw.random() < 0.2 else data)
        if draw.random() < 0.3:
            with open_input(path, TASKS["wnut17"]) as opened:
                list(opened.rows)
        else:
            read_tagged_file(path, scheme=draw.choice(["auto", "auto", "iob2", "iobes"]))

    return read


def stores_target(folder: Path, secret: Path) -> Read:
    """Stores of hidden states, whose checksums are right."""
    import numpy as np
    from fakes import Made
    from safetensors.numpy import load, save

    from bertvision.lab.store_maintenance import verify_store
    from bertvision.states import BatchPlan, Store, StoredStates
    from bertvision.states.layout import canonical, seal

    Made([5, 1, 17, 30, 2, 9, 9, 12], width=5).write(folder / "store", shard=2000)
    files = Files(folder / "store")
    manifest = {key: v for key, v in json.loads(files.content["manifest.json"]).items() if key != "checksum"}
    tables = load(files.content["rows.safetensors"])

    def rows(draw: random.Random) -> bytes:
        arrays = {name: array.copy() for name, array in tables.items()}
        name = draw.choice(list(arrays))
        kind = draw.random()
        if kind < 0.3:
            arrays[name] = arrays[name][: draw.randint(0, len(arrays[name]))]
        elif kind < 0.4:
            del arrays[name]
        elif kind < 0.6 and name != "ids":
            arrays[name][draw.randrange(len(arrays[name]))] = draw.choice([0, -1, 2**62, 2**31, 10**6])
        elif kind < 0.8:
            arrays[name] = arrays[name].astype(draw.choice(["f4", "u1", "i2", "f8", "i8"]))
        else:
            arrays["ids"] = np.frombuffer(encoded(draw, mutated(draw, json.loads(tables["ids"].tobytes()))), np.uint8)
        return save(arrays)

    def changes(draw: random.Random) -> dict[str, Any]:
        kind = draw.random()
        if kind < 0.1:
            return {draw.choice(list(files.content)): special(draw, secret)}
        if kind < 0.2:
            name = draw.choice(list(files.content))
            return {name: damaged(draw, files.content[name])}
        data = rows(draw) if kind < 0.6 else files.content["rows.safetensors"]
        header = manifest | {"rows": manifest["rows"] | {"sha256": hashlib.sha256(data).hexdigest()}}
        header = header if kind < 0.4 else mutated(draw, header)
        sealed = seal(header) if isinstance(header, dict) else canonical(header)
        return {"manifest.json": sealed, "rows.safetensors": data}

    def read(draw: random.Random) -> None:
        try:
            change = changes(draw)
        except UnicodeEncodeError:  # a manifest with a lone surrogate cannot be sealed
            return
        with files.changed(change) as directory:
            store = Store(directory)
            list(verify_store(store))
            list(StoredStates(store, BatchPlan(store.row_table.lengths, 3), threads=0).epoch(0))

    return read


def records_target(folder: Path, secret: Path) -> Read:
    """Run directories, shared and exported models: all files but the encoder."""
    import bertvision
    from bertvision.runs import open_run
    from bertvision.trained_model import load
    from conftest import review

    draw = random.Random(0)
    (folder / "train.csv").write_text(
        "text,label\n" + "\n".join(f"{review(i % 2 == 0, draw)},{i % 2}" for i in range(60))
    )
    settings = {
        "heads": ["adapter:size=4,token_pooling=max"],
        "fractions": [0.0],
        "controls": False,
        "train": {"epochs": 1},
    }
    runs = bertvision.run(
        train_file=str(folder / "train.csv"), encoder=str(secret), root=folder / "runs", **settings
    ).runs
    targets = []
    for run in runs:
        shutil.copytree(run.directory, folder / run.kind / "run")
        load(run).save_pretrained(folder / run.kind / "model")
        for name in ("validation.npz", "predictions.npz", "outcomes.npy"):
            shutil.copy(run.directory / name, folder / run.kind / "model" / name)
        targets.append(Files(folder / run.kind / "model"))

    def change(draw: random.Random, files: Files) -> dict[str, Any]:
        names = [name for name in files.content if Path(name).suffix in (".json", ".npz", ".npy", ".safetensors")]
        name = draw.choice(
            [*names, *[name for name in names if name.endswith(("experiment.json", "metrics.json"))] * 3]
        )
        content = files.content[name]
        if draw.random() < 0.06:
            return {name: special(draw, secret)}
        if not name.endswith(".json"):
            return {name: damaged(draw, content) if draw.random() < 0.7 else header(draw, name, content)}
        return {name: encoded(draw, mutated(draw, json.loads(content)))}

    def header(draw: random.Random, name: str, content: bytes) -> bytes:
        if not name.endswith(".safetensors"):
            return content.replace(
                b"'shape': (", b"'shape': (" + draw.choice([b"99999", b"10000000000,", b"-", b"None,"])
            )
        (size,) = struct.unpack("<Q", content[:8])
        head = json.dumps(mutated(draw, json.loads(content[8 : 8 + size]))).encode()
        return struct.pack("<Q", len(head)) + head + content[8 + size :]

    def read(draw: random.Random) -> None:
        files = draw.choice(targets)
        with files.changed(change(draw, files)) as directory:
            run = open_run(directory)
            steps = [lambda: run.record.to_dict(), lambda: run.metrics.to_dict(), run.predictions, run.outcomes]
            steps += [run.members, run.bert, lambda: run.encoder_source]
            if draw.random() < 0.2:
                steps = [lambda: load(directory).predict("a film", nbest=2, bert=True)]
            errors = []
            for step in steps:
                try:
                    step()
                except bertvision.errors.BertVisionError as error:
                    errors.append(error)
            if errors:
                raise errors[0]

    return read


def exports_target(folder: Path, secret: Path) -> Read:
    """Exported models, whose graphs have the recorded hash."""
    import onnx

    from bertvision.pipeline import dev_examples, experiment_of
    from bertvision.serving.onnx_export import export_onnx
    from bertvision.trained_model import load_all

    run = tiny_run(folder, secret)
    (model,) = load_all([run])
    export_onnx([model], folder / "export", [dev_examples(experiment_of(run))])
    files = Files(folder / "export")
    graph = onnx.load_from_string(files.content["model.onnx"])
    manifest = json.loads(files.content["exported.json"])
    jsons = [name for name in files.content if name.endswith(("experiment.json", "metrics.json", "config.json"))]

    def changed_graph(draw: random.Random) -> bytes:
        copy = onnx.ModelProto()
        copy.CopyFrom(graph)
        for _ in range(draw.randint(1, 3)):
            node, weights = draw.choice(copy.graph.node), draw.choice(copy.graph.initializer)
            kind = draw.random()
            if kind < 0.2 and node.input:
                node.input[draw.randrange(len(node.input))] = draw.choice(["input_ids", "nothing", "", weights.name])
            elif kind < 0.4:
                node.op_type = draw.choice(["Add", "MatMul", "Gather", "Reshape", "Loop", "evil", "Cast"])
            elif kind < 0.6 and weights.dims:
                weights.dims[draw.randrange(len(weights.dims))] = draw.choice([0, 1, 7, 2**40, -1])
            elif kind < 0.7:
                weights.raw_data = weights.raw_data[: draw.randint(0, len(weights.raw_data))]
            elif kind < 0.8:
                copy.graph.node.remove(node)
            elif kind < 0.9:
                output = draw.choice(copy.graph.output)
                output.name = draw.choice([draw.choice(copy.graph.node).output[0], "input_ids", "x"])
            else:
                weights.data_location = onnx.TensorProto.EXTERNAL
                weights.external_data.add(key="location", value=draw.choice([*PATHS[:4], str(secret / "config.json")]))
        return copy.SerializeToString()

    def change(draw: random.Random) -> dict[str, Any]:
        kind = draw.random()
        if kind < 0.05:
            return {draw.choice(list(files.content)): special(draw, secret)}
        if kind < 0.35:
            name = draw.choice([*jsons, "exported.json", "exported.json"])
            return {name: encoded(draw, mutated(draw, json.loads(files.content[name])))}
        data = changed_graph(draw) if kind < 0.8 else damaged(draw, files.content["model.onnx"])
        sealed = manifest | {"sha256": hashlib.sha256(data).hexdigest()}
        return {"model.onnx": data, "exported.json": json.dumps(sealed).encode()}

    def read(draw: random.Random) -> None:
        with files.changed(change(draw)) as directory:
            for exported in load_all([directory]):
                exported.predict("a film", bert=draw.random() < 0.5)

    return read


def tiny_run(folder: Path, encoder: Path) -> Any:
    """Train a small head, and return its run."""
    import bertvision
    from conftest import review

    draw = random.Random(0)
    rows = [f"{review(number % 2 == 0, draw)},{number % 2}" for number in range(60)]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    settings = {"heads": ["adapter:size=4,token_pooling=max"], "fractions": [0.0], "controls": False}
    return bertvision.run(
        train_file=str(folder / "train.csv"),
        encoder=str(encoder),
        root=folder / "runs",
        train={"epochs": 1},
        **settings,
    ).best


def models_target(folder: Path, secret: Path) -> Read:
    """Directories of encoders."""
    import torch

    from bertvision.encoders import load_encoder, load_encoder_info

    shutil.copytree(secret, folder / "model")
    (folder / "model" / "evil.py").write_text(f"open({str(folder / 'EXECUTED')!r}, 'w')")
    files = Files(folder / "model")
    jsons = ["config.json"] * 6 + ["tokenizer_config.json"] * 4 + ["tokenizer.json"] * 2
    jsons += ["special_tokens_map.json", "added_tokens.json", "registered_encoder.json", "model.safetensors.index.json"]

    def change(draw: random.Random) -> dict[str, Any]:
        name = draw.choice(jsons)
        if draw.random() < 0.1:
            name = draw.choice(list(files.content))
            return {name: damaged(draw, files.content[name]) if draw.random() < 0.5 else special(draw, secret)}
        return {name: encoded(draw, mutated(draw, json.loads(files.content.get(name, b'{"name": "minilm"}'))))}

    def read(draw: random.Random) -> None:
        with files.changed(change(draw)) as directory:
            if draw.random() < 0.5:
                load_encoder_info(str(directory))
                return
            encoder = load_encoder(str(directory)).encoder
            mask = torch.ones(1, 3, dtype=torch.bool)
            with torch.no_grad():
                encoder({"input_ids": torch.ones(1, 3, dtype=torch.long)}, mask)

    return read


class ClientTransport(asyncio.Transport):
    """The client's side of a connection without a socket: collects what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def write_eof(self) -> None:
        pass

    pause_reading = resume_reading = write_eof


def raw_request(draw: random.Random, path: str, content: bytes) -> bytes:
    """Return the bytes of a request, whose head is often malformed."""
    kind = draw.choice(["application/json"] * 8 + ["text/plain", "", "application/json; charset=utf-7"])
    method = draw.choice(["POST"] * 12 + ["GET", "HEAD", "OPTIONS", "PUT", "post", "CONNECT", "\0"])
    lines = [f"{method} {path} HTTP/{draw.choice(['1.1'] * 12 + ['1.0', '2.0', '0.9', 'x'])}", "Host: x"]
    lines.append(f"Content-Type: {kind}")
    if draw.random() < 0.2:
        name = draw.choice(["Authorization", "X-Request-Id", "Accept", "Content-Encoding", "Expect", "Upgrade", "Host"])
        odd = ["100-continue", "websocket", "gzip", "Basic !", "x" * draw.choice([10, 5000, 20_000])]
        lines += [f"{name}: {draw.choice(odd)}"] * draw.choice([1, 1, 1, 120])
    if draw.random() < 0.1:
        lines.append("Transfer-Encoding: chunked")
        content = b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
    else:
        length = draw.choice([len(content)] * 16 + [len(content) + 1, len(content) // 2, -1, 10**25, 3 * 2**20])
        lines.append(f"Content-Length: {length}")
    if draw.random() < 0.1:
        lines.append("Connection: close")
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return (damaged(draw, head) if draw.random() < 0.1 else head) + content


def http_target(folder: Path, secret: Path) -> Read:
    """Bytes of requests to a server without sockets, in this process."""
    import uvicorn
    from uvicorn.server import ServerState

    import bertvision
    from bertvision.serving import ServerSettings
    from bertvision.serving.app import create_app
    from bertvision.serving.connections import Connection, Phase
    from bertvision.serving.logs import JsonLogger

    best = tiny_run(folder, secret)
    log = io.StringIO()
    application = create_app([bertvision.load(best.directory)], ServerSettings(), JsonLogger(log))
    loop = asyncio.new_event_loop()
    config = uvicorn.Config(application.middleware, log_config=None, access_log=False, ws="none", lifespan="on")
    server_state, started = ServerState(), []

    async def exchange(pieces: list[bytes]) -> bytes:
        """Send a request in pieces; leave if the server waits for more."""
        transport = ClientTransport()
        connection = Connection(config, server_state, {}, loop, connections=application.connections)
        connection.connection_made(transport)
        for piece in pieces:
            if not transport.closed:
                connection.data_received(piece)
                await asyncio.sleep(0)
        while connection.phase in (Phase.REQUEST, Phase.HELD) and connection._message_complete:
            await asyncio.sleep(0.0002)
        connection.connection_lost(None)
        while server_state.tasks:
            await asyncio.sleep(0)
        if application.connections.open or application.connections.admission.active:
            raise RuntimeError("the connection or the place of the request is still counted")
        return bytes(transport.written)

    async def start() -> None:
        events: asyncio.Queue[Any] = asyncio.Queue()
        await events.put({"type": "lifespan.startup"})
        ready = asyncio.Event()

        async def send(message: Any) -> None:
            ready.set()

        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        started.append(asyncio.ensure_future(application.middleware(scope, events.get, send)))
        await ready.wait()

    loop.run_until_complete(start())
    name = next(iter(application.service.models))
    plain = {"items": ["a film", {"text": "a plot"}], "models": [name], "nbest": 2, "bert": True, "timeout": 5.0}
    plain |= {"ids": ["a", 1], "top_k": 2}
    kserve = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a film"]}], "id": "1"}
    hugging_face = {"inputs": ["a film", "a plot"], "parameters": {"top_k": 1}, "model": name}
    paths = [("/v1/predict", plain)] * 4 + [(f"/v2/models/{name}/infer", kserve)] * 2
    paths += [("/predict", hugging_face)] * 2
    paths += [("/v2/models/x/infer", kserve), ("/nothing", plain), ("/v1/models", {}), ("/%ff%00/..", plain)]

    def read(draw: random.Random) -> None:
        path, body = draw.choice(paths)
        if draw.random() < 0.3:  # a valid body of other texts
            texts = json.dumps(draw.choice([*WORDS[2:], *HEADS]))
            content = json.dumps(body).encode().replace(b'"a film"', texts.encode("utf-8", "surrogatepass"))
        else:
            content = encoded(draw, mutated(draw, body))
        raw = raw_request(draw, path, content)
        cuts = sorted(draw.randint(0, len(raw)) for _ in range(draw.choice([0, 0, 1, 5])))
        pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        answer = loop.run_until_complete(exchange(pieces))
        status = int(answer[9:12]) if answer else 400
        if status >= 500 or b"Traceback" in answer or '"failure"' in log.getvalue():
            raise RuntimeError(f"status {status}: {answer[-200:]!r} {log.getvalue()[-1000:]}")
        log.seek(0)
        log.truncate()
        if status >= 400:
            raise bertvision.errors.BertVisionError(f"status {status}")

    return read


TARGETS = {
    "toml": toml_target,
    "heads": heads_target,
    "data": data_target,
    "tokens": tokens_target,
    "stores": stores_target,
    "records": records_target,
    "exports": exports_target,
    "models": models_target,
    "http": http_target,
}


def fuzz(target: str, numbers: Iterable[int], seed: int, report: Report, *, show: bool = False) -> None:
    """Feed inputs to a target; add what happens to the report. With `show`, print the traceback of an error."""
    from bertvision.errors import BertVisionError
    from conftest import save_tiny

    logging.disable(logging.CRITICAL)
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="fuzz-")))
    try:
        secret = save_tiny(folder / "secret")
        (folder / "given").mkdir()
        read = TARGETS[target](folder / "given", secret)
        guard = AuditWatch([str(folder / "given")])
        guard.install()
        for number in numbers:
            draw, problem = random.Random(f"{target} {seed} {number}"), None
            began, guard.active = time.process_time(), True
            _set_alarm(MAX_SECONDS)
            try:
                read(draw)
            except BertVisionError:
                report.refused[target] += 1
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit and the panics of Rust are findings, too
                frames = traceback.extract_tb(error.__traceback__)
                own = [frame for frame in frames if "/bertvision/" in frame.filename] or frames
                where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
                problem = f"{type(error).__name__} at {where}", str(error)[:200]
                if show:
                    traceback.print_exc(file=sys.stdout)
            finally:
                _set_alarm(0)
                guard.active = False
            report.inputs[target] += 1
            report.slowest = max(report.slowest, time.process_time() - began)
            for event in guard.seen:
                report.findings.setdefault(f"{target}: {event}", f"input {number}")
            guard.seen.clear()
            if problem:
                report.findings.setdefault(f"{target}: {problem[0]}", f"input {number}: {problem[1]}")
        if list(folder.rglob("EXECUTED")):
            report.findings[f"{target}: code was executed"] = ""
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


def _set_alarm(seconds: float) -> None:
    """Interrupt an input after this much CPU time, or 12 times as long without; 0: not at all."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 12 * seconds)


def _stop(*_: Any) -> None:
    raise TookTooLong


def main() -> int:
    """Run a campaign; print a summary. The exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--number", type=int, help="only this input of a target, with the traceback of its error")
    parsed = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # a record may name an encoder of the Hub
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _stop)
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore")
    report = Report()
    for target in [parsed.target] if parsed.target else TARGETS:
        count = parsed.inputs if parsed.target else -(-parsed.inputs * SHARES[target] // sum(SHARES.values()))
        numbers = range(count) if parsed.number is None else [parsed.number]
        with open(os.devnull, "w") as silence, redirect_stderr(silence):
            fuzz(target, numbers, parsed.seed, report, show=parsed.number is not None)
        print(f"{target}: {report.inputs[target]:,} inputs, {report.refused[target]:,} refused", flush=True)
    print(f"{sum(report.inputs.values()):,} inputs, slowest {report.slowest:.2f} s, {len(report.findings)} findings")
    for finding, example in sorted(report.findings.items()):
        print(f"  {finding} ({example})")
    return bool(report.findings)


if __name__ == "__main__":
    sys.exit(main())
