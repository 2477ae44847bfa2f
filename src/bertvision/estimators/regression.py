"""Regression of texts and pairs of texts."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from bertvision.estimators.base import BaseTextEstimator
from bertvision.inputs import Rows, examples_from_rows, task_from_rows
from bertvision.runs import Run
from bertvision.tasks import Task, TextTask


class TextRegressor(RegressorMixin, BaseTextEstimator):
    """Predict a number for each text or pair of texts.

    The arguments are those of `TextClassifier`, without `class_weight`.

    >>> from bertvision import TextRegressor
    >>> texts = ["a fine film", "a dull film", "fine acting", "dull acting"] * 10
    >>> regressor = TextRegressor(fraction=0, verbose=0).fit(texts, [1.0, 0.0] * 20)
    >>> regressor.predict(["a fine plot", "a dull plot"]).shape
    (2,)
    """

    kind: ClassVar[str] = "regression"

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted number of each row. (N,)"""
        return self._task.scores(self._logits(X)).astype(np.float64)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination, R². The numbers are y, or the column of labels that X has."""
        rows = self._read_labelled(X, y, sample_weight)
        return float(r2_score(rows.labels, self.predict(rows.texts), sample_weight=rows.weights))

    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        task = task_from_rows(rows, kind=self.kind, name="text-regression")
        if start is None:
            numbers = np.array([example.label for example in examples_from_rows(rows, task)], dtype=np.float64)
            mean, scale = float(numbers.mean()), float(numbers.std()) or 1.0
        else:
            mean, scale = self._task.label_mean, self._task.label_scale
        return replace(task, keep_groups=True, label_mean=mean, label_scale=scale)

    @property
    def _task(self) -> TextTask:
        check_is_fitted(self, "model_")
        assert isinstance(self.model_.task, TextTask)
        return self.model_.task
