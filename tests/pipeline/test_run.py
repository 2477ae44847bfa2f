"""The whole line on a tiny real backbone, over every kind of task."""

import json
import shutil

import numpy as np
import pytest
import torch
from scipy.special import softmax

import bertvision
from bertvision import pipeline
from bertvision.arrays import load_predictions, save_predictions
from bertvision.encoders import load_encoder
from bertvision.errors import BertVisionError
from bertvision.files import file_lock
from bertvision.heads import build_head
from bertvision.lab import extraction
from bertvision.pipeline.experiment import Experiment, make
from bertvision.runs import Run, find_runs
from bertvision.types import Predictions
from conftest import capture_messages

TRAIN = {"epochs": 8, "learning_rate": 1e-2, "batch_size": 8}
FAST = {"fractions": [0.5, 1.0], "head_fractions": [0.5], "train": TRAIN, "finetune": {"learning_rate": 1e-3}}


@pytest.fixture(scope="module")
def finished(tiny, reviews, tmp_path_factory):
    """One run of the line that several tests look at."""
    root = tmp_path_factory.mktemp("runs")
    heads = ["learned", "adapter:size=8,token_pooling=max"]
    with capture_messages() as messages:
        result = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=heads, root=root, **FAST)
    return result, root, messages


def test_rows_of_the_comparison(finished):
    result, _, messages = finished
    kinds = [(row["kind"], row["name"], row["fraction"]) for row in result.to_rows()]
    assert kinds[0] == ("bert", "BERT", 0.5) and kinds[-1] == ("bert", "BERT", 1.0)
    names = [name for _, name, _ in kinds]
    assert names[1:6] == [
        "learned",
        "adapter:size=8,token_pooling=max",
        "bert-head",
        "learned:layers=last",
        "adapter:layers=last,size=8,token_pooling=max",
    ]
    assert kinds[6][0] == "ensemble"
    assert any("86 rows to train on, 10 to choose on, 24 to score" in each for each in messages)
    for row in result.to_rows():
        low, high = row["interval"]
        assert low <= row["score"]["accuracy"] <= high
        assert row["parameters"] > 0 and row["seconds"]["total"] > 0
    assert result.best.kind == "head" and result.best.validation_score == max(
        r.validation_score for r in result.runs if r.kind == "head"
    )
    assert json.loads(result.file.read_text())["rows"] == result.to_rows()


def test_fine_tuning_goes_through_a_head(tiny, reviews, tmp_path):
    """Beside BERT's own; each way is another fine-tuning."""
    found = {}
    for auxiliary_head in ("bert-head", "last", "adapter:token_pooling=max", "learned:token_pooling=mean"):
        experiment = make(train_file=str(reviews), encoder=str(tiny), fractions=[0.5], auxiliary_head=auxiliary_head)
        data = pipeline.prepare(experiment)
        checkpoints = pipeline.finetune(data, tmp_path)
        found[auxiliary_head] = pipeline.open_checkpoint(data, checkpoints, 0.5)
    assert found.pop("bert-head").directory == found["last"].directory
    assert found["last"].auxiliary_head is None and found["learned:token_pooling=mean"].auxiliary_head is not None
    kept = found["adapter:token_pooling=max"].auxiliary_head
    assert kept is not None and kept(torch.randn(2, 4, 5, 32), torch.ones(2, 5, dtype=torch.bool)).shape == (2, 2)
    fresh = build_head("adapter:token_pooling=max", kept.shape).classifier.bias
    assert not torch.equal(kept.classifier.bias, fresh)
    assert len({each.directory for each in found.values()}) == len({each.encoder_hash for each in found.values()}) == 3
    pairs = make(train_file=str(reviews), encoder=str(tiny), text_pair="text")
    assert pipeline.prepare(pairs).experiment.auxiliary_head == "adapter:token_pooling=max+compare"
    with pytest.raises(BertVisionError, match="Did you mean 'adapter'"):
        pipeline.prepare(make(train_file=str(reviews), encoder=str(tiny), auxiliary_head="adaptor"))


def test_fine_tuning_leaves_frozen_layers_as_they_are(tiny, reviews, tmp_path):
    before, found = load_encoder(str(tiny)).encoder.state_dict(), {}
    for frozen in (0, 1, 3):
        experiment = make(train_file=str(reviews), encoder=str(tiny), fractions=[0.5], frozen=frozen)
        data = pipeline.prepare(experiment)
        checkpoint = pipeline.open_checkpoint(data, pipeline.finetune(data, tmp_path), 0.5)
        after = checkpoint.encoder.state_dict()
        found[frozen] = {name for name in before if torch.equal(before[name], after[name])}
    assert not any("weight" in name for name in found[0])
    assert {name for name in found[1] if "weight" in name} == {n for n in before if "embeddings" in n and "weight" in n}
    assert found[1] < found[3] and any("layer.1." in name for name in found[3])
    assert not any("layer.2." in name and "weight" in name for name in found[3])


