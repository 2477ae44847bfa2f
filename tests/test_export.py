"""Graphs that answer as torch does, or are not kept."""

import json
import random
import shutil

import numpy as np
import onnx
import pytest
import torch

import bertvision
from bertvision import export as exporting
from bertvision.errors import BertVisionError
from bertvision.export import Limits, export
from bertvision.exported import GRAPH, MANIFEST
from bertvision.heads import HEADS
from bertvision.pipeline import dev_examples, experiment_of
from bertvision.predictor import load, load_all
from conftest import FAMILIES, WORDS, save_tiny, squad_json

# One of each way to read, merge and gather; the rest of the zoo is made of the same parts.
SENTENCE_HEADS = [
    "adapter:gather=max,size=8",
    "adapter:gather=cls+mean+attention,layers=0,2,norm=true,size=4",
    "adapter-independent-skip:size=4",
    "adapter-pooler:size=4",
    "adapter-386-skip-learned:size=4",
    "learned:pooled=true",
    "learned-adapter-386-cnn-nxn:size=16,gather=mean",
    "cnn-1xn:gather=max",
    "xception-small-skip",
]


def make(backbone, data, root, heads, **more):
    return bertvision.run(
        train_file=str(data), backbone=str(backbone), heads=heads, fractions=[1.0], controls=False, root=root,
        train={"epochs": 1, "learning_rate": 1e-2}, notify=lambda message: None, **more,
    )  # fmt: skip


def rows_of(predictors):
    return [dev_examples(experiment_of(each.run), lambda message: None) for each in predictors]


@pytest.fixture(scope="module")
def sentences(tiny, reviews, tmp_path_factory):
    """Many heads on one backbone, in one graph."""
    result = make(tiny, reviews, tmp_path_factory.mktemp("runs"), SENTENCE_HEADS, max_tokens=32)
    predictors = load_all(result.runs)
    place = tmp_path_factory.mktemp("exports") / "sentences"
    return predictors, place, export(predictors, place, rows_of(predictors))


def squad(tmp_path_factory, tiny):
    place = tmp_path_factory.mktemp("squad")
    (place / "train.json").write_text(json.dumps(squad_json(8, 4, 0)))
    return make(tiny, place / "train.json", place / "runs", ["adapter-skip:size=4", "learned-cnn-1xn"], max_tokens=32)


@pytest.fixture(scope="module")
def spans(tiny, tmp_path_factory):
    predictors = load_all(squad(tmp_path_factory, tiny).runs)
    place = tmp_path_factory.mktemp("exports") / "spans"
    return predictors, place, export(predictors, place, rows_of(predictors))


@pytest.mark.parametrize("kind", ["sentences", "spans"])
def test_every_answer_is_the_same(kind, request):
    predictors, place, reports = request.getfixturevalue(kind)
    assert len(reports) == len(predictors)
    for report in reports:
        assert report["agreement"] == 100.0 and report["largest_difference"] <= 1e-4, report
    manifest = json.loads((place / MANIFEST).read_text())
    assert manifest["parity"] == reports and manifest["limits"] == {"agreement": 99.9, "largest_difference": 1e-4}


def test_any_batch_and_any_length(sentences):
    predictors, place, _ = sentences
    draw = random.Random(0)
    for count, longest in ((1, 1), (1, 60), (7, 3), (40, 60)):
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]
        for one, other in zip(predictors, load_all([place]), strict=True):
            features = one.encode(texts)
            assert np.allclose(one.logits(features).logits, other.logits(features).logits, atol=1e-4), one.run.name


def test_an_export_is_loaded_as_a_run_and_moves(spans, tmp_path):
    predictors, place, _ = spans
    moved = shutil.copytree(place, tmp_path / "moved")
    context = "the tower in rome was made at ann . " * 9
    for one, other in zip(predictors, load_all([moved]), strict=True):
        first, second = (each.predict(("who made the tower", context), bert=True) for each in (one, other))
        assert (first["answer"], first["bert"]["answer"]) == (second["answer"], second["bert"]["answer"])
        assert first["null_probability"] == pytest.approx(second["null_probability"], abs=1e-4)
        assert other.layers == one.layers and "onnxruntime" in other.own.trunk.runs_on
    with pytest.raises(BertVisionError, match="name one of them"):
        load(moved)
    assert load(next((moved / "runs").iterdir())).predict(("who", context))


def test_int8_is_smaller_and_held_to_its_own_limits(sentences, tmp_path):
    predictors, place, _ = sentences
    chosen = predictors[1:3]
    reports = export(chosen, tmp_path / "int8", rows_of(chosen), int8=True, limits=Limits(90.0, np.inf))
    assert all(report["largest_difference"] > 1e-4 for report in reports)  # it is int8 indeed
    types = {node.op_type for node in onnx.load(tmp_path / "int8" / GRAPH).graph.node}
    assert "MatMulInteger" in types or "DynamicQuantizeMatMul" in types
    assert "int8" in load_all([tmp_path / "int8"])[0].own.trunk.runs_on


