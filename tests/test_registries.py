"""Registries of heads, tasks and encoders, and the entry points of other packages."""

from importlib.metadata import EntryPoint

import pytest

from bertvision import registries
from bertvision.errors import BertVisionError
from bertvision.heads import HEADS
from bertvision.registries import Registry
from bertvision.tasks import TASKS

SEVERAL = {"four": 4, "five": 5}


@pytest.fixture
def registry(monkeypatch):
    points = [
        EntryPoint("three", "builtins:int", "bertvision.numbers"),
        EntryPoint("several", f"{__name__}:SEVERAL", "bertvision.numbers"),
        EntryPoint("broken", "no_such_module:x", "bertvision.numbers"),
    ]
    monkeypatch.setattr(registries, "entry_points", lambda group: points if group == "bertvision.numbers" else [])
    return Registry("number", {"one": "1"}, str, reserved=("all",))


def test_plugins_are_loaded_when_a_name_is_missing(registry):
    assert registry["one"] == "1" and not registry._loaded
    assert registry["three"] == str(int) and registry._loaded


def test_an_entry_point_may_hold_several_entries(registry, messages):
    assert dict(registry) == {"one": "1", "three": str(int), "four": "4", "five": "5"}
    assert any("no_such_module" in text for text in messages)


def test_names_are_checked(registry):
    registry.register("two", 2)
    assert registry["two"] == "2"
    for name, message in [("two", "already registered"), ("all", "cannot name"), ("-x", "cannot name")]:
        with pytest.raises(BertVisionError, match=message):
            registry.register(name, 2)
    registry.unregister("two")
    assert "two" not in registry


def test_the_laboratory_adds_its_heads_and_tasks():
    assert "xception" in HEADS and "mrpc" in TASKS and "squad2" in list(TASKS)