def test_it_learns(finished):
    result, _, _ = finished
    assert result.best.primary_score > 75


def test_nothing_is_done_twice(finished, reviews, tiny, monkeypatch):
    result, root, _ = finished
    for step in ("bertvision.pipeline.finetuning.fit", "bertvision.pipeline.head_training.fit_models"):
        monkeypatch.setattr(step, lambda *a, **k: pytest.fail("trained again"))
    heads = ["learned", "adapter:size=8,token_pooling=max"]
    again = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=heads, root=root, **FAST)
    assert [r.directory for r in again.runs] == [r.directory for r in result.runs]


def test_another_head_shares_the_backbone(finished, reviews, tiny, monkeypatch):
    result, root, _ = finished
    monkeypatch.setattr("bertvision.pipeline.finetuning.fit", lambda *a, **k: pytest.fail("fine-tuned again"))
    again = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=["mean"], root=root, **FAST)
    assert again.runs[0].directory == result.runs[0].directory


def test_a_fraction_added_later_lies_on_the_same_curve(finished, reviews, tiny, tmp_path):
    result, root, _ = finished
    settings = {**FAST, "fractions": [0.5, 0.8, 1.0]}
    later = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=["mean"], root=root, **settings)
    fresh = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=["mean"], root=tmp_path, **settings)
    for one, other in zip(later.runs, fresh.runs, strict=True):
        np.testing.assert_array_equal(one.predictions().logits, other.predictions().logits)


def test_scoring_again_gives_the_same(finished):
    result, _, _ = finished
    for run in (result.runs[0], result.best):
        data = pipeline.prepare(pipeline.experiment_of(run))
        assert pipeline.rescore(data, run) == pytest.approx(run.metrics.scores | run.metrics.calibration)


def test_other_dev_rows_are_scored_apart(finished, reviews, tiny):
    result, root, _ = finished
    fewer = bertvision.run(
        train_file=str(reviews), encoder=str(tiny), heads=["learned"], limit_dev=10, root=root, **FAST
    )
    assert fewer.runs[0].directory != result.runs[0].directory
    assert {len(run.predictions()) for run in fewer.runs} == {10}


def test_the_same_rows_under_other_ids_are_scored_apart(reviews, tiny, tmp_path):
    lines = reviews.read_text().splitlines()
    named = [f"id,{lines[0]}", *(f"x{i},{line}" for i, line in enumerate(lines[1:31]))]
    (tmp_path / "dev.csv").write_text("\n".join(lines[:31]) + "\n")
    (tmp_path / "named.csv").write_text("\n".join(named) + "\n")
    settings = {**FAST, "fractions": [0.0], "head_fractions": [0.0], "controls": False}
    for dev, head in (("dev.csv", "learned"), ("named.csv", "mean")):
        result = bertvision.run(
            train_file=str(reviews), dev_file=str(tmp_path / dev), encoder=str(tiny), heads=[head],
            root=tmp_path / "runs", **settings,
        )  # fmt: skip
        assert len({tuple(run.predictions().ids) for run in result.runs}) == 1


def test_two_processes_on_one_run_are_refused(tiny, reviews, tmp_path):
    data = pipeline.prepare(make(train_file=str(reviews), encoder=str(tiny), **FAST))
    place = pipeline.finetune(data, tmp_path).directory
    shutil.rmtree(place / "1")
    with file_lock(place / "resume.safetensors", wait=False), pytest.raises(BertVisionError, match="Another process"):
        pipeline.finetune(data, tmp_path)


def test_streamed_and_kept_states_give_the_same(reviews, tiny, tmp_path):
    scores = []
    for mode in ("stream", "memory"):
        result = bertvision.run(
            train_file=str(reviews),
            encoder=str(tiny),
            heads=["adapter:size=4,token_pooling=mean"],
            controls=False,
            states=mode,
            root=tmp_path / mode,
            **FAST,
        )
        scores.append(result.best.predictions().logits)
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-3)


