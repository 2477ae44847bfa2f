"""ONNX export: the answers of the graph must be those of torch."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

import bertvision
from bertvision.errors import BertVisionError
from bertvision.files import file_hash
from bertvision.heads import HEADS
from bertvision.onnx_model import GRAPH, MANIFEST, quantize
from bertvision.pipeline import dev_examples, experiment_of
from bertvision.serving import onnx_export
from bertvision.serving.onnx_export import ParityLimits, compare, export_onnx
from bertvision.tasks import Example
from bertvision.trained_model import load, load_all
from conftest import FAMILIES, WORDS, save_tiny, squad_json

# One of each kind of token pooling, layer pooling and classifier; the other heads combine the same parts.
SENTENCE_HEADS = [
    "adapter:size=8,token_pooling=max",
    "adapter:layers=0,2,norm=true,size=4,token_pooling=cls+mean+attention",
    "adapter-independent-skip:size=4",
    "adapter-pooler:size=4",
    "adapter-386-skip-learned:size=4",
    "learned:pooler_output=true",
    "learned-adapter-386-cnn-nxn:size=16,token_pooling=mean",
    "cnn-1xn:token_pooling=max",
    "xception-small-skip",
]


def make(encoder, data, root, heads, **more):
    return bertvision.run(
        train_file=str(data), encoder=str(encoder), heads=heads, fractions=[1.0], controls=False, root=root,
        train={"epochs": 1, "learning_rate": 1e-2}, **more,
    )  # fmt: skip


def rows_of(models):
    return [dev_examples(experiment_of(each.run)) for each in models]


@pytest.fixture(scope="module")
def sentences(tiny, reviews, tmp_path_factory):
    """Many heads on one encoder, in one graph."""
    result = make(tiny, reviews, tmp_path_factory.mktemp("runs"), SENTENCE_HEADS, max_tokens=32)
    models = load_all(result.runs)
    place = tmp_path_factory.mktemp("exports") / "sentences"
    return models, place, export_onnx(models, place, rows_of(models))


def squad(tmp_path_factory, tiny):
    place = tmp_path_factory.mktemp("squad")
    (place / "train.json").write_text(json.dumps(squad_json(8, 4, 0)))
    return make(tiny, place / "train.json", place / "runs", ["adapter-skip:size=4", "learned-cnn-1xn"], max_tokens=32)


@pytest.fixture(scope="module")
def spans(tiny, tmp_path_factory):
    models = load_all(squad(tmp_path_factory, tiny).runs)
    place = tmp_path_factory.mktemp("exports") / "spans"
    return models, place, export_onnx(models, place, rows_of(models))


@pytest.mark.parametrize("kind", ["sentences", "spans"])
def test_answers_are_equal(kind, request):
    models, place, reports = request.getfixturevalue(kind)
    assert len(reports) == len(models)
    for report in reports:
        assert report.agreement == 100.0 and report.largest_difference <= 1e-4, report
    manifest = json.loads((place / MANIFEST).read_text())
    assert manifest["parity"] == [report.to_dict() for report in reports] and manifest["limits"] == {
        "agreement": 99.9,
        "largest_difference": 1e-4,
        "score_difference": 0.001,
    }


def test_any_batch_and_any_length(sentences):
    models, place, _ = sentences
    draw = random.Random(0)
    for count, longest in ((1, 1), (1, 60), (7, 3), (40, 60)):
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]
        for one, other in zip(models, load_all([place]), strict=True):
            features = one.encode(texts)
            assert np.allclose(one.logits(features).logits, other.logits(features).logits, atol=1e-4), one.run.name


def test_an_export_can_be_moved_and_loaded(spans, tmp_path):
    models, place, _ = spans
    moved = shutil.copytree(place, tmp_path / "moved")
    context = "the tower in rome was made at ann . " * 9
    for one, other in zip(models, load_all([moved]), strict=True):
        first, second = (each.predict(("who made the tower", context), bert=True) for each in (one, other))
        assert (first["answer"], first["bert"]["answer"]) == (second["answer"], second["bert"]["answer"])
        assert first["null_probability"] == pytest.approx(second["null_probability"], abs=1e-4)
        assert other.layers == one.layers and "onnxruntime" in other.bert_head.shared_encoder.runs_on
    with pytest.raises(BertVisionError, match="choose one of"):
        load(moved)
    assert load(next((moved / "runs").iterdir())).predict(("who", context))


def test_int8_has_its_own_limits(sentences, tmp_path):
    models, place, _ = sentences
    chosen = models[1:3]
    reports = export_onnx(chosen, tmp_path / "int8", rows_of(chosen), int8=True, limits=ParityLimits(90.0, np.inf))
    assert all(report.largest_difference > 1e-4 for report in reports)  # the weights are quantized
    products = [node for node in onnx.load(tmp_path / "int8" / GRAPH).graph.node if node.op_type == "MatMulNBits"]
    options = {each.name: each.i for each in products[0].attribute}
    assert len(products) >= 12 and options["bits"] == 8 and options["accuracy_level"] == 4
    exported = load_all([tmp_path / "int8"])[0]
    assert "int8" in exported.bert_head.shared_encoder.runs_on
    texts = ["the film was good", "a film", "good " * 20]
    alone = [exported.predict(text)["probability"] for text in texts]
    assert [answer["probability"] for answer in exported.predict(texts)] == pytest.approx(alone, abs=1e-4)


def test_scores_are_equal_within_a_share_of_their_range(tiny, tmp_path):
    texts = [" ".join(WORDS[:count]) for count in range(1, 31)]
    rows = [f"{text},{100.5 * len(text)}" for text in texts]
    (tmp_path / "lengths.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (model,) = load_all([make(tiny, tmp_path / "lengths.csv", tmp_path / "runs", ["learned"]).best])
    examples = [Example(id=str(row), texts=(text,), label=100.5 * len(text)) for row, text in enumerate(texts)]
    scores = [answer["score"] for answer in model.predict(texts)]
    known = [100.5 * len(texts[0]), 100.5 * len(texts[-1])]
    tolerance = 0.01 * (max(*scores, *known) - min(*scores, *known))
    limits = replace(ParityLimits.default(int8=True), agreement=50.0)
    (report,) = export_onnx([model], tmp_path / "int8", [examples], int8=True, limits=limits)
    assert report.score_tolerance == pytest.approx(tolerance) and report.largest_difference > 0
    manifest = json.loads((tmp_path / "int8" / MANIFEST).read_text())
    assert manifest["limits"] == {"agreement": 50.0, "largest_difference": None, "score_difference": 0.01}
    (exported,) = load_all([tmp_path / "int8"])
    differences = [abs(answer["score"] - score) for answer, score in zip(exported.predict(texts), scores, strict=True)]
    assert report.agreement == pytest.approx(100 * np.mean(np.array(differences) <= tolerance), abs=5)
    assert compare("strict", model, exported, examples, 1e-9).agreement < report.agreement


def test_a_graph_with_different_answers_is_not_kept(sentences, tmp_path, monkeypatch):
    models, _, _ = sentences
    chosen = models[1:2]
    written = onnx_export._write_graph

    def damaged(path, shared_encoder, *given, **named):
        weights = [
            p
            for name, p in shared_encoder.heads[chosen[0].attached_heads[0].head].named_parameters()
            if name.endswith("classifier.weight")
        ]
        with torch.no_grad():
            weights[0][0] += 0.1
        written(path, shared_encoder, *given, **named)
        with torch.no_grad():
            weights[0][0] -= 0.1

    monkeypatch.setattr(onnx_export, "_write_graph", damaged)
    with pytest.raises(BertVisionError, match="differs from the original.*The new export was not kept"):
        export_onnx(chosen, tmp_path / "wrong", rows_of(chosen))
    assert not (tmp_path / "wrong").exists()


def test_export_errors(sentences, spans, tmp_path):
    models, place, _ = sentences
    with pytest.raises(BertVisionError, match="holds models on one encoder"):
        export_onnx([models[0], spans[0][0]], tmp_path / "x", [[], []])
    with pytest.raises(BertVisionError, match="must not be exported models"):
        export_onnx(load_all([place])[:1], tmp_path / "x", [[]])
    with pytest.raises(BertVisionError, match="no rows to compare"):
        export_onnx(models[:1], tmp_path / "x", [[]])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(BertVisionError, match="not empty"):
        export_onnx(models[:1], tmp_path / "mine", [[]])


def test_a_damaged_graph_is_refused(spans, tmp_path):
    moved = shutil.copytree(spans[1], tmp_path / "moved")
    raw = bytearray((moved / GRAPH).read_bytes())
    raw[len(raw) // 2] ^= 1
    (moved / GRAPH).write_bytes(raw)
    with pytest.raises(BertVisionError, match="Export it again"):
        load_all([moved])


def test_a_graph_with_other_outputs_is_refused(spans, tmp_path):
    moved = shutil.copytree(spans[1], tmp_path / "moved")
    graph = onnx.load(moved / GRAPH)
    output = graph.graph.output[0]
    node = next(node for node in graph.graph.node if output.name in node.output)
    node.output[list(node.output).index(output.name)] = "floats"
    graph.graph.node.append(onnx.helper.make_node("Cast", ["floats"], [output.name], to=onnx.TensorProto.INT64))
    output.type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(graph, moved / GRAPH)
    manifest = json.loads((moved / MANIFEST).read_text())
    (moved / MANIFEST).write_text(json.dumps(manifest | {"sha256": file_hash(moved / GRAPH)}))
    with pytest.raises(BertVisionError, match="does not hold the logits"):
        load_all([moved])[0].predict(("who", "the tower in rome was made at ann ."), bert=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_exported(family, reviews, tmp_path):
    result = make(save_tiny(tmp_path / family, family), reviews, tmp_path / "runs", ["learned"], max_tokens=32)
    models = load_all([result.best])
    (report,) = export_onnx(models, tmp_path / "onnx", rows_of(models))
    assert report.agreement == 100.0


@pytest.mark.slow
def test_every_head_can_be_exported(tiny, reviews, tmp_path):
    result = make(tiny, reviews, tmp_path / "runs", [name for name in HEADS if name != "xception"], max_tokens=32)
    models = load_all([run for run in result.runs if run.kind == "head"])
    for report in export_onnx(models, tmp_path / "onnx", rows_of(models)):
        assert report.agreement == 100.0, report


def test_cross_and_bi_encoding_in_one_graph(tiny, tmp_path):
    draw = random.Random(0)
    rows = ["text,other,label"]
    for number in range(80):
        words = draw.sample(WORDS, draw.randint(2, 7))
        other = words[::-1] if number % 2 else draw.sample(WORDS, draw.randint(2, 12))
        rows.append(f"{' '.join(words)},{' '.join(other)},{number % 2}")
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    both = "adapter:encoding=both,members=2,size=4,token_pooling=max+compare+align"
    heads = ["learned", both, "adapter:encoding=bi,size=4,token_pooling=max"]
    result = make(tiny, tmp_path / "pairs.csv", tmp_path / "runs", heads, text_pair="other")
    models = load_all([run for run in result.runs if run.kind in ("head", "bert", "ensemble")])
    for each in models:
        found = each.logits(each.encode_examples(rows_of([each])[0]))
        np.testing.assert_allclose(
            found.logits, each.run.predictions().logits, atol=0.05
        )  # the scores may have been computed in bfloat16
    reports = export_onnx(models, tmp_path / "graph", rows_of(models))
    assert {report.agreement for report in reports} == {100.0}
    pair = ("the film was good", "a very long and quite awful story about this movie")
    quantized = shutil.copytree(tmp_path / "graph", tmp_path / "int8")
    quantize(quantized / GRAPH)
    manifest = json.loads((quantized / MANIFEST).read_text())
    (quantized / MANIFEST).write_text(json.dumps(manifest | {"sha256": file_hash(quantized / GRAPH)}))
    graph = onnx.load(quantized / GRAPH).graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    # Both encodings share the weights of the encoder.
    assert len(products) > len({node.input[1] for node in products}) >= 12
    names = [tensor.name for tensor in graph.initializer]
    assert len(names) == len(set(names)) and not any(name.endswith("_transposed") for name in names)
    for torch_one, onnx_one in zip(models, load_all([quantized]), strict=True):
        assert onnx_one.predict(pair)["probability"] == pytest.approx(torch_one.predict(pair)["probability"], abs=0.05)
    for torch_one, onnx_one in zip(models, load_all([tmp_path / "graph"]), strict=True):
        probability = torch_one.predict(pair)["probability"]
        assert onnx_one.predict(pair)["probability"] == pytest.approx(probability, abs=1e-4)
    check_format_2(tmp_path / "graph", pair)
    assert [each.layers[0]["encoding"] for each in models if each.run.name == both] == ["both"]
    assert {each.run.name: each.num_forward_passes for each in models if each.run.kind != "ensemble"} == {
        "BERT": 1,
        "learned": 1,
        both: 2,
        "adapter:encoding=bi,size=4,token_pooling=max": 1,
    }


def check_format_2(directory, pair):
    """An export of format 2 has one mask, which is 2 for the second text; it is still read, and answers the same."""
    expected = [model.predict(pair)["probability"] for model in load_all([directory])]
    graph = onnx.load(directory / GRAPH)
    assert [node.name for node in graph.graph.input][-2:] == ["attention_mask", "text_ids"]
    for node in graph.graph.node:
        node.input[:] = [f"new_{name}" if name in ("attention_mask", "text_ids") else name for name in node.input]
    nodes = [
        onnx.helper.make_node("Min", ["attention_mask", "one"], ["new_attention_mask"]),
        onnx.helper.make_node("Sub", ["attention_mask", "new_attention_mask"], ["new_text_ids"]),
    ]
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    del graph.graph.input[-1]
    for number, node in enumerate(nodes):
        graph.graph.node.insert(number, node)
    onnx.save(graph, directory / GRAPH)
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps(manifest | {"format": 2, "sha256": file_hash(directory / GRAPH)}))
    assert [model.predict(pair)["probability"] for model in load_all([directory])] == pytest.approx(expected, abs=1e-5)
    (directory / MANIFEST).write_text(json.dumps(manifest | {"format": 1}))
    with pytest.raises(BertVisionError, match="format 1; this version reads 2 and 3"):
        load_all([directory])


def test_bi_encoding_needs_a_pair(tiny, reviews, tmp_path):
    with pytest.raises(BertVisionError, match="has one text"):
        make(tiny, reviews, tmp_path, ["adapter:encoding=bi,token_pooling=max"])
