"""The example plugin, installed into a directory of its own: it is listed, trains, saves and loads."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from forking import ForkedProcess

END = "\0"
COMMANDS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bertvision.cli import main
for words in json.loads(sys.argv[2]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise
    print(end="\\0", flush=True)
"""
"""Runs several commands in one process that finds a directory, and prints a mark after the output of each."""
PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"


@pytest.fixture(scope="module")
def bertvision(tmp_path_factory):
    """Run commands in a process that finds the plugin; return the standard output of each."""
    directory = tmp_path_factory.mktemp("plugin")
    source, target = directory / "source", directory / "site"
    shutil.copytree(PLUGIN, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))  # setuptools writes into it
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)

    def call(*commands: Sequence[str]) -> list[str]:
        arguments = [str(target), json.dumps([[str(word) for word in command] for command in commands])]
        modules = ["bertvision.cli", "bertvision.pipeline", "bertvision.lab"]
        process = ForkedProcess(COMMANDS, arguments, modules, directory / "out", directory / "errors")
        assert process.wait() == 0, process.err.read_text()
        return process.out.read_text().split(END)[:-1]

    return call


def test_the_plugin_is_listed(bertvision):
    listings = {"heads": ("head", "max-mean"), "tasks": ("task", "colours"), "encoders": ("alias", "random-tiny")}
    outputs = bertvision(*([listing, "--json"] for listing in listings))
    for (key, name), output in zip(listings.values(), outputs, strict=True):
        assert name in [row[key] for row in json.loads(output)]


def test_the_plugin_trains_saves_and_loads(bertvision, tmp_path):
    settings = ["--set", "finetune.learning_rate=1e-3", "--set", "train.epochs=3", "--set", "controls=false"]
    words = ["run", "--task", "colours", "--encoder", "random-tiny", "--heads", "max-mean", "--at", "1"]
    bertvision([*words, "--runs", tmp_path, *settings])
    runs = [path.parent for path in tmp_path.rglob("head.safetensors") if path.parent.name.startswith("max-mean")]
    assert len(runs) == 1
    answer = json.loads(bertvision(["predict", runs[0], "my red boat", "--json"])[0])
    answer = answer[0] if isinstance(answer, list) else answer
    assert answer["label"] in ("warm", "cold")
