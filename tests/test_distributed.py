"""Two real processes that work together (gloo, on the CPU) against one that is alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from bertvision.runs import find_runs
from conftest import save_tiny
from forking import ForkedProcess

DRIVER = """
import atexit, json, os, sys
from pathlib import Path

@atexit.register  # Exit handlers are called last in, first out: after the package has left the group.
def name_threads():
    names = [Path("/proc/self/task", thread, "comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    print("threads at exit:", *names, flush=True)

from bertvision import pipeline
from bertvision.pipeline.experiment import make
from bertvision.cli.logs import log_to_stderr
root, settings = sys.argv[1], json.loads(sys.argv[2])
log_to_stderr()
pipeline.run(make(**settings), root=root)

import numpy as np
import torch
from bertvision import devices, distributed
from bertvision.errors import BertVisionError
from bertvision.states import BatchPlan, InMemoryStates, RowTable
from bertvision.tasks import TextTask
from bertvision.training import Callback, FitOptions, TrainingConfig, fit

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, hidden, attention_mask):
        return self.layer(hidden[:, 0, 0])

class StopAtFive(Callback):
    last = 0

    def on_step(self, event):
        self.last = event.step

    def should_stop(self):
        return self.last == 5

generator = np.random.default_rng(0)
lengths, labels = np.full(12, 3), generator.integers(0, 2, 12)
# Rows are dealt to the processes in turn. One process begins with weights of 0 alone; later, so do both.
weights = np.array([0, 2, 0, 1, 0, 0, 0, 0, 3, 0.5, 1, 0], dtype=np.float32)
hidden = [torch.from_numpy(generator.normal(size=(1, 3, 4))).float() for _ in lengths]
table = RowTable(lengths=lengths, labels=labels, ids=[str(row) for row in range(12)], weights=weights)
states = InMemoryStates(hidden, table, BatchPlan(lengths, 4))
task = TextTask(name="t", summary="", texts=("text",), classes=("a", "b"), metrics=("accuracy",))
callback, head = StopAtFive(), Head()
optim = TrainingConfig(learning_rate=0.1, epochs=4, max_grad_norm=0.0)
state = fit({"head": head}, states, task.loss, {"head": optim}, FitOptions(callbacks=[callback]))["head"]
try:
    with devices.use_device("cuda"):
        refused = ""
except BertVisionError as error:
    refused = str(error)
result = {"weights": [p.flatten().tolist() for p in head.parameters()], "stopped": state.stopped}
result |= {"losses": state.losses, "called": callback.last, "refused": refused}
index = distributed.process_index()
Path(root, f"weighted-{index}.json").write_text(json.dumps(result))
"""
"""Runs an experiment, and then trains a head on rows with weights, in the same group."""
STEPS = 22


def launch(words: list[str], launcher: tuple[str, ...]) -> subprocess.CompletedProcess:
    """Start a group as its users do."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", *launcher, *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Path:
    """A tiny BERT without dropout, whose random numbers no two groups could share."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    return save_tiny(tmp_path_factory.mktemp("calm") / "tiny", **off)


@pytest.fixture(scope="module")
def both(calm, reviews, tmp_path_factory) -> list[Path]:
    """The same line, alone and in a group of two: fine-tuning, stored states, heads, ensembles; then rows with weights.

    86 rows in batches of 5: the last has a single row, so that one of two processes has none.
    """
    settings = {
        "train_file": str(reviews),
        "encoder": str(calm),
        "fractions": [0.0, STEPS / 18],
        "auxiliary_head": "adapter:size=8,token_pooling=max",
        "precision": "float32",  # whose rounding is small enough to compare
        "head_fractions": [0.0],
        "heads": ["learned", "adapter:size=8,token_pooling=max"],
        "controls": False,  # BERT's own kind of head has dropout
        "states": "store",
        "store": {"shard_megabytes": 0.02},
        "finetune": {"learning_rate": 1e-3, "batch_size": 5},
        "train": {"epochs": 3, "learning_rate": 1e-2, "batch_size": 5},
    }
    place = tmp_path_factory.mktemp("group")
    (place / "driver.py").write_text(DRIVER)
    roots = [place / "alone", place / "two"]
    arguments = [[str(root), json.dumps(settings)] for root in roots]
    environment = {"OMP_NUM_THREADS": "1"}
    modules = ["bertvision.pipeline", "bertvision.cli.logs"]
    alone = ForkedProcess(DRIVER, arguments[0], modules, place / "out", place / "errors", environment)
    two = launch(
        [str(place / "driver.py"), *arguments[1]], ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    )
    assert alone.wait() == 0, alone.err.read_text()
    outputs = [(alone.out.read_text(), alone.err.read_text()), (two.stdout, two.stderr)]
    for processes, (out, errors) in enumerate(outputs, start=1):
        assert errors.count("86 rows to train on") == 1  # one of them speaks
        # Threads of the group that outlive it abort the process now and then.
        assert out.count("threads at exit") == processes and "gloo" not in out
    return roots


def files(root: Path) -> dict[str, Path]:
    return {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}


def test_fine_tuned_weights_are_the_same(both):
    found = [next(root.rglob(f"{STEPS / 18:g}/encoder")) for root in both]
    assert json.loads((found[0] / "checkpoint.json").read_text())["steps"] == STEPS
    for name in ("model.safetensors", "last.safetensors"):
        one, two = (load_file(place / name) for place in found)
        assert one.keys() == two.keys()
        assert max(float((one[key] - two[key]).abs().max()) for key in one) < 1e-5
    start = load_file(next(both[0].rglob("0/encoder/model.safetensors")))
    trained = load_file(found[0] / "model.safetensors")
    assert max(float((start[key] - trained[key]).abs().max()) for key in start) > 1e-2


def test_extracted_states_are_the_same_to_the_byte(both):
    one, two = ({name: path for name, path in files(root).items() if "/states/" in name} for root in both)
    assert one.keys() == two.keys() and sum(name.endswith(".states") for name in one) > 6
    assert [name for name in one if one[name].read_bytes() != two[name].read_bytes()] == []


def test_scores_are_the_same_and_rows_in_order(both):
    runs = [{str(run.directory.relative_to(root)): run for run in find_runs(root)} for root in both]
    at_start = [name for name in runs[0] if "/0/" in name]
    assert runs[0].keys() >= set(at_start) and runs[1].keys() >= set(at_start) and len(at_start) == 4
    for name in at_start:
        one, two = (each[name] for each in runs)
        assert (
            one.metrics.scores == two.metrics.scores and one.metrics.validation_scores == two.metrics.validation_scores
        )
        for split in ("validation", "dev"):
            assert one.predictions(split).ids == two.predictions(split).ids
            np.testing.assert_allclose(one.predictions(split).logits, two.predictions(split).logits, atol=1e-4)


def test_one_process_writes(both):
    assert len(files(both[1])) == len(files(both[0])) + 1  # the second process writes its result of rows with weights
    assert not [name for name in files(both[1]) if name.endswith(".tmp") or "resume" in name and "lock" not in name]


def test_weights_and_callbacks_are_those_of_one_process(both):
    """Gradients are averaged by weight; only the main process calls callbacks, and both stop at its step."""
    alone, first, second = (
        json.loads((both[group] / f"weighted-{index}.json").read_text()) for group, index in ((0, 0), (1, 0), (1, 1))
    )
    assert first["weights"] == second["weights"]
    for one, two in zip(alone["weights"], first["weights"], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    np.testing.assert_allclose(alone["losses"], first["losses"], atol=1e-6)
    assert [each["called"] for each in (alone, first, second)] == [5, 5, 0]
    assert {each["stopped"] for each in (alone, first, second)} == {"stopped by a callback"}
    assert "started in a group" in first["refused"] and "not available here" in alone["refused"]


@pytest.mark.slow
def test_accelerate_launch(calm, reviews, tmp_path):
    words = ["-m", "bertvision", "run", "--train-file", str(reviews), "--encoder", str(calm), "--runs", str(tmp_path)]
    words += ["--fractions", "0.5", "--heads", "learned", "--states", "stream", "--json"]
    words += ["--set", "train.epochs=2", "--set", "controls=false"]
    launcher = ("accelerate.commands.launch", "--cpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no")
    done = launch(words, (*launcher, "--num_cpu_threads_per_process=1", "--dynamo_backend=no"))
    rows = json.loads(done.stdout)
    assert [row["kind"] for row in rows] == ["bert", "head", "ensemble"]
