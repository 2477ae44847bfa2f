"""One backbone for several tasks."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import bertvision
from bertvision import pipeline
from bertvision.errors import BertVisionError
from bertvision.pipeline.experiment import make
from bertvision.pipeline.multitask import TASK, MixedBatches
from bertvision.states import TokenBatches
from conftest import review

FAST = {"train": {"epochs": 12, "learning_rate": 1e-2, "batch_size": 8}, "finetune": {"learning_rate": 1e-3}}


@pytest.fixture(scope="module")
def experiments(tiny, tmp_path_factory):
    """Two classifications and a score, in official files."""
    place, draw = tmp_path_factory.mktemp("official"), random.Random(0)
    for folder in ("SST-2", "MRPC", "STS-B"):
        (place / folder).mkdir()
    for name, count in (("train", 96), ("dev", 24)):
        singles, pairs, scores = (
            ["sentence\tlabel"],
            ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"],
            ["index\tsentence1\tsentence2\tscore"],
        )
        for row in range(count):
            good = row % 2 == 1
            singles.append(f"{review(good, draw)}\t{row % 2}")
            pairs.append(f"{row % 2}\t{row}\t{row}\t{review(True, draw)}\t{review(good, draw)}")
            scores.append(f"{row}\t{review(True, draw)}\t{review(good, draw)}\t{4.5 if good else 0.5}")
        for folder, lines in (("SST-2", singles), ("MRPC", pairs), ("STS-B", scores)):
            (place / folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    base = make(
        data_dir=str(place),
        encoder=str(tiny),
        fractions=[0.5, 1.0],
        head_fractions=[1.0],
        heads=["adapter:size=8,token_pooling=max"],
        **FAST,
    )
    return [replace(base, task=task) for task in ("sst2", "mrpc", "stsb")]


@pytest.fixture(scope="module")
def found(experiments, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return pipeline.run_multitask(experiments, root), root


def test_every_task_has_its_runs_on_one_backbone(found):
    runs, _ = found
    assert set(runs) == {"sst2", "mrpc", "stsb"}
    for fraction in (0.5, 1.0):
        weights = {run.record.encoder_hash for each in runs.values() for run in each if run.record.fraction == fraction}
        assert len(weights) == 1  # one forward pass will do for all of them
    for each in runs.values():
        assert [run.kind for run in each if run.record.fraction == 1.0][0] == "bert"
        assert any(run.kind == "head" for run in each) and any(run.kind == "control" for run in each)


def test_the_shared_backbone_has_learned_all_of_them(found):
    runs, _ = found
    scores = {task: max(run.primary_score for run in each if run.kind == "head") for task, each in runs.items()}
    assert scores["sst2"] > 70 and scores["stsb"] > 20


def test_it_answers(found):
    runs, _ = found
    for task, item in (("sst2", "the film was good"), ("mrpc", ("the film was good", "the plot was fine"))):
        head = next(run for run in runs[task] if run.kind == "head")
        assert bertvision.load(head).predict(item)["probability"] > 0.5


def test_what_is_finished_is_not_done_again(found, experiments, monkeypatch):
    runs, root = found
    monkeypatch.setattr("bertvision.pipeline.finetuning.fit", lambda *a, **k: pytest.fail("trained again"))
    again = pipeline.run_multitask(experiments, root)
    assert {t: [r.directory for r in each] for t, each in again.items()} == {
        t: [r.directory for r in each] for t, each in runs.items()
    }


def test_batches_are_of_one_task_and_every_row_comes_once(experiments):
    members = [pipeline.prepare(each) for each in experiments]
    parts = [TokenBatches(each.train.features, 8, each.pad_ids, seed=3) for each in members]
    mixed = MixedBatches(parts, 3)
    for number in (0, 1):
        seen, order = [], []
        for batch in mixed.epoch(number):
            task = int(batch.inputs[TASK][0])
            assert (batch.inputs[TASK] == task).all()
            own = batch.rows - mixed.starts[task]
            assert torch.equal(batch.labels, torch.from_numpy(members[task].train.features.labels[own]))
            seen += batch.rows.tolist()
            order.append(task)
        assert sorted(seen) == list(range(mixed.rows)) and len(order) == len(mixed)
        assert order != sorted(order)  # mixed, not one task after the other
    later = list(mixed.epoch(0, 5))
    for one, other in zip(list(mixed.epoch(0))[5:], later, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)


def test_it_goes_on_after_a_stop(experiments, found, tmp_path, monkeypatch):
    """Stopped in the middle and started again: the same weights to the last bit."""
    from bertvision.training import checkpointer, loop

    runs, _ = found
    monkeypatch.setattr(checkpointer, "MIN_SECONDS", -1.0)
    monkeypatch.setattr(checkpointer, "MAX_SHARE", 1e9)
    steps, real = [0], loop._step
    members = [pipeline.prepare(experiment) for experiment in experiments]

    def stopping(*arguments):
        steps[0] += 1
        if steps[0] == 7:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(loop, "_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        pipeline.finetune_multitask(members, tmp_path)
    data, checkpoints = pipeline.finetune_multitask(members, tmp_path)[0]
    checkpoint = pipeline.open_checkpoint(data, checkpoints, 1.0)
    assert checkpoint.encoder_hash == runs["sst2"][-1].record.encoder_hash


def test_one_task_is_not_several(experiments, tmp_path):
    with pytest.raises(BertVisionError, match="two or more different tasks"):
        pipeline.run_multitask([experiments[0], experiments[0]], tmp_path)
