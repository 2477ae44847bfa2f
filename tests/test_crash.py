"""Real processes, killed for real with SIGKILL at random moments: the resumed result equals the undisturbed one."""

import hashlib
import json
import random
import subprocess
import time
from pathlib import Path

import pytest

from forking import ForkedProcess

# A driver, so that even a run of seconds saves its state several times.
DRIVER = """
import json, sys
from bertvision import pipeline
from bertvision.pipeline import experiment as config
from bertvision.training import checkpointer
settings = json.loads(sys.argv[1])
checkpointer.MIN_SECONDS = settings.pop("save_seconds")
checkpointer.MAX_SHARE = settings.pop("save_share")
root = settings.pop("root")
pipeline.run(config.make(**settings), root=root)
"""


def start(place: Path, settings: dict) -> ForkedProcess:
    return ForkedProcess(DRIVER, [json.dumps(settings)], ["bertvision.pipeline"], place / "out", place / "errors")


def results(root: Path) -> dict[str, str]:
    """Hash everything a run leaves but what holds seconds."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in (".safetensors", ".npz", ".npy"):
            found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "metrics.json":
            metrics = json.loads(path.read_text())
            for key in ("seconds", "states_seconds"):
                metrics.pop(key, None)
            found[str(path.relative_to(root))] = json.dumps(metrics)
    return found


def kill_and_compare(tmp_path: Path, settings: dict, kills: int, seed: int) -> list[float]:
    """Run undisturbed; run again with kills; compare. Returns when the kills fell, in seconds."""
    calm = tmp_path / "calm"
    process = start(tmp_path, {**settings, "root": str(calm)})
    began = time.monotonic()
    assert process.wait() == 0, process.err.read_text()
    whole = time.monotonic() - began
    draw, moments, attempt = random.Random(seed), [], 0
    while len(moments) < 2:  # a machine that is faster than in the undisturbed run leaves no time for kills
        stormy, moments, attempt = tmp_path / f"stormy{attempt}", [], attempt + 1
        while True:
            process = start(tmp_path, {**settings, "root": str(stormy)})
            moment = draw.uniform(0.15, 0.6) * whole / attempt if len(moments) < kills else None
            try:
                assert process.wait(moment) == 0, process.err.read_text()
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                moments.append(moment)
    expected, found = results(calm), results(stormy)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    return moments


def test_killed_and_resumed_equals_undisturbed(tmp_path, tiny, reviews):
    settings = {
        "train_file": str(reviews),
        "encoder": str(tiny),
        "fractions": [1.0, 6.0],
        "head_fractions": [6.0],
        "heads": ["learned", "adapter:dropout=0.1,size=8,token_pooling=max"],
        "finetune": {"learning_rate": 1e-3, "batch_size": 4},
        "train": {"epochs": 20, "learning_rate": 1e-3, "batch_size": 4},
        "save_seconds": 0.05,
        "save_share": 1e9,
    }
    assert len(kill_and_compare(tmp_path, settings, kills=3, seed=1)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_minilm_killed_and_resumed_equals_undisturbed(tmp_path, seed):
    """The real encoder on real data, with the intervals users get."""
    settings = {
        "task": "stsb",
        "source": "registry",
        "limit": 1200,
        "limit_dev": 100,
        "fractions": [0.3, 1.0],
        "head_fractions": [1.0],
        "heads": ["learned", "adapter:dropout=0.1,token_pooling=max"],
        "states": "stream",
        "save_seconds": 5.0,
        "save_share": 1e9,
    }
    assert len(kill_and_compare(tmp_path, settings, kills=4, seed=seed)) >= 2
