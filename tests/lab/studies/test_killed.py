"""`study all`, killed for real at random moments: nothing finished is done again, and the numbers are the same."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

APART = ("seconds", "runs")  # the clock, and directories whose names hold the place of a backbone
SETTINGS = """
encoder = "{tiny}"
fractions = [0.5, 1, 2]
head_fractions = [0.5]
data = {{ data_dir = "{data}" }}
finetune = {{ learning_rate = 1e-3 }}
train = {{ epochs = 3, learning_rate = 1e-2, batch_size = 8 }}
study = {{ seeds = [0, 1], shares = [0, 0.3, 1], epochs = 3, to = ["rotten-tomatoes"], examples = [0, 12] }}

[[experiments]]
task = "mrpc"
heads = ["learned", "adapter:size=4,token_pooling=max+compare"]

[[experiments]]
task = "squad2"
heads = ["learned", "adapter-skip:size=4"]
"""


def start(file: Path, root: Path) -> subprocess.Popen:
    words = [sys.executable, "-m", "bertvision", "study", "all", str(file), "--runs", str(root)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def numbers(value: Any, root: Path) -> Any:
    """A result without what depends on the clock or the place."""
    if isinstance(value, dict):
        return {key: numbers(each, root) for key, each in value.items() if key not in APART}
    if isinstance(value, list):
        return [numbers(each, root) for each in value]
    return value.replace(str(root), "") if isinstance(value, str) else value


def results(root: Path) -> dict[str, Any]:
    found = {}
    for path in sorted((root / "studies").glob("*.json")):
        kept = json.loads(path.read_text())
        found[path.name] = numbers({key: kept[key] for key in ("rows", "caveats")}, root)
    return found


def finished(root: Path) -> dict[Path, int]:
    """When each finished run, and each study, was written."""
    return {path: path.stat().st_mtime_ns for name in ("metrics.json", "studies/*.json") for path in root.rglob(name)}


@pytest.mark.slow
def test_study_all_killed_and_resumed(tmp_path, data, tiny):
    file, calm, stormy = tmp_path / "all.toml", tmp_path / "calm", tmp_path / "stormy"
    file.write_text(SETTINGS.format(tiny=tiny, data=data))
    began = time.monotonic()
    process = start(file, calm)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    whole, draw, kills = time.monotonic() - began, random.Random(3), 0
    done: dict[Path, int] = {}
    while True:
        process = start(file, stormy)
        try:
            _, errors = process.communicate(timeout=draw.uniform(0.1, 0.4) * whole if kills < 6 else None)
            assert process.returncode == 0, errors.decode()
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            now = finished(stormy)
            assert {path: now.get(path) for path in done} == done  # nothing that was there is written again
            done = now
    now = finished(stormy)
    assert kills >= 2 and done and {path: now.get(path) for path in done} == done
    assert len(results(calm)) > 15 and results(stormy) == results(calm)
