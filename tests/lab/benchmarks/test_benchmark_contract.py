"""Every task of the table keeps this contract. Token tasks have one of their own: token_tasks/test_token_task.py."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertvision.errors import BertVisionError
from bertvision.statistics import interval
from bertvision.tasks import TASKS, DataRequest, task_from_dict
from bertvision.token_tasks import TokenTask
from bertvision.types import Predictions
from conftest import capture_messages
from tasks.synthetic import perfect, spaced, wordpiece, write_task

every_task = pytest.mark.parametrize("name", [name for name, task in TASKS.items() if not isinstance(task, TokenTask)])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cache = {}

    def load(name):
        if name not in cache:
            root: Path = tmp_path_factory.mktemp(name)
            write_task(TASKS[name], root)
            with capture_messages() as messages:
                cache[name] = TASKS[name].load(DataRequest(data_dir=str(root)))
            assert len(messages) == 1 and "official" in messages[0]
        return cache[name]

    return load


@every_task
def test_perfect_logits_score_100(name, data):
    task, examples = TASKS[name], data(name).dev
    for tokenizer in (wordpiece(), spaced()):
        features = task.encode(examples, tokenizer, 48)
        predictions = perfect(task, features)
        settings = task.fit_decoding(predictions, features, examples)
        assert json.loads(json.dumps(settings)) == settings
        scores = task.score(task.decode(predictions, features, settings), examples)
        assert task.primary in scores and set(task.metrics) <= set(scores)
        assert scores == pytest.approx(dict.fromkeys(scores, 100.0))


@every_task
def test_features_are_whole(name, data):
    task, examples = TASKS[name], data(name).train
    features = task.encode(examples, wordpiece(), 48)
    assert len(set(features.ids)) == len(features.ids) == len(features.example_ids) == len(features.labels)
    assert set(features.tokens) == {"input_ids", "token_type_ids"}
    assert all(len(flat) == features.offsets[-1] and flat.dtype == np.int32 for flat in features.tokens.values())
    assert features.lengths.max() <= 48
    assert features.labels.dtype == (np.float32 if task.outputs == 1 else np.int64)
    assert set(task.encode(examples, spaced(), 48).tokens) == {"input_ids"}


@every_task
def test_order_of_predictions_does_not_matter(name, data):
    task, examples = TASKS[name], data(name).dev
    features = task.encode(examples, wordpiece(), 48)
    right = perfect(task, features)
    order = np.random.default_rng(0).permutation(len(right))
    rows = [right.row(place) for place in order]
    logits = np.concatenate(rows) if task.per_token else np.stack(rows)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]) if task.per_token else None
    shuffled = Predictions(ids=[right.ids[place] for place in order], logits=logits, offsets=offsets)
    assert task.decode(shuffled, features, {}) == task.decode(right, features, {})


@every_task
def test_predictions_of_other_rows_are_refused(name, data):
    task, examples = TASKS[name], data(name).dev
    features = task.encode(examples, wordpiece(), 48)
    fewer = task.encode(examples[:-1], wordpiece(), 48)
    with pytest.raises(BertVisionError, match="lack"):
        task.decode(perfect(task, fewer), features, {})
    with pytest.raises(BertVisionError, match="other data"):
        task.decode(perfect(task, features), fewer, {})
    with pytest.raises(BertVisionError, match="no answer"):
        task.outcomes({}, examples)


@every_task
def test_description_restores_the_task(name):
    task = TASKS[name]
    assert task.name == name and task.summary
    assert task.primary == task.metrics[0]
    without_source = replace(task, data_source=None)
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == without_source
    shorter = task_from_dict(json.loads(json.dumps(task.to_dict() | {"max_tokens": 17})))
    assert shorter == replace(without_source, max_tokens=17)
    with pytest.raises(BertVisionError, match="rebuilt from a saved run"):
        shorter.load(DataRequest())


@every_task
def test_answers_can_be_shown(name, data):
    task, examples = TASKS[name], data(name).dev
    features = task.encode(examples, wordpiece(), 48)
    predictions = perfect(task, features)
    answers, shown = task.decode(predictions, features, {}), task.format_answers(predictions, features, {})
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown and set(shown) == set(answers)
    for id, answer in answers.items():
        if task.per_token:
            assert shown[id]["answer"] == answer.text
        elif task.outputs == 1:
            assert shown[id]["score"] == pytest.approx(answer)
        else:
            assert shown[id]["label"] == task.classes[answer]
            assert sum(shown[id]["probabilities"].values()) == pytest.approx(1)
    assert len(task.text_names) == len(examples[0].texts)


@every_task
def test_carve_is_disjoint_complete_and_repeatable(name, data):
    task, examples = TASKS[name], data(name).train
    train, validation = task.split_validation(examples, 0.25, 3)
    assert train and validation
    assert {each.id for each in train} | {each.id for each in validation} == {each.id for each in examples}
    assert not {each.id for each in train} & {each.id for each in validation}
    assert task.split_validation(examples, 0.25, 3) == (train, validation)
    if not task.name.startswith("squad2"):
        assert len(validation) == 10
        assert task.split_validation(examples, 0.25, 4) != (train, validation)


@every_task
def test_sample_keeps_order(name, data):
    task, examples = TASKS[name], data(name).train
    ids = [example.id for example in examples]
    drawn = [example.id for example in task.sample(examples, 13, 0)]
    assert len(drawn) == 13 and drawn == sorted(drawn, key=ids.index)
    assert task.sample(examples, 0, 0) == task.sample(examples, 10**6, 0) == examples
    assert drawn != ids[:13], "the first rows are no sample"


@every_task
def test_loss_falls_towards_the_label(name, data):
    task, examples = TASKS[name], data(name).train[:3]
    features = task.encode(examples, wordpiece(), 128)
    right = perfect(task, features)
    labels = torch.from_numpy(features.labels)
    if task.per_token:
        logits = torch.full((len(right), 128, 2), 50.0)  # padding shouts; the mask must silence it
        mask = torch.arange(128)[None] < torch.from_numpy(features.lengths)[:, None]
        for row in range(len(right)):
            logits[row, : features.lengths[row]] = torch.from_numpy(right.row(row))
    else:
        logits, mask = torch.from_numpy(right.logits), torch.ones(len(right), 1, dtype=torch.bool)
    logits.requires_grad_()
    loss = task.loss(logits, labels, mask)
    assert loss.shape == () and loss < task.loss(-logits, labels, mask) + 1e-6
    loss.backward()
    assert torch.isfinite(logits.grad).all()


@every_task
def test_unlabelled_examples_can_be_encoded(name, data):
    task = TASKS[name]
    blank = [replace(example, label=None) for example in data(name).dev]
    features = task.encode(blank, wordpiece(), 48)
    answers = task.decode(perfect(task, features), features, {})
    assert set(answers) == {example.id for example in blank}
    with pytest.raises(BertVisionError, match="no label"):
        task.outcomes(answers, blank)


@every_task
def test_interval_holds_the_score(name, data):
    task, examples = TASKS[name], data(name).dev
    features = task.encode(examples, wordpiece(), 48)
    outcomes = task.outcomes(task.decode(perfect(task, features), features, {}), examples)
    if task.per_token:
        outcomes[::2, :2] = 0
    else:
        outcomes[::4, 1] = outcomes[1, 1]
    low, high = interval(task, [outcomes], resamples=200)
    assert low <= task.compute_metrics(outcomes)[task.primary] <= high < 100.001
    assert interval(task, [outcomes], resamples=200) == (low, high)


@every_task
def test_the_second_text_of_a_pair_is_known(name, data):
    task, tokenizer = TASKS[name], wordpiece()
    features = task.encode(data(name).dev, tokenizer, 48)
    assert task.example_kind in ("span", "pair", "text") and (task.example_kind == "span") == task.per_token
    assert (features.second_text_starts is not None) == (len(task.text_names) == 2)
    if features.second_text_starts is not None:
        for row, second in enumerate(features.second_text_starts):
            kinds = features.tokens["token_type_ids"][features.offsets[row] : features.offsets[row + 1]]
            assert kinds.tolist() == [0] * second + [1] * (len(kinds) - second) and 0 < second < len(kinds)