def test_pooled_channel_and_rates(reviews, tiny, tmp_path):
    result = bertvision.run(
        train_file=str(reviews),
        encoder=str(tiny),
        heads=["learned:pooler_output=true"],
        extra_learning_rates=[1e-1, 1e-4],
        root=tmp_path,
        **FAST,
    )
    plain = bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=["mean"], root=tmp_path / "plain", **FAST)
    bert, ensemble = result.runs[0], next(run for run in result.runs if run.kind == "ensemble")
    # BERT reads its own last layer, with or without the pooled channel beside it.
    np.testing.assert_allclose(bert.predictions().logits, plain.runs[0].predictions().logits, atol=1e-5)
    text = "the film was good"
    probabilities = bertvision.load(bert).predict(text)["probabilities"]
    assert probabilities == pytest.approx(bertvision.load(plain.runs[0]).predict(text)["probabilities"], abs=1e-5)
    both = np.maximum(*(softmax(run.predictions().logits, axis=1) for run in (bert, result.best)))
    expected = both / both.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax(ensemble.predictions().logits, axis=1), expected, atol=1e-5)
    best = result.best
    assert best.name == "learned:pooler_output=true" and best.record.head_shape.num_layers == 4
    assert best.metrics.learning_rate in (1e-1, 1e-2, 1e-4)
    assert bertvision.load(best).predict("the film was good")["label"] in ("pos", "neg")


@pytest.mark.parametrize("task", ["squad2", "squad2-answerable"])
def test_squad(task, squad, tiny, tmp_path):
    settings = {**FAST, "max_tokens": 32, "finetune": {"learning_rate": 1e-3, "batch_size": 8}}
    result = bertvision.run(
        task=task,
        data_dir=str(squad),
        encoder=str(tiny),
        heads=["learned", "adapter-skip:size=4"],
        root=tmp_path,
        **settings,
    )
    primary = {"squad2": "f1", "squad2-answerable": "accuracy"}[task]
    assert {run.metrics.primary_metric for run in result.runs} == {primary}
    if task == "squad2":
        assert all("null_threshold" in run.metrics.decoding for run in result.runs)
    answer = bertvision.load(result.best).predict(
        {"question": "who made the tower", "context": "the tower was made at ann"}
    )
    assert ("answer" if task == "squad2" else "label") in answer
    ensemble = next(run for run in result.runs if run.kind == "ensemble")
    assert bertvision.load(ensemble).predict([("who made it", "bob made the tower")])


def test_regression(tiny, tmp_path):
    rows = [f"{'good ' * (i % 5 + 1)}film\t{i % 5 + 0.5}" for i in range(60)]
    (tmp_path / "scores.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    result = bertvision.run(
        train_file=str(tmp_path / "scores.tsv"),
        encoder=str(tiny),
        heads=["adapter:size=8,token_pooling=mean"],
        root=tmp_path / "runs",
        **FAST,
    )
    assert result.best.metrics.primary_metric == "pearson"
    ensemble = next(run for run in result.runs if run.kind == "ensemble")
    assert ensemble.record.how == "mean"
    assert isinstance(bertvision.load(ensemble).predict("good film")["score"], float)


def test_a_checkpoint_with_its_own_head_is_bert_at_zero(squad, tmp_path):
    """A plain question-answering checkpoint answers as itself, untouched."""
    import torch
    from transformers import AutoModelForQuestionAnswering

    from conftest import save_tiny

    place = save_tiny(tmp_path / "qa", "bert", AutoModelForQuestionAnswering)
    experiment = make(
        task="squad2",
        data_dir=str(squad),
        encoder=str(place),
        fractions=[0.0],
        head_fractions=[0.0],
        heads=["mean"],
        max_tokens=48,
        precision="float32",
    )
    data = pipeline.prepare(experiment)
    checkpoints = pipeline.finetune(data, tmp_path / "runs")
    run = pipeline.bert_run(data, pipeline.open_checkpoint(data, checkpoints, 0.0))
    theirs = AutoModelForQuestionAnswering.from_pretrained(place).eval()
    features, found = data.dev.features, run.predictions()
    for row in range(3):
        part = slice(features.offsets[row], features.offsets[row + 1])
        ids = {name: torch.from_numpy(flat[part].astype(np.int64))[None] for name, flat in features.tokens.items()}
        with torch.no_grad():
            output = theirs(**ids)
        expected = torch.stack([output.start_logits[0], output.end_logits[0]], -1).numpy()
        np.testing.assert_allclose(found.row(row), expected, atol=1e-5)


def test_validation_is_never_trained_on(reviews, tiny):
    data = pipeline.prepare(make(train_file=str(reviews), encoder=str(tiny)))
    ids = [{example.id for example in split.examples} for split in (data.train, data.validation, data.dev)]
    assert not ids[0] & ids[1] and not ids[0] & ids[2] and not ids[1] & ids[2]
    assert sum(map(len, ids)) == 120


