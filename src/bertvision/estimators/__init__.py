"""Estimators: fine-tune an encoder for a fraction of an epoch and train a head, with scikit-learn's interface."""

from bertvision.estimators.classification import TextClassifier
from bertvision.estimators.question_answering import QuestionAnswerer
from bertvision.estimators.regression import TextRegressor
from bertvision.estimators.token_classification import TokenClassifier

__all__ = ["QuestionAnswerer", "TextClassifier", "TextRegressor", "TokenClassifier"]
