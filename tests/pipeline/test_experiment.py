from dataclasses import asdict, replace

import pytest

from bertvision.encoders import ENCODERS
from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.lab.experiment_files import to_toml
from bertvision.pipeline.experiment import (
    Experiment,
    apply,
    check,
    load,
    make,
    merge,
    preset,
    presets,
    resolve_fractions,
)
from bertvision.tasks import TASKS

GLUE, SIZES = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"], ("base", "large")


def test_file_then_overrides(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(
        'task = "rte"\nfractions = [0.1, 1]\nhead_fractions = [0.1]\n[train]\nlearning_rate = 3e-4\nepochs = 2\n'
    )
    found = load(file, ["train.epochs=7", "data.source=registry", "heads=['mean']"])
    assert (found.task, found.fractions, found.train.epochs, found.train.learning_rate) == (
        "rte",
        [0.1, 1.0],
        7.0,
        3e-4,
    )
    assert found.data.source == "registry" and found.heads == ["mean"]


def test_experiments_survive_json():
    experiment = make(task="mrpc", limit=5, fractions=[0.5], head_fractions=[0.5], heads=["mean"])
    assert merge(Experiment(), experiment.to_dict()) == experiment
    assert asdict(experiment)["data"]["limit"] == 5


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tusk=rte", "Did you mean 'task'"),
        ("train.epoch=3", "Did you mean 'epochs'"),
        ("train.epochs=many", "must be float"),
        ("finetune.layer_decay=1.5", "layer_decay must be above 0 and at most 1"),
        ("train.layer_decay=0.9", "heads have none"),
        ("train=3", "must be a table"),
        ("fractions=[0.1, 'x']", "list of float"),
        ("fractions=[-1]", "0 or more"),
        ("train.schedule=cosine", "Unknown train.schedule"),
        ("precision=int8", "Unknown precision"),
        ("data.validation_fraction=2.0", "between 0 and 1"),
        ("train.gradient_accumulation_steps=0", "gradient_accumulation_steps >= 1"),
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


def test_presets_are_whole():
    """Every published table names real things; nine tasks, BERT and head, base and large."""
    names = {f"{task}-{what}-{size}" for task in GLUE + ["squad2"] for what in ("bert", "head") for size in SIZES}
    assert names | {"squad2-paper", "squad2-answerable-paper"} == set(presets())
    for name in presets():
        experiment = check(preset(name))
        task = TASKS[experiment.task]
        assert experiment.encoder in ENCODERS and all(map(HeadConfig.parse, experiment.heads))
        assert bool(experiment.heads) == ("-bert-" not in name)
        if not name.startswith("squad2"):
            assert experiment.data.max_tokens == task.max_tokens and experiment.finetune.batch_size == task.batch_size


@pytest.mark.parametrize(
    ("name", "size", "rate", "batch", "seed"),
    [
        ("rte-head-base", 8, 0.0003593259178474023, 16, 926),
        ("sst2-head-base", 32, 0.0009739884755578448, 64, 1788),
        ("mrpc-head-base", 16, 0.0007591458513071305, 16, 926),
        ("stsb-head-large", 128, 2.98363e-5, 16, 131),
    ],
)
def test_presets_as_published(name, size, rate, batch, seed):
    made = preset(name)
    assert made.heads == ["adapter-pooler" + (f":size={size}" if size != 128 else "")]
    assert (made.train.learning_rate, made.train.batch_size, made.seed) == (rate, batch, seed)
    assert made.finetune.learning_rate == 2e-5 and made.finetune.schedule == "constant"


def test_presets_lie_under_everything_else(tmp_path):
    assert make(preset="mrpc-bert-base", seed=1).finetune.learning_rate == 2.438e-5
    file = tmp_path / "x.toml"
    file.write_text('preset = "mrpc-bert-base"\nseed = 5\n')
    found = load(file, ["data.limit=9"])
    assert (found.task, found.seed, found.data.limit, found.data.max_tokens) == ("mrpc", 5, 9, 128)
    assert load(file, name="rte-bert-base").task == "rte"
    with pytest.raises(BertVisionError, match="Did you mean 'mrpc-head-base'"):
        preset("mrpc-head-bass")


def test_experiments_survive_toml(tmp_path):
    made = replace(preset("rte-head-base"), ensembles=[], precision="float32", task='a "quoted" ü')
    (tmp_path / "x.toml").write_text(to_toml(made), encoding="utf-8")
    assert load(tmp_path / "x.toml") == made


def test_former_names_of_settings_are_read(tmp_path, messages):
    file = tmp_path / "old.toml"
    file.write_text(
        'task = "rte"\nbackbone = "bert-base"\nread_at = [0.1]\nactivations = "store"\nthrough = "last"\n'
        '[states]\ntype = "float16"\n[finetune]\nwarmup = 0.5\n[train]\naccumulate = 2\n'
    )
    found = load(file, ["train.clip=0.5", "try_rates=[0.1]"])
    assert (found.encoder, found.head_fractions, found.states) == ("bert-base", [0.1], "store")
    assert found.store.dtype == "float16" and found.finetune.warmup_epochs == 0.5
    assert (found.train.gradient_accumulation_steps, found.train.max_grad_norm) == (2, 0.5)
    assert found.extra_learning_rates == [0.1] and make(task="rte", backbone="x").encoder == "x"
    assert "The setting read_at is now called head_fractions." in messages


def test_heads_of_entities_are_trained_after_more_fine_tuning():
    experiment = make(fractions=[0.3, 1.0, 2.0])
    assert resolve_fractions(experiment, "text").head_fractions == [0.3]
    assert resolve_fractions(experiment, "tokens").head_fractions == [2.0]
    given = resolve_fractions(make(head_fractions=[0.5]), "tokens")
    assert (given.head_fractions, given.fractions) == ([0.5], [0.5])
