import json
import shutil

import pytest
from transformers import AutoModel

import bertvision
from bertvision import TrainedModel
from bertvision.errors import BertVisionError
from bertvision.runs import find_runs
from conftest import save_tiny

ENCODINGS = ["the film was great", "the plot was awful and poor"]


@pytest.fixture(scope="module")
def runs(tiny, reviews, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    result = bertvision.run(
        train_file=str(reviews), encoder=str(tiny), heads=["adapter:size=8,token_pooling=max"], fractions=[0.0, 1.0],
        head_fractions=[0.0, 1.0], train={"epochs": 3, "learning_rate": 1e-2}, root=root,
    )  # fmt: skip
    return root, result


@pytest.mark.parametrize("kind", ["head", "bert", "ensemble"])
def test_a_shared_run_answers_alone(runs, tmp_path, kind):
    root, result = runs
    run = next(each for each in result.runs if each.kind == kind and each.record.fraction == 1)
    before = TrainedModel(run).predict(ENCODINGS, bert=True)
    assert TrainedModel(run).save_pretrained(tmp_path / "shared") == tmp_path / "shared"
    shutil.move(tmp_path / "shared", tmp_path / "elsewhere")  # nothing may point back
    shutil.move(root, tmp_path / "hidden")
    try:
        assert TrainedModel.from_pretrained(tmp_path / "elsewhere").predict(ENCODINGS, bert=True) == before
        assert AutoModel.from_pretrained(tmp_path / "elsewhere").config.model_type == "bert"
    finally:
        shutil.move(tmp_path / "hidden", root)
    # Sharing what was shared gives the same again.
    TrainedModel.from_pretrained(tmp_path / "elsewhere").save_pretrained(tmp_path / "again")
    assert bertvision.load(tmp_path / "again").predict(ENCODINGS, bert=True) == before


def test_nothing_of_this_machine_is_told(runs, tmp_path):
    TrainedModel(runs[1].best).save_pretrained(tmp_path / "shared")
    for file in (tmp_path / "shared").rglob("*"):
        if file.suffix in (".json", ".md"):
            assert "/tmp/" not in file.read_text() and str(tmp_path.parent) not in file.read_text(), file
    assert not list((tmp_path / "shared").rglob("*.npz"))


def test_the_card_says_how_good_it_is(runs, tmp_path):
    TrainedModel(runs[1].best).save_pretrained(tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: bertvision\n")
    assert f"| accuracy | {runs[1].best.metrics.scores['accuracy']:.2f} |" in card
    assert runs[1].best.record.encoder_hash in card and "dev was predicted once" in card


def test_another_backbone_is_refused(runs, tiny, tmp_path):
    _, result = runs
    head = result.best
    bare = TrainedModel(head).save_pretrained(tmp_path / "bare", encoder=False)
    assert not list(bare.glob("model*.safetensors"))
    right = str(head.encoder_directory)
    assert TrainedModel.from_pretrained(bare, encoder=right).predict(ENCODINGS) == TrainedModel(head).predict(ENCODINGS)
    other = save_tiny(tmp_path / "other", seed=1)
    with pytest.raises(BertVisionError, match="is not the one .* was trained on"):
        TrainedModel.from_pretrained(bare, encoder=str(other))
    whole = TrainedModel(head).save_pretrained(tmp_path / "whole")
    shutil.copy(other / "model.safetensors", whole / "model.safetensors")
    with pytest.raises(BertVisionError, match="is not the one .* was trained on"):
        bertvision.load(whole)


def test_a_pretrained_backbone_is_found_by_its_name(runs, tiny, tmp_path, monkeypatch):
    zero = next(each for each in runs[1].runs if each.kind == "head" and each.record.fraction == 0)
    bare = TrainedModel(zero).save_pretrained(tmp_path / "bare", encoder=False)
    experiment = json.loads((bare / "experiment.json").read_text())
    assert experiment["encoder"] == tiny.name  # a directory's path is not told; its name alone is no backbone
    with pytest.raises(BertVisionError, match="Cannot load backbone"):
        bertvision.load(bare)
    monkeypatch.chdir(tiny.parent)
    assert bertvision.load(bare).predict(ENCODINGS) == TrainedModel(zero).predict(ENCODINGS)


def test_what_is_there_is_not_lost(runs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(BertVisionError, match="not empty"):
        TrainedModel(runs[1].best).save_pretrained(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    shared = TrainedModel(runs[1].best).save_pretrained(tmp_path / "shared")
    assert TrainedModel(runs[1].best).save_pretrained(shared) == shared  # a shared run may be replaced
    assert len(list(find_runs(shared))) == 2