def test_dev_labels_change_nothing_but_the_final_score(reviews, tiny, tmp_path):
    lines = reviews.read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join(lines[:91]) + "\n")
    (tmp_path / "dev.csv").write_text("\n".join([lines[0], *lines[91:]]) + "\n")
    flipped = [line[:-3] + ("neg" if line.endswith("pos") else "pos") for line in lines[91:]]
    (tmp_path / "flipped.csv").write_text("\n".join([lines[0], *flipped]) + "\n")
    found = []
    for dev in ("dev.csv", "flipped.csv"):
        result = bertvision.run(
            train_file=str(tmp_path / "train.csv"),
            dev_file=str(tmp_path / dev),
            encoder=str(tiny),
            heads=["learned", "adapter:size=8,token_pooling=max"],
            root=tmp_path / dev.split(".")[0],
            **FAST,
        )
        found.append(result)
    assert found[0].best.name == found[1].best.name
    for one, other in zip(found[0].runs, found[1].runs, strict=True):
        np.testing.assert_array_equal(one.predictions().logits, other.predictions().logits)
        assert one.primary_score == pytest.approx(100 - other.primary_score)


def test_finished_runs_are_found_and_hold_no_pickles(finished):
    result, root, _ = finished
    found = {run.directory for run in find_runs(root)}
    assert {run.directory for run in result.runs} <= found
    suffixes = {path.suffix for path in root.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".md", ".npz", ".npy", ".safetensors", ".txt", ".lock"}
    assert not list(root.rglob("resume*"))


def test_a_tree_of_runs_can_be_moved(finished, tmp_path):
    result, root, _ = finished
    shutil.copytree(root, tmp_path / "elsewhere")
    moved = Run(tmp_path / "elsewhere" / result.best.directory.relative_to(root))
    assert bertvision.load(moved).predict("a good film") == bertvision.load(result.best).predict("a good film")


def test_a_head_refuses_another_backbone(finished, tmp_path):
    result, root, _ = finished
    shutil.copytree(root, tmp_path / "runs")
    moved = Run(tmp_path / "runs" / result.best.directory.relative_to(root))
    other = moved.directory.parent.parent / "1" / "encoder" / "model.safetensors"
    shutil.copy(other, moved.encoder_directory / "model.safetensors")
    with pytest.raises(BertVisionError, match="is not the one .* was trained on"):
        bertvision.load(moved)


def test_misspelt_heads_cost_no_fine_tuning(tiny, reviews, tmp_path):
    with pytest.raises(BertVisionError, match="Did you mean 'adapter'"):
        bertvision.run(train_file=str(reviews), encoder=str(tiny), heads=["adaptor"], root=tmp_path)
    assert not list(tmp_path.iterdir())


def test_predictions_survive_the_disk(tmp_path):
    random = np.random.default_rng(0)
    for offsets in (None, np.array([0, 2, 5])):
        made = Predictions(
            ids=["a", "ü b"],
            logits=random.normal(size=(2 if offsets is None else 5, 2)).astype(np.float32),
            offsets=offsets,
        )
        save_predictions(tmp_path / "p.npz", made)
        found = load_predictions(tmp_path / "p.npz")
        assert found.ids == made.ids and np.array_equal(found.logits, made.logits)
        assert (found.offsets is None) == (offsets is None)
    (tmp_path / "p.npz").write_bytes(b"PK broken")
    with pytest.raises(BertVisionError, match="not a readable predictions file"):
        load_predictions(tmp_path / "p.npz")


def test_defaults_are_an_experiment():
    assert Experiment().to_dict()["encoder"] == "minilm"


def test_given_checkpoints_are_points_of_a_curve(finished, tiny, reviews, tmp_path):
    """Checkpoints fine-tuned elsewhere take the place of fine-tuning; the same weights give the same answers."""
    result, _, _ = finished
    place = result.file.parent
    for fraction in ("0.5", "1"):
        shutil.copytree(place / fraction / "encoder", tmp_path / "checkpoints" / fraction)
    template = str(tmp_path / "checkpoints" / "{fraction}")
    settings = {"train_file": str(reviews), "encoder": template, "heads": ["learned"]}
    found = [bertvision.run(root=tmp_path / "runs", seed=seed, **settings, **FAST) for seed in (0, 1)]
    assert (
        found[0].runs[0].primary_score == result.runs[0].primary_score
        and found[0].runs[-1].primary_score == result.runs[-1].primary_score
    )
    same = [next(run for run in each.runs if run.name == "learned") for each in (result, found[0])]
    np.testing.assert_array_equal(same[0].predictions().logits, same[1].predictions().logits)
    assert found[0].runs[0].directory == found[1].runs[0].directory  # BERT is the same whatever the heads' seed
    assert found[0].best.directory != found[1].best.directory
    assert found[0].runs[0].metrics.seconds.finetune == 0


