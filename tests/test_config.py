from dataclasses import asdict

import pytest

from bertvision.config import Experiment, apply, load, make, merge
from bertvision.errors import BertVisionError


def test_file_then_overrides(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('task = "rte"\nfractions = [0.1, 1]\nread_at = [0.1]\n[train]\nlearning_rate = 3e-4\nepochs = 2\n')
    found = load(file, ["train.epochs=7", "data.source=registry", "heads=['mean']"])
    assert (found.task, found.fractions, found.train.epochs, found.train.learning_rate) == (
        "rte",
        [0.1, 1.0],
        7.0,
        3e-4,
    )
    assert found.data.source == "registry" and found.heads == ["mean"]


def test_experiments_survive_json():
    experiment = make(task="mrpc", limit=5, fractions=[0.5], read_at=[0.5], heads=["mean"])
    assert merge(Experiment(), experiment.to_dict()) == experiment
    assert asdict(experiment)["data"]["limit"] == 5


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tusk=rte", "Did you mean 'task'"),
        ("train.epoch=3", "Did you mean 'epochs'"),
        ("train.epochs=many", "must be float"),
        ("train=3", "must be a table"),
        ("fractions=[0.1, 'x']", "list of float"),
        ("fractions=[-1]", "0 or more"),
        ("train.schedule=cosine", "Unknown train.schedule"),
        ("precision=int8", "Unknown precision"),
        ("data.validation=2.0", "between 0 and 1"),
        ("train.accumulate=0", "accumulate >= 1"),
        ("nonsense", "form key=value"),
    ],
)
def test_mistakes_get_a_sentence(setting, words):
    with pytest.raises(BertVisionError, match=words):
        apply(Experiment(), [setting])


def test_broken_files(tmp_path):
    with pytest.raises(BertVisionError, match="No experiment file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("task = [")
    with pytest.raises(BertVisionError, match="not valid TOML"):
        load(tmp_path / "bad.toml")
