"""The estimators keep scikit-learn's contract."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from bertvision import BertVisionError, QuestionAnswerer, TextClassifier, TextRegressor

ESTIMATORS = [TextClassifier, TextRegressor, QuestionAnswerer]


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_scikit_learn_skips_its_checks_of_matrices(cls):
    with pytest.warns(SkipTestWarning, match="Can't test estimator"):
        check_estimator(cls())


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_parameters_are_stored_as_they_are(cls):
    settings = {"train.epochs": 1}
    estimator = cls("bert-base", fraction=0.5, head="mean", settings=settings, random_state=3)
    parameters = estimator.get_params()
    assert parameters["settings"] is settings and parameters["head"] == "mean" and parameters["random_state"] == 3
    copy = clone(estimator.set_params(fraction=0.25))
    assert copy is not estimator and copy.get_params() == estimator.get_params() and copy.fraction == 0.25
    assert is_classifier(estimator) == (cls is TextClassifier) and is_regressor(estimator) == (cls is TextRegressor)
    assert repr(cls(fraction=0.5)) == f"{cls.__name__}(fraction=0.5)"


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_unfitted_estimators_say_so(cls, tmp_path):
    with pytest.raises(NotFittedError, match=cls.__name__):
        cls().predict([("a", "b")])
    for method in ("save_pretrained", "push_to_hub"):
        with pytest.raises(NotFittedError):
            getattr(cls(), method)(str(tmp_path / "model"))


def test_cross_validation_and_grid_search(fast, texts, labels):
    classifier = TextClassifier(**fast)
    scores = cross_val_score(classifier, texts, labels, cv=3)
    assert scores.shape == (3,) and ((scores >= 0) & (scores <= 1)).all()
    probabilities = cross_val_predict(classifier, np.array(texts), np.array(labels), cv=2, method="predict_proba")
    assert probabilities.shape == (48, 2) and np.allclose(probabilities.sum(axis=1), 1)
    search = GridSearchCV(classifier, {"fraction": [0, 0.5], "head": ["mean", "bert-head"]}, cv=2).fit(texts, labels)
    assert len(search.cv_results_["params"]) == 4 and set(search.best_params_) == {"fraction", "head"}
    assert set(search.predict(texts[:3])) <= {"pos", "neg"}


def test_pipelines_and_calibration(fast, texts, labels):
    lower = FunctionTransformer(lambda rows: [text.lower() for text in rows])
    pipeline = make_pipeline(lower, TextClassifier(**fast)).fit([text.upper() for text in texts], labels)
    expected = TextClassifier(**fast).fit(texts, labels)
    assert np.array_equal(pipeline.predict_proba(texts[:6]), expected.predict_proba(texts[:6]))
    calibrated = CalibratedClassifierCV(TextClassifier(**fast), cv=2).fit(np.array(texts), np.array(labels))
    assert np.allclose(calibrated.predict_proba(np.array(texts[:5])).sum(axis=1), 1)


def test_processes_of_joblib_give_the_same_scores(fast, texts, labels):
    classifier = TextClassifier(**fast)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operating system's fork
        parallel = cross_val_score(classifier, texts, labels, cv=2, n_jobs=2)
    assert np.array_equal(parallel, cross_val_score(classifier, texts, labels, cv=2))


def test_pickles_predict_the_same(fast, texts, labels):
    classifier = TextClassifier(**fast).fit(texts, labels)
    copy = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(copy.predict_proba(texts), classifier.predict_proba(texts))
    assert copy.leaderboard_.equals(classifier.leaderboard_) and copy.history_ == classifier.history_
    assert pickle.loads(pickle.dumps(TextClassifier(**fast))).get_params() == TextClassifier(**fast).get_params()


def test_errors_of_users_are_value_errors(fast):
    with pytest.raises(ValueError, match="Expected a list"):
        TextClassifier(**fast).fit([], [])
    assert issubclass(BertVisionError, ValueError)