def test_a_head_can_learn_from_a_share_of_the_labels(finished, tiny, reviews):
    result, root, _ = finished
    settings = {"train_file": str(reviews), "encoder": str(tiny), "heads": ["learned"], "controls": False} | FAST
    data = pipeline.prepare(make(**settings))
    parts = [set(data.labelled_rows(share)) for share in (0.1, 0.5, 1.0)]
    assert parts[0] < parts[1] < parts[2] and [len(part) for part in parts] == [9, 43, 86]
    labels = data.train.features.labels[sorted(parts[1])]
    assert abs(labels.mean() - data.train.features.labels.mean()) < 0.02  # in the data's proportions
    half = bertvision.run(root=root, label_fraction=0.5, **settings)
    whole = next(run for run in result.runs if run.name == "learned")
    assert half.best.directory != whole.directory and half.best.metrics.seconds.finetune > 0
    assert half.runs[0].directory == result.runs[0].directory  # the backbone is the same
    assert not np.array_equal(half.best.weights()["classifier.weight"], whole.weights()["classifier.weight"])
    for share in (0.0, 1.5):
        with pytest.raises(BertVisionError, match="above 0 and at most 1"):
            pipeline.prepare(make(label_fraction=share, **settings))


def test_a_head_carried_to_a_later_checkpoint(finished, tiny, reviews):
    result, root, _ = finished
    data = pipeline.prepare(make(train_file=str(reviews), encoder=str(tiny), **FAST))
    checkpoints = pipeline.finetune(data, root)
    names = ("learned", "adapter:layers=last,size=8,token_pooling=max")
    each = [next(run for run in result.runs if run.name == name) for name in names]
    early = pipeline.evaluate_at(data, each, pipeline.open_checkpoint(data, checkpoints, 0.5))
    late = pipeline.evaluate_at(data, each, pipeline.open_checkpoint(data, checkpoints, 1.0))
    for trained, here, later in zip(each, early, late, strict=True):
        np.testing.assert_allclose(here.predictions().logits, trained.predictions().logits, atol=1e-5)
        assert later.kind == "evaluated" and later.record.fraction == 1.0
        assert later.metrics.trained_at == 0.5
        assert not np.array_equal(later.predictions().logits, trained.predictions().logits)
        answers = bertvision.load(later.directory).predict(["the film was good"])
        assert answers[0]["label"] in data.task.classes


def test_states_of_pairs_are_stored_as_the_default_heads_read_them(tiny, reviews):
    pairs = make(train_file=str(reviews), encoder=str(tiny), text_pair="text", fractions=[0.0])
    sizes = {
        texts: extraction.estimate(pairs, ["train"], extraction.ExtractionOptions(encoding=texts))["bytes"]["float32"]
        for texts in ("", "cross", "bi", "both")
    }
    assert sizes[""] == sizes["both"] > 1.9 * sizes["cross"] and sizes["bi"] == sizes["cross"]
    texts = make(train_file=str(reviews), encoder=str(tiny), fractions=[0.0])
    assert extraction.estimate(texts, ["train"]) == extraction.estimate(
        texts, ["train"], extraction.ExtractionOptions(encoding="cross")
    )
    for wrong, why in (("bi", "needs a task of text pairs"), ("beside", "value of encoding")):
        with pytest.raises(BertVisionError, match=why):
            extraction.estimate(texts, ["train"], extraction.ExtractionOptions(encoding=wrong))


def test_an_experiment_and_settings_together_are_refused(reviews, tiny, tmp_path):
    experiment = make(train_file=str(reviews), encoder=str(tiny))
    with pytest.raises(BertVisionError, match="Give an experiment or settings, not both; got an experiment and seed"):
        bertvision.run(experiment, seed=3, root=tmp_path)


def test_space_for_the_encoder_is_checked_before_fine_tuning(tiny, reviews, tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    monkeypatch.setattr("bertvision.pipeline.finetuning.fit", lambda *args: pytest.fail("fine-tuned"))
    with pytest.raises(BertVisionError, match="Saving the fine-tuned encoder needs .* MB"):
        bertvision.run(train_file=str(reviews), encoder=str(tiny), fractions=[1.0], heads=["learned"], root=tmp_path)
