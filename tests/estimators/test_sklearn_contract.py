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

from bertvision import BertVisionError, QuestionAnswerer, TextClassifier, TextRegressor, TokenClassifier
from bertvision.estimators import cached_states

ESTIMATORS = [TextClassifier, TextRegressor, TokenClassifier, QuestionAnswerer]


EXPECTED_FAILURES = {
    "It trains on a matrix of numbers; the estimators take texts.": """
        check_class_weight_classifiers
        check_classifier_data_not_an_array
        check_classifiers_classes
        check_classifiers_train
        check_decision_proba_consistency
        check_dtype_object
        check_estimators_dtypes
        check_estimators_fit_returns_self
        check_estimators_overwrite_params
        check_estimators_partial_fit_n_features
        check_estimators_pickle
        check_fit_check_is_fitted
        check_fit_idempotent
        check_fit_score_takes_y
        check_n_features_in
        check_n_features_in_after_fitting
        check_pipeline_consistency
        check_positive_only_tag_during_fit
        check_readonly_memmap_input
        check_regressor_data_not_an_array
        check_regressors_int
        check_regressors_train
        check_sample_weight_equivalence_on_dense_data
        check_sample_weights_list
        check_sample_weights_not_an_array
        check_sample_weights_not_overwritten
        check_sample_weights_pandas_series
        check_sample_weights_shape
        check_supervised_y_2d
    """,
    "It selects columns of a matrix, but data of estimators that take texts have one dimension.": """
        check_dict_unchanged
        check_dont_overwrite_parameters
        check_f_contiguous_array_estimator
        check_fit2d_1feature
        check_fit2d_1sample
        check_fit2d_predict1d
        check_methods_sample_order_invariance
        check_methods_subset_invariance
        check_regressors_no_decision_function
    """,
    "It expects the messages of scikit-learn's checks of matrices; the estimators say that a text was expected.": """
        check_all_zero_sample_weights_error
        check_classifiers_multilabel_output_format_decision_function
        check_classifiers_multilabel_output_format_predict
        check_classifiers_multilabel_output_format_predict_proba
        check_classifiers_multilabel_representation_invariance
        check_classifiers_one_label
        check_classifiers_one_label_sample_weights
        check_classifiers_regression_target
        check_complex_data
        check_estimator_sparse_array
        check_estimator_sparse_matrix
        check_estimator_sparse_tag
        check_estimators_empty_data_messages
        check_estimators_nan_inf
        check_requires_y_none
    """,
}
"""The checks of `check_estimator` that fail, by reason. All of them train; the other tests here train on texts."""


def test_check_estimator(tiny, tmp_path):
    """`check_estimator` skips all checks of estimators that take texts, so they are run as if these took matrices."""
    expected = {name: reason for reason, names in EXPECTED_FAILURES.items() for name in names.split()}
    failed = set()
    for cls in ESTIMATORS:
        with pytest.warns(SkipTestWarning, match="Can't test estimator"):
            check_estimator(cls())
        if cls is TokenClassifier:
            continue  # its rows are lists of words: a matrix says nothing about it

        def tags(self, cls=cls):
            tags = cls.__sklearn_tags__(self)
            tags.input_tags.two_d_array = True
            return tags

        on_matrices = type(cls.__name__, (cls,), {"__sklearn_tags__": tags, "__init__": cls.__init__})
        estimator = on_matrices(str(tiny), fraction=0, verbose=0, cache_dir=tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(estimator, expected_failed_checks=expected, on_skip=None)
        assert sum(result["status"] == "passed" for result in results) >= 12
        failed |= {result["check_name"] for result in results if result["status"] == "xfail"}
    assert failed == set(expected)


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
    cached_states.CACHE.clear()
    scores = cross_val_score(classifier, texts, labels, cv=3)
    assert cached_states.CACHE.rows_computed == len(set(texts))  # each text once, in all folds together
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
