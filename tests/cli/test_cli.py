"""Every command as its user calls it, and every mistake as one sentence."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bertvision
from bertvision.heads import HEADS
from bertvision.pipeline import experiment as config
from bertvision.runs import find_runs
from bertvision.tasks import TASKS
from conftest import review, squad_json

COMMANDS = [
    "run",
    "finetune",
    "train",
    "evaluate",
    "score",
    "ensemble",
    "predict",
    "share",
    "export",
    "serve",
    "demo",
    "tasks",
    "heads",
    "encoders",
    "presets",
    "search",
    "doctor",
    "plot",
]
COMMANDS += ["runs list", "runs show", "runs compare", "runs remove", "submit"]
FAST = ["--set", "train.epochs=3", "--set", "finetune.learning_rate=1e-3", "--set", "train.learning_rate=1e-2"]


@pytest.fixture(scope="module")
def runs(tiny, reviews, tmp_path_factory):
    """A tree of finished runs."""
    root = tmp_path_factory.mktemp("runs")
    result = bertvision.run(
        train_file=str(reviews),
        encoder=str(tiny),
        heads=["adapter:size=8,token_pooling=max"],
        fractions=[1.0],
        head_fractions=[1.0],
        train={"epochs": 3, "learning_rate": 1e-2},
        root=root,
    )
    return root, result


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(cli, command):
    code, out, _ = cli(*command.split(), "--help")
    assert code == 0 and f"Example: bertvision {command}" in re.sub(r"\s+", " ", out)


def test_module_and_script_are_the_same():
    done = subprocess.run([sys.executable, "-m", "bertvision", "heads", "--json"], capture_output=True, text=True)
    assert done.returncode == 0 and [row["head"] for row in json.loads(done.stdout)] == list(HEADS)


def test_listings(cli):
    code, out, _ = cli("tasks", "--json")
    assert code == 0 and [row["task"] for row in json.loads(out)] == list(TASKS)
    shape = ["--tokens", 386, "--width", 1024, "--layers", 25, "--outputs", 2]
    _, out, _ = cli("heads", *shape, "--per-token", "--json")
    assert {row["head"]: row["parameters"] for row in json.loads(out)}["learned"] == 2076
    _, out, _ = cli("heads", *shape, "--no-per-token")
    assert "adapter-skip" in out
    _, out, _ = cli("encoders", "--json")
    assert json.loads(out)[0]["alias"] == "minilm"
    assert cli("encoders")[0] == 0 and cli("tasks")[0] == 0


def test_run_from_flags(cli, tiny, reviews, tmp_path):
    words = [
        "run",
        "--train-file",
        reviews,
        "--encoder",
        tiny,
        "--heads",
        "mean,learned:token_pooling=max",
        "--fractions",
        "0.5,1",
    ]
    words += ["--at", "0.5", "--runs", tmp_path, *FAST]
    code, out, err = cli(*words, "--table")
    assert code == 0 and "control: retrained BERT head" in out and "BERT + " in out and "Results: " in out
    assert "rows to train on" in err and "rows to train on" not in out
    code, out, _ = cli(*words)
    assert code == 0 and "control: " not in out and "predict reviews" in out and f"--runs {tmp_path}" in out
    assert re.search(r"accuracy +\d+\.\d\d \(95 %: .* to .*\) on 24 dev rows", out) and "after 1 epoch," in out
    code, out, _ = cli(*words, "--json")
    rows = json.loads(out)
    assert code == 0 and [row["kind"] for row in rows].count("control") == 3
    assert next(tmp_path.rglob("results-*.md")).read_text().startswith("| fraction | model | accuracy |")


def test_run_from_a_file(cli, tiny, reviews, tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(
        f'encoder = "{tiny}"\nheads = ["mean"]\nfractions = [0.5]\nhead_fractions = [0.5]\ncontrols = false\n'
        f'[data]\ntrain_file = "{reviews}"\n[train]\nepochs = 2\n'
    )
    code, out, _ = cli("run", file, "--seed", 3, "--runs", tmp_path / "runs", "--json")
    assert code == 0 and [row["kind"] for row in json.loads(out)] == ["bert", "head", "ensemble"]


def test_finetune_and_train(cli, tiny, reviews, tmp_path):
    words = ["--train-file", reviews, "--encoder", tiny, "--runs", tmp_path, *FAST]
    code, out, _ = cli("finetune", *words, "--fractions", "0,0.5,1", "--json")
    points = json.loads(out)
    assert code == 0 and [checkpoint["fraction"] for checkpoint in points] == [0, 0.5, 1]
    assert points[2]["seconds"] > points[1]["seconds"] > points[0]["seconds"] == 0
    assert cli("finetune", *words, "--fractions", "0,0.5,1")[0] == 0
    code, out, _ = cli("train", *words, "--at", "0.5", "--heads", "learned", "--json")
    assert code == 0 and {row["fraction"] for row in json.loads(out)} == {0.5}


def test_ensemble(cli, runs):
    _, result = runs
    members = [result.runs[0].directory, result.best.directory]
    code, out, _ = cli("ensemble", *members, "--how", "mean", "--json")
    assert code == 0 and json.loads(out)[-1]["kind"] == "ensemble"
    assert cli("ensemble", *members, "--how", "product")[0] == 0
    code, _, err = cli("ensemble", members[0])
    assert code == 1 and "at least two runs" in err


def test_predict(cli, runs, tmp_path):
    _, result = runs
    code, out, _ = cli("predict", result.best.directory, "the film was great", "--json")
    assert code == 0 and json.loads(out)[0]["label"] in ("pos", "neg")
    code, out, _ = cli("predict", result.best.directory, "the film was great")
    assert code == 0 and re.match(r"(pos|neg)  \(0\.\d+\)", out)
    (tmp_path / "items.jsonl").write_text('"a good film"\n{"text": "a bad film"}\n')
    _, out, _ = cli("predict", result.best.directory, "--file", tmp_path / "items.jsonl")
    assert len(out.splitlines()) == 2


def test_share_and_export(cli, runs, tmp_path):
    _, result = runs
    text = "the film was great"
    _, before, _ = cli("predict", result.best.directory, text, "--bert")
    assert "BERT: " in before
    code, out, _ = cli("share", result.best.directory, tmp_path / "shared")
    assert code == 0 and str(tmp_path / "shared") in out
    assert cli("predict", tmp_path / "shared", text, "--bert")[1] == before
    assert cli("share", result.best.directory, tmp_path / "bare", "--without-encoder")[0] == 0
    assert cli("predict", tmp_path / "bare", text, "--bert", "--encoder", result.best.encoder_directory)[1] == before
    code, out, _ = cli("export", result.best.directory, "--onnx", "--to", tmp_path / "onnx", "--rows", 8)
    assert code == 0 and "100.00" in out
    assert cli("predict", tmp_path / "onnx", text, "--bert")[1] == before
    code, out, err = cli("export", tmp_path / "shared", "--to", tmp_path / "from-shared")
    assert code == 0 and "100.00" in out and "built-in texts" in err  # a shared run has no data
    assert cli("predict", tmp_path / "from-shared", text, "--bert")[1] == before
    words = ["export", tmp_path / "shared", "--onnx", "--data", runs[0] / "none.csv"]
    refused(cli(*words), "none.csv")


def test_mistakes_of_serving(cli, runs, tmp_path):
    best = runs[1].best.directory
    (tmp_path / "key").write_text(" \n")
    refused(cli("serve", tmp_path / "none"), "No finished run")
    refused(cli("serve", best, "--key-file", tmp_path / "key"), "empty")
    refused(cli("serve", best, "--key-file", tmp_path / "no-key"), "Cannot read the API key")
    refused(cli("serve", best, "--host", "203.0.113.1"), "Cannot listen")
    refused(cli("serve", best, "--port", 99999), "--port")
    refused(cli("predict", best, "text", "--encoder", tmp_path), "Cannot read the checkpoint")


def test_runs(cli, runs):
    root, result = runs
    _, out, _ = cli("runs", "list", "--runs", root, "--json")
    assert {row["kind"] for row in json.loads(out)} == {"bert", "head", "control", "ensemble"}
    assert "adapter:size=8,token_pooling=max" in cli("runs", "list", "--runs", root)[1]
    _, out, _ = cli("runs", "show", result.best.directory)
    assert "accuracy" in out and "parameters" in out
    _, out, _ = cli("runs", "show", result.best.directory, "--json")
    assert json.loads(out)["metrics"]["primary_metric"] == "accuracy"
    _, out, _ = cli("runs", "compare", *[run.directory for run in result.runs], "--json")
    rows = json.loads(out)
    assert rows[0]["difference"] == 0 and rows[0]["95 % of it"] == [0, 0] and len(rows) == len(result.runs)
    assert cli("runs", "compare", result.runs[0].directory, result.best.directory)[0] == 0
    assert "No finished runs" in cli("runs", "list", "--runs", root / "none")[1]


def test_score(cli, tmp_path):
    data = squad_json(2, 3, 0)
    (tmp_path / "dev.json").write_text(json.dumps(data))
    questions = [q for a in data["data"] for p in a["paragraphs"] for q in p["qas"]]
    right = {q["id"]: q["answers"][0]["text"] if q["answers"] else "" for q in questions}
    (tmp_path / "preds.json").write_text(json.dumps(right))
    code, out, _ = cli(
        "score", "squad2", "--data", tmp_path / "dev.json", "--predictions", tmp_path / "preds.json", "--json"
    )
    assert code == 0 and (json.loads(out)["exact"], json.loads(out)["f1"]) == (100.0, 100.0)
    code, out, _ = cli("score", "squad2", "--data", tmp_path / "dev.json", "--predictions", tmp_path / "preds.json")
    assert code == 0 and "100.00" in out
    code, _, err = cli("score", "squad3", "--data", tmp_path / "dev.json", "--predictions", tmp_path / "preds.json")
    assert code == 1 and "Did you mean 'squad2'" in err


def refused(found, *words):
    """One sentence on stderr, exit code 1 or 2, no traceback, nothing on stdout."""
    code, out, err = found
    assert code in (1, 2) and out == "" and "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("bertvision: ") or code == 2
    for word in words:
        assert word in err
    return err


def test_mistakes_of_the_command_line(cli, tmp_path):
    refused(cli("run", "--nonsense"), "No such option")
    refused(cli("run", "--seed", "x"), "--seed")
    refused(cli("run", "--runs", tmp_path), "Name a task")
    refused(cli("run", "--task", "mprc", "--runs", tmp_path), "Did you mean 'mrpc'")
    refused(cli("run", "--task", "mrpc", "--heads", "adaptor"), "Did you mean 'adapter'")
    refused(cli("run", "--fractions", "a,b"), "takes numbers")
    refused(cli("run", "--task", "mrpc", "--fractions", "nan"), "0 or more")
    refused(cli("run", "--task", "mrpc", "--heads", "adapter:dropout=7"), "dropout >= 0")
    refused(cli("run", "--task", "mrpc", "--heads", "adapter:size=0"), "size >= 1")
    refused(cli("run", tmp_path / "none.toml"), "No experiment file")
    refused(cli("predict", tmp_path / "none", "text"), "No finished run")
    refused(cli("runs", "compare", tmp_path), "No finished run")
    assert not list(tmp_path.iterdir())


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_mistakes_in_the_data(cli, tiny, tmp_path):
    run = ["run", "--encoder", tiny, "--runs", tmp_path / "runs", "--train-file"]
    good = write(tmp_path / "good.csv", "text,label", *[f"good film {i},{i % 2}" for i in range(40)])
    refused(cli(*run, good, "--text", "txet"), "'txet'", "Did you mean 'text'")
    refused(cli(*run, write(tmp_path / "empty.csv")), "empty.csv")
    refused(cli(*run, tmp_path / "none.csv"), "none.csv")
    unseen = write(tmp_path / "unseen.csv", "text,label", "a film,0", "a plot,7")
    refused(cli(*run, good, "--dev-file", unseen), "unseen.csv", "line 3", "'7'")
    refused(cli(*run, write(tmp_path / "bad.jsonl", '{"text": "a", "label": 1}', '{"text": ')), "bad.jsonl", "line 2")
    refused(cli(*run, write(tmp_path / "bad.json", '{"data": [')), "bad.json")
    refused(cli(*run, write(tmp_path / "cut.tsv", "text\tlabel", "only one column")), "cut.tsv", "line 2")
    refused(cli(*run, good, "--encoder", tmp_path / "no-checkpoint"), "Cannot load encoder")
    refused(cli(*run, good, "--encoder", "minilmm"), "Did you mean 'minilm'")
    refused(cli(*run, good, "--task", "stsb"), "with --task")
    refused(cli(*run, good, "--runs", good), "Cannot write")
    assert not (tmp_path / "runs").exists()


def test_a_question_that_fills_the_window(cli, tiny, tmp_path):
    data = squad_json(4, 3, 0)
    data["data"][1]["paragraphs"][0]["qas"][0]["question"] = "who made the tower " * 8
    (tmp_path / "train.json").write_text(json.dumps(data))
    words = [
        "run",
        "--encoder",
        tiny,
        "--train-file",
        tmp_path / "train.json",
        "--max-tokens",
        32,
        "--runs",
        tmp_path / "runs",
    ]
    refused(cli(*words), "0-1-0-0")


def test_mistakes_in_prediction(cli, runs, reviews, tmp_path):
    best = runs[1].best.directory
    refused(cli("predict", best), "Nothing to predict")
    refused(cli("predict", best, "one", "two"), "instead of 1")
    refused(cli("predict", best, " "), "empty text")
    refused(cli("predict", best, "--question", "who", "--context", "ann"), "lacks 'text'")
    refused(cli("predict", best, "text", "--output", tmp_path / "x.csv"), "need a file")
    refused(cli("predict", best, "text", "--file", reviews), "not both")
    refused(cli("predict", best, "--file", tmp_path / "none.csv"), "No file at")
    refused(cli("predict", best, "--file", write(tmp_path / "x.pdf", "a")), "'.pdf' is unknown")
    refused(cli("predict", best, "--file", write(tmp_path / "x.csv", "a,b", "c,d")), "Choose one with --text", "a, b")
    refused(cli("predict", best, "--file", reviews, "--text", "txet"), "Did you mean 'text'")
    refused(cli("predict", best, "--file", reviews, "--text-pair", "label"), "takes one text")
    refused(cli("predict", best, "--file", reviews, "--output", tmp_path / "x.xlsx"), "must end in", ".csv")
    code, out, err = cli("predict", best, "--file", write(tmp_path / "x.jsonl", "broken"))
    assert code == 1 and out.startswith("error: not valid JSON") and "No row could be predicted. line 1" in err
    refused(cli("predict", best.parent, "text"), "There are runs below it")
    refused(cli("evaluate", best, "--label", "team"), "give it with --data")


def test_a_full_disk_stops_with_a_sentence_and_resumes(cli, tiny, reviews, tmp_path):
    """Fine-tuning meets a real full file system; with room again, the same command goes on."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("LOUD: cannot mount a tmpfs here, so the full-disk test did not run")
    words = ["finetune", "--train-file", reviews, "--encoder", tiny, "--fractions", "0.5,1", "--runs", place]
    try:
        refused(cli(*words), "Free some space")
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
        assert cli(*words)[0] == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_damaged_checkpoint_or_head_is_refused(cli, runs, tmp_path):
    import shutil

    root, result = runs
    shutil.copytree(root, tmp_path / "runs")
    best = tmp_path / "runs" / result.best.directory.relative_to(root)
    head = best / "head.safetensors"
    kept = head.read_bytes()
    head.write_bytes(kept[:-10])
    refused(cli("predict", best, "text"), "not a readable head")
    head.write_bytes(kept)
    weights = best.parent / "encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    refused(cli("predict", best, "text"), "Cannot read the checkpoint")