def test_a_graph_that_answers_otherwise_is_not_kept(sentences, tmp_path, monkeypatch):
    predictors, _, _ = sentences
    chosen = predictors[1:2]
    written = exporting._write_graph

    def damaged(path, trunk, *given, **named):
        weights = [
            p for name, p in trunk.heads[chosen[0].parts[0].head].named_parameters() if name.endswith("read.weight")
        ]
        with torch.no_grad():
            weights[0][0] += 0.1
        written(path, trunk, *given, **named)
        with torch.no_grad():
            weights[0][0] -= 0.1

    monkeypatch.setattr(exporting, "_write_graph", damaged)
    with pytest.raises(BertVisionError, match="does not answer as it should.*Nothing was kept"):
        export(chosen, tmp_path / "wrong", rows_of(chosen))
    assert not (tmp_path / "wrong").exists()


def test_what_cannot_be_exported(sentences, spans, tmp_path):
    predictors, place, _ = sentences
    with pytest.raises(BertVisionError, match="One graph holds one backbone"):
        export([predictors[0], spans[0][0]], tmp_path / "x", [[], []])
    with pytest.raises(BertVisionError, match="runs that torch can read"):
        export(load_all([place])[:1], tmp_path / "x", [[]])
    with pytest.raises(BertVisionError, match="no rows to compare"):
        export(predictors[:1], tmp_path / "x", [[]])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(BertVisionError, match="not empty"):
        export(predictors[:1], tmp_path / "mine", [[]])


def test_a_damaged_graph_is_refused(spans, tmp_path):
    moved = shutil.copytree(spans[1], tmp_path / "moved")
    raw = bytearray((moved / GRAPH).read_bytes())
    raw[len(raw) // 2] ^= 1
    (moved / GRAPH).write_bytes(raw)
    with pytest.raises(BertVisionError, match="Export it again"):
        load_all([moved])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_exported(family, reviews, tmp_path):
    result = make(save_tiny(tmp_path / family, family), reviews, tmp_path / "runs", ["learned"], max_tokens=32)
    predictors = load_all([result.best])
    (report,) = export(predictors, tmp_path / "onnx", rows_of(predictors))
    assert report["agreement"] == 100.0


@pytest.mark.slow
def test_the_whole_zoo_can_be_exported(tiny, reviews, tmp_path):
    result = make(tiny, reviews, tmp_path / "runs", [name for name in HEADS if name != "xception"], max_tokens=32)
    predictors = load_all([run for run in result.runs if run.kind == "head"])
    for report in export(predictors, tmp_path / "onnx", rows_of(predictors)):
        assert report["agreement"] == 100.0, report


def test_texts_read_apart_and_together_answer_the_same_from_a_graph(tiny, tmp_path):
    draw = random.Random(0)
    rows = ["text,other,label"]
    for number in range(80):
        words = draw.sample(WORDS, draw.randint(2, 7))
        other = words[::-1] if number % 2 else draw.sample(WORDS, draw.randint(2, 12))
        rows.append(f"{' '.join(words)},{' '.join(other)},{number % 2}")
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    both = "adapter:copies=2,gather=max+compare+align,size=4,texts=both"
    heads = ["learned", both, "adapter:gather=max,size=4,texts=apart"]
    result = make(tiny, tmp_path / "pairs.csv", tmp_path / "runs", heads, text_pair="other")
    predictors = load_all([run for run in result.runs if run.kind in ("head", "bert", "ensemble")])
    for each in predictors:
        found = each.logits(each.encode_examples(rows_of([each])[0]))
        np.testing.assert_allclose(
            found.logits, each.run.predictions().logits, atol=0.05
        )  # scored in bfloat16, perhaps
    reports = export(predictors, tmp_path / "graph", rows_of(predictors))
    assert {report["agreement"] for report in reports} == {100.0}
    pair = ("the film was good", "a very long and quite awful story about this movie")
    for torch_one, onnx_one in zip(predictors, load_all([tmp_path / "graph"]), strict=True):
        probability = torch_one.predict(pair)["probability"]
        assert onnx_one.predict(pair)["probability"] == pytest.approx(probability, abs=1e-4)
    assert [each.layers[0]["texts"] for each in predictors if each.run.name == both] == ["both"]
    assert {each.run.name: each.passes for each in predictors if each.run.kind != "ensemble"} == {
        "BERT": 1,
        "learned": 1,
        both: 2,
        "adapter:gather=max,size=4,texts=apart": 2,
    }


def test_one_text_cannot_be_read_apart(tiny, reviews, tmp_path):
    with pytest.raises(BertVisionError, match="is no pair"):
        make(tiny, reviews, tmp_path, ["adapter:gather=max,texts=apart"])
