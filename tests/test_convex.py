"""Heads that are fitted to their optimum, against scikit-learn, and through everything that heads go through."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn import functional

import bertvision
from bertvision import Encoder, TextClassifier, TextRegressor, convex, extract, fit_head, pipeline, trained_model
from bertvision.convex import LinearMap, PooledRows, fit_linear, solve_logistic, solve_ridge
from bertvision.heads import build_head
from bertvision.lab import search, study
from bertvision.lab.studies import StudyOptions
from bertvision.pipeline.experiment import make
from bertvision.serving.onnx_export import export_onnx
from bertvision.types import HeadShape

CONVEX = ["ridge", "logistic"]


def loss(logits, labels, mask, weights=None):
    """The loss of a task with classes or scores."""
    if labels.is_floating_point():
        rows = (logits[:, 0] - labels).square()
    else:
        rows = functional.cross_entropy(logits, labels, reduction="none")
    return rows.mean() if weights is None else (rows * weights).sum() / weights.sum()


def rows(count: int, features: int, classes: int = 3, seed: int = 0, weighted: bool = False) -> PooledRows:
    """Rows whose classes a linear map predicts, mostly."""
    torch.manual_seed(seed)
    x = torch.randn(count, features) * torch.linspace(0.1, 3, features) + 1
    truth = torch.randn(features, classes, generator=torch.Generator().manual_seed(99))
    labels = (x @ truth + torch.randn(count, classes) * 5).argmax(dim=1)
    return PooledRows(features=x, labels=labels, weights=torch.rand(count) + 0.5 if weighted else None)


def zero(features: int, classes: int = 3) -> LinearMap:
    """What regularization pulls towards."""
    return LinearMap(weight=torch.zeros(features, classes), bias=torch.zeros(classes))


@pytest.mark.parametrize("features", [8, 90])  # fewer than rows, and more
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_agrees_with_scikit_learn(features, weighted):
    train = rows(60, features, weighted=weighted)
    (found,) = solve_ridge(train, zero(features), loss, [0.1])
    weights = train.relative_weights.numpy()
    x = train.features.numpy()
    if len(x) <= features:
        scale = np.mean(weights * (x**2).sum(axis=1))
    else:
        scale = np.mean((weights[:, None] * x**2).sum(axis=0))
    # The intercept is the mean of the targets: features are standardized before.
    targets = functional.one_hot(train.labels).float().numpy()
    expected = Ridge(alpha=0.1 * scale, fit_intercept=False, solver="cholesky")
    expected.fit(x, targets - np.average(targets, axis=0, weights=weights), sample_weight=weights)
    np.testing.assert_allclose(found.weight.numpy(), expected.coef_.T, atol=2e-4)


@pytest.mark.parametrize("features", [8, 90])
@pytest.mark.parametrize("weighted", [False, True])
def test_logistic_agrees_with_scikit_learn(features, weighted, monkeypatch):
    monkeypatch.setattr(convex, "ITERATIONS", 200)
    train = rows(60, features, weighted=weighted)
    found = list(solve_logistic(train, zero(features), loss, [0.1, 0.03]))[-1]
    model = LogisticRegression(C=1 / (0.03 * 60), tol=1e-8, max_iter=5000)
    model.fit(train.features.numpy(), train.labels.numpy(), sample_weight=train.relative_weights.numpy())
    expected = model.predict_proba(train.features.numpy())
    np.testing.assert_allclose(found(train.features).softmax(dim=1).numpy(), expected, atol=1e-2)


@pytest.mark.parametrize("solver", CONVEX)
def test_strength_is_chosen_on_the_rows_that_are_held_out(solver):
    train, held_out, new = rows(80, 60), rows(200, 60, seed=1), rows(500, 60, seed=2)
    chosen = fit_linear(train, held_out, zero(60), solver, loss)
    assert chosen.strength in convex.STRENGTHS[solver]
    fits = [convex._fit_path(train, held_out, zero(60), solver, loss, [s]) for s in (convex.STRENGTHS[solver][-1], 1e4)]
    assert float(new.loss(loss, chosen(new.features))) < min(float(new.loss(loss, f(new.features))) for f in fits)
    alone = fit_linear(train, None, zero(60), solver, loss)  # chosen on a fifth of the training rows
    assert float((alone(new.features).argmax(dim=1) == new.labels).float().mean()) > 0.5


@pytest.mark.parametrize("solver", CONVEX)
def test_fit_is_deterministic_and_ignores_constant_features(solver):
    train, held_out = rows(80, 6), rows(60, 6, seed=1)
    constant = [
        PooledRows(features=functional.pad(r.features, (0, 2), value=7.0), labels=r.labels) for r in (train, held_out)
    ]
    plain = fit_linear(train, held_out, zero(6), solver, loss)
    one, other = (fit_linear(constant[0], constant[1], zero(8), solver, loss) for _ in range(2))
    assert torch.equal(one.weight, other.weight)
    torch.testing.assert_close(one(constant[1].features), plain(held_out.features), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("solver", CONVEX)
def test_rows_that_are_all_alike_can_be_fitted(solver):
    train = PooledRows(features=torch.ones(2, 8), labels=torch.tensor([0, 1]))
    fitted = fit_linear(train, train, zero(8, 2), solver, loss)
    assert fitted.weight.isfinite().all() and fitted(train.features).isfinite().all()
    one = PooledRows(features=torch.randn(1, 8), labels=torch.tensor([1]))
    assert fit_linear(one, train, zero(8, 2), solver, loss).weight.isfinite().all()


@pytest.mark.parametrize("solver", CONVEX)
def test_weight_2_counts_as_two_rows(solver):
    train, held_out = rows(40, 6), rows(60, 6, seed=1)
    twice = PooledRows(features=train.features.repeat(2, 1)[:50], labels=train.labels.repeat(2)[:50])
    weights = torch.cat([torch.full((10,), 2.0), torch.ones(30)])
    weighted = PooledRows(features=train.features, labels=train.labels, weights=weights)
    found = [convex._fit_path(each, held_out, zero(6), solver, loss, [0.1]) for each in (twice, weighted)]
    torch.testing.assert_close(found[0].weight, found[1].weight, atol=1e-2, rtol=1e-2)


def test_several_labels_of_a_row():
    train = rows(80, 6)
    labels = torch.stack([train.labels == 0, train.labels > 0], dim=1).float()
    train = PooledRows(features=train.features, labels=labels)

    def binary(logits, labels, mask):
        return functional.binary_cross_entropy_with_logits(logits, labels)

    for solver in CONVEX:
        logits = fit_linear(train, train, zero(6, 2), solver, binary)(train.features)
        assert ((logits > 0) == (labels > 0)).float().mean() > 0.8


@pytest.mark.parametrize("name", CONVEX)
def test_spans_are_trained_by_gradient_descent(name):
    shape = HeadShape(num_layers=2, max_tokens=8, hidden_size=4, num_outputs=2, per_token=True)
    assert not convex.is_convex(build_head(name, shape))


SETTINGS = {"fractions": [0.0], "max_tokens": 32, "precision": "float32"}


@pytest.fixture(scope="module")
def result(tiny, reviews, tmp_path_factory):
    """An experiment with both heads and two learning rates."""
    root = tmp_path_factory.mktemp("convex")
    settings = SETTINGS | {"train": {"epochs": 2.0}, "extra_learning_rates": [1e-2]}
    return bertvision.run(root=root, train_file=str(reviews), encoder=str(tiny), heads=CONVEX, **settings)


def test_runs_have_heads_and_controls(result, reviews, tiny):
    runs = {run.name: run for run in result.runs}
    assert {"ridge", "logistic", "ridge:layers=last", "logistic:layers=last"} <= set(runs)
    for name in CONVEX:
        assert runs[name].metrics.strength in convex.STRENGTHS[name]
        assert runs[name].metrics.learning_rate is None
        assert runs[name].validation_score[0] > 80
    again = bertvision.run(
        root=result.file.parents[3] / "again",
        train_file=str(reviews),
        encoder=str(tiny),
        heads=CONVEX,
        controls=False,
        **SETTINGS,
    )
    for run in again.runs[1:3]:
        assert np.array_equal(run.predictions().logits, runs[run.name].predictions().logits)


@pytest.mark.parametrize("name", CONVEX)
def test_saved_exported_and_loaded(result, name, tmp_path):
    texts = ["the film was good", "the plot was awful music scene poor", "the story was great fine"]
    run = next(run for run in result.runs if run.name == name)
    model = trained_model.load(run)
    expected = model.predict(texts)
    export_onnx([model], tmp_path / "onnx", [pipeline.dev_examples(pipeline.experiment_of(run))])
    exported = trained_model.load(tmp_path / "onnx").predict(texts)
    for one, other in zip(expected, exported, strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-4)


def test_pairs_are_read_in_both_encodings(tiny, tmp_path):
    draw = np.random.default_rng(0)
    words = ["good", "bad", "film", "plot", "rome", "paris", "king", "river"]
    firsts, seconds = ([" ".join(draw.choice(words, 3)) for _ in range(90)] for _ in range(2))
    seconds[::2] = firsts[::2]
    scores = [float(len(set(a.split()) & set(b.split()))) for a, b in zip(firsts, seconds, strict=True)]
    regressor = TextRegressor(
        str(tiny), fraction=0, head="ridge:encoding=both,token_pooling=mean+compare", cache_dir=tmp_path, verbose=0
    ).fit(list(zip(firsts, seconds, strict=True)), scores)
    assert np.corrcoef(regressor.predict(list(zip(firsts, seconds, strict=True))), scores)[0, 1] > 0.8


def test_class_weights_and_training_again(tiny, tmp_path):
    texts = ["a good film", "a bad film", "fine acting", "poor acting", "a great plot", "an awful plot"] * 10
    labels = ["good", "bad"] * 30
    options = {"fraction": 0, "head": "ridge", "controls": False, "cache_dir": tmp_path, "verbose": 0}
    unsure = ["the king wrote a story"] * 20
    for heavy in ("good", "bad"):
        weights = {"good": 1.0, "bad": 1.0, heavy: 20.0}
        skewed = TextClassifier(str(tiny), class_weight=weights, **options)
        assert skewed.fit(texts + unsure, labels + ["good", "bad"] * 10).predict(unsure[:1])[0] == heavy
    plain = TextClassifier(str(tiny), **options).fit(texts, labels)
    before = plain.predict_proba(texts)
    plain.partial_fit(texts[:20], labels[:20])
    assert (plain.predict_proba(texts).argmax(axis=1) == before.argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("validation_fraction", [0.2, 0])
def test_fit_head_on_pooled_and_whole_states(tiny, name, validation_fraction):
    texts = ["a good film", "a bad film", "fine acting", "poor acting", "a great plot", "an awful plot"] * 6
    labels = ["good", "bad"] * 18
    encoder = Encoder.from_pretrained(str(tiny))
    for pooling in (None, "mean"):
        states = extract(encoder, texts, pooling=pooling)
        fitted = fit_head(states, labels, head=name, validation_fraction=validation_fraction)
        assert fitted.score(states, labels) > 0.9


def test_searches_and_studies_take_them(reviews, tiny, tmp_path):
    experiment = make(train_file=str(reviews), encoder=str(tiny), heads=CONVEX, controls=False, **SETTINGS)
    space = ['token_pooling=["mean","max"]']
    found = search(experiment, trials=4, trials_per_batch=2, space=space, root=tmp_path)
    (run,) = found.runs
    assert found.validation == run.validation_score[0] and run.metrics.strength
    result = study(experiment, "head-epochs", options=StudyOptions(seeds=[0], epochs=3), root=tmp_path)
    assert {row["epoch"] for row in result.rows} == {1}
