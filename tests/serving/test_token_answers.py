"""Entities over HTTP: the answers of the library, in both protocols and on the page."""

import json

import pytest

from serving.process import serving
from serving.test_page import browser, find, open_page, shown, type_in, wait  # noqa: F401  # browser is a fixture
from token_tasks.conftest import conll_files, sentences, tagger  # noqa: F401  # fixtures

TEXT = "🗼 ann king was in the rome music"


@pytest.fixture(scope="module")
def server(tagger, tmp_path_factory):  # noqa: F811
    directory = tagger.save_pretrained(tmp_path_factory.mktemp("served") / "model")
    with serving(tmp_path_factory.mktemp("server"), directory) as process:
        yield process


def test_answers_are_those_of_the_library(server, tagger):  # noqa: F811
    expected = tagger.predict([TEXT])[0]
    status, body = server.ask({"items": [TEXT, "the the"], "bert": True})
    (answers,) = body["answers"].values()
    assert status == 200 and "entities" in answers[1]["bert"]
    for entity, theirs in zip(answers[0]["entities"], expected, strict=True):
        assert entity | {"score": 0} == theirs | {"score": 0}
        assert entity["score"] == pytest.approx(theirs["score"], abs=1e-4)  # the server adds in another order
    assert [(e["text"], TEXT[e["start"] : e["end"]]) for e in expected] == [("ann king",) * 2, ("rome",) * 2]
    (model,) = json.loads(server.get("/v1/models")[1])["models"]
    assert model["answers"] == "entities" and model["examples"]
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
    path = f"/v2/models/{model['name']}"
    status, content, _ = server.send("POST", f"{path}/infer", json.dumps({"inputs": [tensor]}).encode())
    (output,) = json.loads(content)["outputs"]
    assert status == 200 and [e["type"] for e in json.loads(output["data"][0])] == ["person", "place"]
    assert json.loads(server.get(path)[1])["outputs"][0]["name"] == "entities"


def test_entities_are_highlighted(browser, server):  # noqa: F811
    open_page(browser, server.url)
    type_in(browser, TEXT)
    find(browser, "#submit").click()
    wait(browser, lambda: shown(browser, "#result"))
    marks = browser.find_elements("css selector", "#context mark")
    assert [mark.text.split() for mark in marks] == [["ann", "king", "person"], ["rome", "place"]]
    assert find(browser, "#context-title").text == "Entities in the text"
    assert [name.text for name in browser.find_elements("css selector", "#head-answer .name")] == [
        "ann king (person)",
        "rome (place)",
    ]
