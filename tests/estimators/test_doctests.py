"""The examples in the docstrings of the public API give the results that they show."""

import doctest
from importlib import import_module

import pytest

from bertvision import estimators
from bertvision.estimators.base import BaseTextEstimator

MODULES = [
    "errors",
    "estimators.base",
    "estimators.classification",
    "estimators.regression",
    "estimators.question_answering",
    "estimators.token_classification",
    "inputs.labels",
    "inputs.rows",
    "inputs.tagged_rows",
    "token_tasks.schemes",
    "token_tasks.words",
    "hidden_states",
    "encoders.encoder",
    "training.callbacks",
]


@pytest.fixture
def tiny_by_default(tiny, tmp_path, monkeypatch):
    """Replace the default encoder and cache directory, so that examples are quick and write nothing elsewhere."""
    for cls in (getattr(estimators, name) for name in estimators.__all__):
        defaults = dict(cls.__init__.__kwdefaults__) | {"cache_dir": tmp_path / "cache", "controls": False}
        monkeypatch.setattr(cls.__init__, "__kwdefaults__", defaults)
        monkeypatch.setattr(cls.__init__, "__defaults__", (str(tiny),))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tiny_by_default):
    result = doctest.testmod(import_module(f"bertvision.{name}"), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_every_estimator_has_an_example():
    for name in estimators.__all__:
        cls = getattr(estimators, name)
        assert issubclass(cls, BaseTextEstimator) and ">>>" in (cls.__doc__ or "")