def test_presets(cli, tmp_path):
    code, out, _ = cli("presets", "--json")
    assert code == 0 and len(json.loads(out)) == 38
    assert cli("presets")[1].count("-bert-") == 18
    code, out, _ = cli("presets", "mrpc-head-base")
    (tmp_path / "mrpc.toml").write_text(out)
    assert code == 0 and config.load(tmp_path / "mrpc.toml") == config.preset("mrpc-head-base")
    code, _, err = cli("presets", "mrpc-head-bass")
    assert code == 1 and "Did you mean 'mrpc-head-base'" in err


def test_a_preset_under_flags(cli, tiny, tmp_path):
    draw = random.Random(0)
    (tmp_path / "MRPC").mkdir()
    for split, rows in (("train", 40), ("dev", 10)):
        lines = [f"{i % 2}\t{i}\t{i}\t{review(i % 2 == 0, draw)}\t{review(True, draw)}" for i in range(rows)]
        text = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "\n".join(lines) + "\n"
        (tmp_path / "MRPC" / f"{split}.tsv").write_text(text)
    code, out, err = cli(
        "run", "--preset", "mrpc-head-base", "--data-dir", tmp_path, "--encoder", tiny, "--runs", tmp_path / "runs",
        "--max-tokens", "16", "--json",
    )  # fmt: skip
    assert code == 0, err
    (head,) = [row for row in json.loads(out) if row["kind"] == "head"]
    settings = find_runs(tmp_path / "runs").__next__().record.settings
    assert head["name"] == "adapter-pooler:size=16" and settings["seed"] == 926
    assert settings["data"]["max_tokens"] == 16 and settings["finetune"]["learning_rate"] == 2e-5


