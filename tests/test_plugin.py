"""The example plugin, installed into a directory of its own: it is listed, trains, saves and loads."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"


@pytest.fixture(scope="module")
def bertvision(tmp_path_factory):
    """Call the command line in a process that finds the plugin; return its standard output."""
    directory = tmp_path_factory.mktemp("plugin")
    source, target = directory / "source", directory / "site"
    shutil.copytree(PLUGIN, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))  # setuptools writes into it
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    path = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(*words) -> str:
        command = [sys.executable, "-m", "bertvision", *map(str, words)]
        environment = os.environ | {"PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize(
    ("listing", "key", "name"),
    [("heads", "head", "max-mean"), ("tasks", "task", "colours"), ("encoders", "alias", "random-tiny")],
)
def test_the_plugin_is_listed(bertvision, listing, key, name):
    assert name in [row[key] for row in json.loads(bertvision(listing, "--json"))]


def test_the_plugin_trains_saves_and_loads(bertvision, tmp_path):
    settings = ["--set", "finetune.learning_rate=1e-3", "--set", "train.epochs=3", "--set", "controls=false"]
    bertvision(
        "run", "--task", "colours", "--encoder", "random-tiny", "--heads", "max-mean", "--at", "1", "--runs", tmp_path,
        *settings,
    )  # fmt: skip
    runs = [path.parent for path in tmp_path.rglob("head.safetensors") if path.parent.name.startswith("max-mean")]
    assert len(runs) == 1
    answer = json.loads(bertvision("predict", runs[0], "my red boat", "--json"))
    answer = answer[0] if isinstance(answer, list) else answer
    assert answer["label"] in ("warm", "cold")
