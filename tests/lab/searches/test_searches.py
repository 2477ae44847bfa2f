"""Searches on a tiny real backbone: what they find, what they may see, and what happens when things go wrong."""

import json
import math
from dataclasses import replace

import numpy as np
import optuna
import pytest

from bertvision import pipeline
from bertvision.errors import BertVisionError
from bertvision.heads import DEFAULT_LEARNING_RATES, HeadConfig, default_head
from bertvision.lab import search
from bertvision.lab.searches import Space, TrialSettings
from bertvision.lab.searches.optuna_study import pruning_thresholds
from bertvision.lab.searches.space import CANDIDATES, BertSpace, check_space, default_trial, suggest_settings
from bertvision.lab.searches.trials import TrialRunner
from bertvision.pipeline import experiment as config
from bertvision.pipeline import prepare
from bertvision.pipeline.experiment import make

QUICK = {"fractions": [0.5], "finetune": {"learning_rate": 1e-3}, "controls": False}
SPACE = ["learning_rate=[1e-3,3e-2]", "epochs=[2,4]", "size=[4,8]"]


def told(found) -> list[dict]:
    """The history without what depends on the clock."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found.history]


@pytest.fixture(scope="module")
def experiment(tiny, reviews):
    return make(train_file=str(reviews), encoder=str(tiny), **QUICK)


@pytest.fixture(scope="module")
def found(experiment, tmp_path_factory):
    root = tmp_path_factory.mktemp("search")
    return search(experiment, trials=12, trials_per_batch=4, space=SPACE, root=root)


def test_the_best_is_refitted_and_written_down(found, tmp_path):
    assert len(found.history) == 12 and {row["state"] for row in found.history} <= {"complete", "pruned"}
    complete = [row["validation"] for row in found.history if row["validation"] is not None]
    (run,) = found.runs
    assert found.validation == max(complete) == run.validation_score[0]
    assert run.name == found.settings.head and run.metrics.learning_rate == found.settings.learning_rate
    record = json.loads((found.directory / "search.json").read_text())
    assert record["final"][0]["score"] == run.metrics.scores and len(record["history"]) == 12
    assert sum(record["importance"].values()) == pytest.approx(1)
    assert "| learning_rate |" in (found.directory / "search.md").read_text()
    # Elsewhere, from the file alone.
    again = pipeline.run(config.load(found.file), root=tmp_path)
    assert again.best.metrics.scores == run.metrics.scores and again.best.validation_score == run.validation_score
    np.testing.assert_array_equal(again.best.predictions().logits, run.predictions().logits)


@pytest.mark.slow
def test_the_same_search_finds_the_same(found, experiment, tmp_path):
    again = search(experiment, trials=12, trials_per_batch=4, space=SPACE, root=tmp_path)
    assert told(again) == told(found)


def test_a_finished_search_trains_nothing_and_more_trials_go_on(found, experiment, monkeypatch):
    root = found.directory.parents[2]
    monkeypatch.setattr(TrialRunner, "train", lambda *a, **k: pytest.fail("trained again"))
    again = search(experiment, trials=12, trials_per_batch=4, space=SPACE, root=root)
    assert again.history == found.history
    monkeypatch.undo()
    more = search(experiment, trials=14, trials_per_batch=4, space=SPACE, root=root)
    assert len(more.history) == 14 and more.history[:12] == found.history


@pytest.mark.slow
def test_batch_size_does_not_change_the_trials(experiment, tmp_path):
    found = [
        search(experiment, trials=4, trials_per_batch=4, space=SPACE, root=tmp_path / "a"),
        search(experiment, trials=4, trials_per_batch=1, space=SPACE, root=tmp_path / "b"),
    ]
    assert [row["by_epoch"] for row in found[0].history] == [row["by_epoch"] for row in found[1].history]


def test_dev_labels_change_nothing_but_the_final_score(reviews, tiny, tmp_path):
    lines = reviews.read_text().splitlines()
    flipped = [line[:-3] + ("neg" if line.endswith("pos") else "pos") for line in lines[91:]]
    (tmp_path / "train.csv").write_text("\n".join(lines[:91]) + "\n")
    results = []
    for name, rows in (("true", lines[91:]), ("flipped", flipped)):
        (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *rows]) + "\n")
        files = {"train_file": str(tmp_path / "train.csv"), "dev_file": str(tmp_path / f"{name}.csv")}
        made = make(**files, encoder=str(tiny), **QUICK)
        results.append(search(made, trials=6, trials_per_batch=3, space=SPACE, root=tmp_path / name))
    one, other = results
    assert told(one) == told(other) and one.settings == other.settings
    np.testing.assert_array_equal(one.runs[0].predictions().logits, other.runs[0].predictions().logits)
    assert one.runs[0].primary_score == pytest.approx(100 - other.runs[0].primary_score)


def test_trials_do_not_have_dev(experiment, tmp_path):
    whole = prepare(experiment)
    runner = TrialRunner(experiment, None, [0], tmp_path)
    splits = runner.data.train, runner.data.validation, runner.data.dev
    held = {row.id for split in splits for row in split.examples}
    assert not held & {row.id for row in whole.dev.examples}


@pytest.mark.slow
def test_seeds_are_repeated(experiment, tmp_path):
    found = search(experiment, trials=3, seeds=2, space=SPACE, root=tmp_path)
    for row in found.history:
        assert len(row["scores"]) == 2 and row["validation"] == pytest.approx(np.mean(row["scores"]))
    assert [run.record.settings["seed"] for run in found.runs] == [0, 1]
    assert found.validation == pytest.approx(np.mean([run.validation_score[0] for run in found.runs]))


@pytest.mark.slow
def test_fractions_and_heads_are_searched(experiment, tmp_path):
    made = make(
        train_file=experiment.data.train_file,
        encoder=experiment.encoder,
        heads=["learned:token_pooling=mean", "adapter", "last"],
        fractions=[0.0, 0.5],
        controls=False,
    )
    found = search(made, trials=10, trials_per_batch=10, space=SPACE, root=tmp_path)
    tried = [row["setting"] for row in found.history]
    assert {each["fraction"] for each in tried} == {0.0, 0.5}
    assert {each["head"].split(":")[0] for each in tried} == {"learned", "adapter", "bert-head"}
    for each in tried:
        assert ("token_pooling=mean" in each["head"]) or not each["head"].startswith("learned")
        assert ("size=" in each["head"]) == each["head"].startswith("adapter")


@pytest.mark.slow
def test_bert_is_searched_with_the_same_budget(experiment, tmp_path):
    found = search(experiment, target="bert", trials=3, space=["epochs=[1,2]"], root=tmp_path)
    assert len(found.history) == 3 and not found.settings.head
    (run,) = found.runs
    # The trial and the fine-tuning that is kept are the same, step by step.
    assert run.kind == "bert" and run.validation_score[0] == found.validation
    assert found.experiment.finetune.schedule == "linear" and found.experiment.fractions == [found.settings.epochs]


@pytest.mark.slow
def test_spans(tiny, squad, tmp_path):
    made = make(task="squad2", data_dir=str(squad), encoder=str(tiny), max_tokens=32, **QUICK)
    found = search(made, trials=3, space=SPACE, root=tmp_path / "runs")
    assert all("token_pooling" not in row["params"] for row in found.history)
    assert found.runs[0].validation_score[0] == pytest.approx(found.validation)


@pytest.mark.slow
def test_failed_trials_are_recorded_and_the_search_goes_on(experiment, tmp_path):
    """A trillion numbers fit into no memory, and 1e30 is no learning rate; what trains beside them is not harmed."""
    made = config.replace(experiment, heads=["adapter"])
    space = ["size=[4,1000000000000]", "learning_rate=[1e-3,1e-2]", "epochs=[2,2]"]
    found = search(made, trials=8, trials_per_batch=4, space=space, root=tmp_path)
    failed = [row for row in found.history if row["state"] == "fail"]
    assert 0 < len(failed) < 8 and all("alloc" in row["failed"] for row in failed)
    assert {row["params"]["size"] for row in failed} == {10**12}
    assert f"Trial {failed[0]['number']} failed: " in (found.directory / "search.md").read_text()
    with pytest.raises(BertVisionError, match="Every trial failed. The first error: its loss became"):
        search(made, trials=2, space=["learning_rate=[1e30,1e30]", "size=[4]"], root=tmp_path)


@pytest.mark.slow
def test_poor_trials_are_pruned(experiment, tmp_path):
    made = config.replace(experiment, heads=["adapter"], head_fractions=[0.5])
    runner = TrialRunner(made, Space(), [0, 1], tmp_path)
    runner.prepare(tmp_path)
    settings = [TrialSettings(head=head, fraction=0.5, learning_rate=1e-4, epochs=4) for head in ("learned", "mean")]
    high, low, alone = (runner.train(settings, [at] * 2) for at in ([-math.inf, 101.0], [-math.inf, 0.0], []))
    for pruned, kept, calm in zip(high, low, alone, strict=True):
        assert pruned.pruned and not pruned.validation_scores and pruned.by_epoch == calm.by_epoch[:2]
        assert not kept.pruned and kept.validation_scores == calm.validation_scores and len(kept.validation_scores) == 2
        assert kept.by_epoch == sorted(calm.by_epoch)


def test_pruning_thresholds_are_medians_of_finished_trials():
    study = optuna.create_study(direction="maximize")
    for curve in ([1, 2, 3], [2, 2], [3, 4, 5], [0, 0, 0]):
        tell(study, curve)
    assert pruning_thresholds(study) == []
    tell(study, [4, 6, 8, 9])
    assert pruning_thresholds(study) == [-math.inf, 2, 3, 3]


def tell(study, curve):
    trial = study.ask()
    for epoch, score in enumerate(curve):
        trial.report(score, epoch)
    study.tell(trial, curve[-1])


@pytest.mark.slow
def test_a_shard_is_drawn_at_random(tiny, tmp_path, messages):
    (tmp_path / "SST-2").mkdir()
    for split, rows in (("train", 400), ("dev", 20)):
        lines = [f"the {'good' if i % 2 else 'bad'} film {'a ' * (i % 5)}\t{i % 2}" for i in range(rows)]
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    made = make(task="sst2", data_dir=str(tmp_path), encoder=str(tiny), **QUICK)
    found = search(made, trials=1, space=SPACE, root=tmp_path / "runs")
    assert any("random 10% of sst2" in each for each in messages) and any(
        "360 rows to train on" in each for each in messages
    )
    assert found.experiment.data.train_fraction == 1  # the best is fitted on all of it
    sharded = prepare(config.replace(made, data=config.replace(made.data, train_fraction=0.1)))
    ids = sorted(int(row.id.split("-")[-1]) for split in (sharded.train, sharded.validation) for row in split.examples)
    assert len(ids) == 40 and ids != list(range(40)) and ids[-1] > 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "beret"}, "Did you mean 'bert'"),
        ({"space": ["sizes=[3]"]}, "Did you mean 'size'"),
        ({"space": ["learning_rate=[1e-2,1e-4]"]}, "in this order"),
        ({"space": ["size=[]"]}, "space of size is empty"),
        ({"space": ["layers=['last9']"]}, "do not exist"),
        ({"trials": 0}, "at least one trial"),
        ({"shard": 1.5}, "at most 1"),
        ({"storage": "nonsense"}, "Cannot use 'nonsense' as storage"),
        ({"storage": "sqlite:////nowhere/at/all.db"}, "unable to open database"),
        ({"storage": "postgresql://me:secret@localhost:1/x"}, r"me:\*\*\*@localhost"),
    ],
)
def test_mistakes_get_a_sentence_and_cost_no_fine_tuning(experiment, tmp_path, changes, words):
    with pytest.raises(BertVisionError, match=words):
        search(experiment, **({"trials": 1, "root": tmp_path} | changes))
    assert not list(tmp_path.rglob("checkpoint.json"))


def test_the_default_is_tried_first(experiment, tmp_path):
    found = search(experiment, trials=1, root=tmp_path)
    assert found.settings == TrialSettings(
        head="adapter:dropout=0.0,layers=all,members=3,size=32,token_pooling=max",
        fraction=0.5,
        learning_rate=2e-3,
        epochs=10,
    )


def first_trial(kind, space=None, heads=None):
    experiment = replace(make(), heads=list(heads or CANDIDATES.get(kind, [])), head_fractions=[0.3])
    defaults = {"default_rate": 1e-4, "kind": kind}
    return default_trial(check_space(space or Space(), **defaults), experiment, default_epochs=3.0, **defaults)


COMMON = {"learning_rate": 2e-3, "epochs": 3, "fraction": 0.3, "size": 32, "layers": "all", "dropout": 0.0}
BI = "adapter:encoding=bi,members=3,token_pooling=max+compare+align"


@pytest.mark.parametrize("kind", CANDIDATES)
def test_the_first_trial_is_the_default_head_of_every_kind_of_task(kind):
    """Drawn from the search space, the first trial has exactly the settings that `run` uses by default."""
    experiment = replace(make(), heads=CANDIDATES[kind], head_fractions=[0.3])
    defaults = {"default_rate": 1e-4, "kind": kind}
    space = check_space(Space(), **defaults)
    study = optuna.create_study()
    study.enqueue_trial(default_trial(space, experiment, default_epochs=3.0, **defaults))
    settings = suggest_settings(space, study.ask(), experiment, per_token=kind == "span")
    expected, found = default_head(kind), HeadConfig.parse(settings.head)
    assert (found.name, found.options) == (expected.name, expected.options)
    assert (settings.learning_rate, settings.epochs) == (DEFAULT_LEARNING_RATES[kind], 3)


def test_the_first_trial_by_kind_of_task():
    assert first_trial("pair") == COMMON | {"head": BI, "layers": "every2"}
    assert first_trial("text") == COMMON | {"head": "adapter:members=3", "token_pooling": "max"}
    assert first_trial("span") == COMMON | {"head": "adapter-skip", "size": 64, "learning_rate": 1e-3}
    fixed = first_trial("text", heads=["adapter:members=3,token_pooling=cls", "adapter:members=3,size=32"])
    assert fixed["head"] == "adapter:members=3,size=32" and "size" not in fixed
    assert first_trial("bert", BertSpace()) == {"learning_rate": 1e-4, "epochs": 1}


def test_where_the_space_lacks_a_default_the_first_trial_has_the_closest_value():
    pair = COMMON | {"head": BI, "layers": "every2"}
    assert first_trial("pair", Space(size=[8, 20])) == pair | {"size": 20}
    assert first_trial("pair", Space(learning_rate=[3e-3, 4e-3])) == pair | {"learning_rate": 3e-3}
    assert first_trial("pair", Space(epochs=[6, 7])) == pair | {"epochs": 6}
    assert first_trial("pair", Space(layers=["all"])) == pair | {"layers": "all"}
    assert first_trial("text", Space(token_pooling=["cls"]))["token_pooling"] == "cls"
    assert first_trial("pair", heads=["learned", "adapter"])["head"] == "adapter"
    assert first_trial("pair", heads=["learned"])["head"] == "learned"
    assert first_trial("bert", BertSpace(learning_rate=[1e-5, 2e-5])) == {"learning_rate": 2e-5, "epochs": 1}