def test_search(cli, tiny, reviews, tmp_path):
    words = ["search", "--train-file", reviews, "--encoder", tiny, "--at", "0.5", "--heads", "learned,adapter:size=4"]
    words += ["--trials", "4", "--space", "epochs=[4,6]", "--space", "learning_rate=[1e-3,1e-1]"]
    words += ["--space", "token_pooling=['max']", "--runs", tmp_path]
    words += ["--set", "controls=false"]
    code, out, err = cli(*words)
    assert code == 0, err
    assert "4 of 4 trials; best validation score" in err, err
    assert "Importance: " in out and "complete" in out, out
    file = Path(re.search(r"Experiment: (.*best.toml)", out)[1])
    code, out, err = cli(*words, "--json")
    found = json.loads(out)
    assert code == 0 and found["experiment"] == str(file) and len(found["history"]) == 4
    code, out, _ = cli("run", file, "--runs", tmp_path / "elsewhere", "--json")
    (head,) = [row for row in json.loads(out) if row["kind"] == "head"]
    assert code == 0 and head["score"] == found["final"][0]["score"] and head["validation"] == found["validation"]
    code, _, err = cli(*words, "--storage", "postgres:/wrong")
    assert code == 1 and "Cannot use 'postgres:/wrong' as storage of a search" in err
