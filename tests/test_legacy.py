"""Files and settings of the previous version (run format 1) are still read."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from bertvision import legacy
from bertvision.arrays import save_predictions
from bertvision.files import save_tensors
from bertvision.heads import HeadConfig, build_head, load_head_weights
from bertvision.heads.legacy import WEIGHTS
from bertvision.records import Metrics, RunRecord, TrainingSeconds
from bertvision.runs import Run, open_run, write_metrics, write_record
from bertvision.types import HeadShape, Predictions

OLD_HEAD = "adapter:copies=2,gather=max,layers=0,2,size=4,texts=together"
NEW_HEAD = "adapter:encoding=cross,layers=0,2,members=2,size=4,token_pooling=max"
SHAPE = {"layers": 3, "tokens": 16, "width": 8, "outputs": 2, "per_token": False, "pooled": False, "apart": False}
TASK = {"name": "reviews", "kind": "text", "classes": ["bad", "good"], "texts": ["text"], "summary": "Reviews."}

OLD_RECORD = {
    "format": 1,
    "name": OLD_HEAD,
    "kind": "carried",
    "task": TASK,
    "max_tokens": 16,
    "source": "a file",
    "settings": {
        "task": "reviews",
        "backbone": "minilm",
        "through": "adapter:gather=max+compare",
        "read_at": [0.3],
        "heads": [OLD_HEAD, "adapter-pooler:gather=all"],
        "try_rates": [0.01],
        "activations": "memory",
        "states": {"type": "int4", "directory": "", "shard": 64.0},
        "seed": 3,
    },
    "fraction": 0.3,
    "backbone": "minilm",
    "backbone_path": "../backbone",
    "weights": "0123",
    "shape": SHAPE,
}
OLD_METRICS = {
    "primary": "accuracy",
    "score": {"accuracy": 81.0},
    "interval": [78.0, 84.0],
    "validation": {"accuracy": 80.0},
    "grade": [80.0, -0.4],
    "settings": {"threshold": 0.5},
    "parameters": 120,
    "seconds": {"finetune": 2.0, "head": 1.0, "total": 3.0},
    "seconds_apart": {"states": 0.75, "head": 0.25},
    "carried_from": 0.0,
}


@pytest.fixture
def old_run(tmp_path):
    """Write a run directory as the previous version did."""
    (tmp_path / "experiment.json").write_text(json.dumps(OLD_RECORD))
    (tmp_path / "metrics.json").write_text(json.dumps(OLD_METRICS))
    renamed = {new: old for old, new in WEIGHTS.items() if old != "gathers"}
    tensors = build_head(HeadConfig.parse(NEW_HEAD), HeadShape(**legacy.upgrade_shape(SHAPE))).state_dict()
    old = {".".join(renamed.get(part, part) for part in key.split(".")): value for key, value in tensors.items()}
    assert "head.copies.0.adapt.weight" in old
    save_tensors(tmp_path / "head.safetensors", old)
    predictions = Predictions(ids=["1"], logits=np.zeros((1, 2), dtype=np.float32))
    save_predictions(tmp_path / "predictions.npz", predictions)
    return tmp_path


def test_a_run_of_format_1_is_read(old_run):
    run = open_run(old_run)
    assert run.name == NEW_HEAD and run.kind == "evaluated" and run.record.task == TASK
    assert run.record.encoder == "minilm" and run.record.encoder_hash == "0123"
    assert run.record.encoder_path == "../backbone"
    assert run.record.head_shape == HeadShape(**legacy.upgrade_shape(SHAPE))
    metrics = run.metrics
    assert metrics.scores == {"accuracy": 81.0} and run.primary_score == 81.0 and run.validation_score == (80.0, -0.4)
    assert metrics.decoding == {"threshold": 0.5} and metrics.trained_at == 0.0 and metrics.states_seconds == 0.75
    assert metrics.seconds == TrainingSeconds(finetune=2.0, head=1.0) and metrics.seconds.total == 3.0


def test_the_weights_of_format_1_fit_the_head(old_run):
    head = build_head(HeadConfig.parse(NEW_HEAD), HeadShape(**legacy.upgrade_shape(SHAPE)))
    load_head_weights(head, open_run(old_run).weights())


def test_an_upgraded_run_is_written_in_the_present_format(old_run, tmp_path):
    old, copy = open_run(old_run), tmp_path / "copy"
    write_record(copy, old.record)
    write_metrics(copy, old.metrics)
    assert Run(copy).record == old.record and Run(copy).metrics == old.metrics


def test_the_settings_of_format_1_are_upgraded(old_run):
    settings = open_run(old_run).record.settings
    assert settings["encoder"] == "minilm" and settings["head_fractions"] == [0.3] and settings["seed"] == 3
    assert settings["heads"] == [NEW_HEAD, "adapter-pooler:token_pooling=flatten"]
    assert settings["auxiliary_head"] == "adapter:token_pooling=max+compare"
    assert settings["states"] == "memory"
    assert settings["store"] == {"dtype": "int4", "directory": "", "shard_megabytes": 64.0}


def test_the_names_of_ensembles_are_upgraded():
    record = {**OLD_RECORD, "kind": "ensemble", "name": "BERT + adapter:copies=2 (max)", "members": ["../a", "../b"]}
    assert legacy.upgrade_record(record)["name"] == "BERT + adapter:members=2 (max)"


def test_records_survive_a_round_trip():
    record = RunRecord(
        name="BERT", kind="bert", task=TASK, max_tokens=16, source="", settings={}, fraction=0.0,
        shape=HeadShape(**legacy.upgrade_shape(SHAPE)), members=("../a",),
    )  # fmt: skip
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    metrics = Metrics(
        primary_metric="f1", scores={"f1": 1.0}, interval=(0.0, 2.0), validation_scores={}, validation_score=(1.0, 0.0),
        decoding={}, parameters=0, seconds=TrainingSeconds(finetune=0.0, head=0.0), trained_at=0.0,
    )  # fmt: skip
    assert Metrics.from_dict(json.loads(json.dumps(metrics.to_dict()))) == metrics


def test_shapes_of_format_1_are_upgraded():
    shape = HeadShape(num_layers=13, max_tokens=64, hidden_size=8, num_outputs=2, per_token=False, pooler_output=True)
    assert legacy.upgrade_shape(asdict(shape)) == asdict(shape) and shape.num_channels == 14
    old = {"layers": 14, "tokens": 64, "width": 8, "outputs": 2, "per_token": False, "pooled": True}
    assert HeadShape(**legacy.upgrade_shape(old)) == shape
    assert HeadShape(**legacy.upgrade_shape(old | {"pooled": False, "apart": True})).num_channels == 28
