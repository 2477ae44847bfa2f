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


def numbers_as_texts(X):
    """Return a text for each row of numbers. Anything that is not a matrix of numbers is returned as it is."""
    X = np.asarray(X)
    if X.ndim != 2 or X.dtype.kind not in "iuf":
        return X
    return [" ".join(f"{'abcdefgh'[i % 8]}{value:.1f}" for i, value in enumerate(row)) for row in X]


class NumbersClassifier(TextClassifier):
    """A classifier that scikit-learn's checks, which generate matrices of numbers, can be run on."""

    def fit(self, X, y=None, sample_weight=None):
        return super().fit(numbers_as_texts(X), y, sample_weight=sample_weight)

    def _items(self, X):
        return super()._items(numbers_as_texts(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        tags.no_validation = True  # texts have no number of features
        tags.classifier_tags.poor_score = True  # hash-like texts of a random encoder
        return tags


class NumbersRegressor(TextRegressor):
    """A regressor that scikit-learn's checks can be run on."""

    def fit(self, X, y=None, sample_weight=None):
        return super().fit(numbers_as_texts(X), y, sample_weight=sample_weight)

    _items = NumbersClassifier._items

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        tags.no_validation = True
        tags.regressor_tags.poor_score = True
        return tags


EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "the validation rows and the batches are drawn from other rows",
    "check_methods_subset_invariance": "float32 products of another batch size differ in the last digits",
    "check_methods_sample_order_invariance": "float32 products of another batch differ in the last digits",
    "check_fit2d_1sample": "one row cannot be split into training and validation",
    "check_classifiers_one_label": "a classifier needs two classes, which the message says",
    "check_classifiers_one_label_sample_weights": "a classifier needs two classes",
    "check_class_weight_classifiers": "asks for a good score on numbers that are written as texts",
    "check_estimators_partial_fit_n_features": "texts have no number of features",
    "check_n_features_in_after_fitting": "texts have no number of features",
    "check_estimator_sparse_array": "a sparse matrix holds no texts",
    "check_estimator_sparse_matrix": "a sparse matrix holds no texts",
    "check_estimator_sparse_tag": "a sparse matrix holds no texts",
    "check_f_contiguous_array_estimator": "numbers outside of the generated range",
    "check_do_not_raise_errors_in_init_or_set_params": "the subclasses here have the parameters of their parent",
}


@pytest.mark.slow
@pytest.mark.parametrize("cls", [NumbersClassifier, NumbersRegressor])
def test_the_checks_of_scikit_learn_pass_on_numbers_written_as_texts(cls, fast):
    results = check_estimator(cls(**fast), expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None)
    failed = {result["check_name"]: str(result["exception"]) for result in results if result["status"] == "failed"}
    assert failed == {} and sum(result["status"] == "passed" for result in results) >= 30


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
