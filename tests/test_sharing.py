import json
import shutil

import pytest
import yaml
from transformers import AutoModel

import bertvision
from bertvision import TrainedModel
from bertvision.errors import BertVisionError
from bertvision.runs import find_runs
from conftest import save_tiny

TEXTS = ["the film was great", "the plot was awful and poor"]


@pytest.fixture(scope="module")
def runs(tiny, reviews, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    result = bertvision.run(
        train_file=str(reviews), encoder=str(tiny), heads=["adapter:size=8,token_pooling=max"], fractions=[0.0, 1.0],
        head_fractions=[0.0, 1.0], train={"epochs": 3, "learning_rate": 1e-2}, root=root,
    )  # fmt: skip
    return root, result


@pytest.mark.parametrize("kind", ["head", "bert", "ensemble"])
def test_a_shared_run_is_self_contained(runs, tmp_path, kind):
    root, result = runs
    run = next(each for each in result.runs if each.kind == kind and each.record.fraction == 1)
    before = TrainedModel(run).predict(TEXTS, bert=True)
    assert TrainedModel(run).save_pretrained(tmp_path / "shared") == tmp_path / "shared"
    shutil.move(tmp_path / "shared", tmp_path / "elsewhere")  # no file may refer to the original place
    shutil.move(root, tmp_path / "hidden")
    try:
        assert TrainedModel.from_pretrained(tmp_path / "elsewhere").predict(TEXTS, bert=True) == before
        assert AutoModel.from_pretrained(tmp_path / "elsewhere").config.model_type == "bert"
    finally:
        shutil.move(tmp_path / "hidden", root)
    # A shared run can be shared again.
    TrainedModel.from_pretrained(tmp_path / "elsewhere").save_pretrained(tmp_path / "again")
    assert bertvision.load(tmp_path / "again").predict(TEXTS, bert=True) == before


def test_no_local_path_is_shared(runs, tmp_path):
    TrainedModel(runs[1].best).save_pretrained(tmp_path / "shared")
    for file in (tmp_path / "shared").rglob("*"):
        if file.suffix in (".json", ".md"):
            assert "/tmp/" not in file.read_text() and str(tmp_path.parent) not in file.read_text(), file
    assert not list((tmp_path / "shared").rglob("*.npz"))


def test_model_card(runs, tmp_path):
    TrainedModel(runs[1].best).save_pretrained(tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: bertvision\n")
    assert f"| accuracy | {runs[1].best.metrics.scores['accuracy']:.2f} |" in card
    assert runs[1].best.record.encoder_hash in card and "The dev split was evaluated once" in card
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert "base_model" not in metadata  # the encoder is a local directory
    (result,) = metadata["model-index"][0]["results"]
    assert result["task"]["type"] == metadata["pipeline_tag"] == "text-classification"
    assert {metric["type"] for metric in result["metrics"]} == set(metadata["metrics"])


def test_another_encoder_is_refused(runs, tiny, tmp_path):
    _, result = runs
    head = result.best
    bare = TrainedModel(head).save_pretrained(tmp_path / "bare", encoder=False)
    assert not list(bare.glob("model*.safetensors"))
    right = str(head.encoder_directory)
    assert TrainedModel.from_pretrained(bare, encoder=right).predict(TEXTS) == TrainedModel(head).predict(TEXTS)
    other = save_tiny(tmp_path / "other", seed=1)
    with pytest.raises(BertVisionError, match="is not the one .* was trained on"):
        TrainedModel.from_pretrained(bare, encoder=str(other))
    whole = TrainedModel(head).save_pretrained(tmp_path / "whole")
    shutil.copy(other / "model.safetensors", whole / "model.safetensors")
    with pytest.raises(BertVisionError, match="is not the one .* was trained on"):
        bertvision.load(whole)


def test_a_pretrained_encoder_is_found_by_its_name(runs, tiny, tmp_path, monkeypatch):
    zero = next(each for each in runs[1].runs if each.kind == "head" and each.record.fraction == 0)
    bare = TrainedModel(zero).save_pretrained(tmp_path / "bare", encoder=False)
    experiment = json.loads((bare / "experiment.json").read_text())
    assert experiment["encoder"] == tiny.name  # only the last part of a path is shared, and that is no encoder
    with pytest.raises(BertVisionError, match="Cannot load encoder"):
        bertvision.load(bare)
    monkeypatch.chdir(tiny.parent)
    assert bertvision.load(bare).predict(TEXTS) == TrainedModel(zero).predict(TEXTS)


def test_other_files_are_not_overwritten(runs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(BertVisionError, match="not empty"):
        TrainedModel(runs[1].best).save_pretrained(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    shared = TrainedModel(runs[1].best).save_pretrained(tmp_path / "shared")
    assert TrainedModel(runs[1].best).save_pretrained(shared) == shared  # a shared run may be replaced
    assert len(list(find_runs(shared))) == 2
