"""The setting `cpu_optimizations` of an experiment."""

import numpy as np
import pytest

import bertvision
from bertvision.cpu_optimizations import dropout, enabled, use_cpu_optimizations
from bertvision.pipeline.experiment import Experiment, make

SETTINGS = {"fractions": [0.5], "heads": ["adapter:members=2,size=8,token_pooling=max"], "controls": False}


def test_the_default_follows_the_switch():
    assert Experiment().cpu_optimizations
    with use_cpu_optimizations(False):
        assert not make(task="mrpc").cpu_optimizations


@pytest.mark.slow
def test_an_experiment_runs_without_the_optimizations(tiny, reviews, tmp_path, monkeypatch):
    common = {"train_file": str(reviews), "encoder": str(tiny), "precision": "float32", "root": tmp_path, **SETTINGS}
    fast = bertvision.run(**common)

    def fail(x, p):
        raise AssertionError("the plain path must not use fast dropout")

    monkeypatch.setattr(dropout, "drop", fail)
    monkeypatch.setattr("bertvision.cpu_optimizations.attention.drop", fail)
    plain = bertvision.run(**common, cpu_optimizations=False)
    assert enabled()
    assert fast.file.parent != plain.file.parent  # other dropout masks: another fine-tuning
    assert [run.name for run in fast.runs] == [run.name for run in plain.runs]


def test_without_fine_tuning_the_answers_are_the_same(tiny, reviews, tmp_path):
    common = {"train_file": str(reviews), "encoder": str(tiny), "precision": "float32", "root": tmp_path, **SETTINGS}
    fast, plain = (bertvision.run(**common | {"fractions": [0.0]}, cpu_optimizations=value) for value in (True, False))
    for a, b in zip(fast.runs, plain.runs, strict=True):
        np.testing.assert_allclose(a.predictions("dev").logits, b.predictions("dev").logits, atol=1e-4, rtol=1e-3)
