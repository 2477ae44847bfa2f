"""What all estimators share: settings, training through the pipeline, prediction, saving and loading."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bertvision import devices
from bertvision.encoders import Encoder, EncoderInfo, load_encoder_info
from bertvision.estimators import cached_states, persistence
from bertvision.estimators.cache import cache_directory, mark_used
from bertvision.estimators.history import HistoryRecorder
from bertvision.estimators.leaderboard import leaderboard_rows
from bertvision.estimators.parameters import check_parameters, seed
from bertvision.estimators.persistence import PersistenceMixin
from bertvision.estimators.time_limit import TimeLimitMixin
from bertvision.heads import HeadConfig
from bertvision.inputs import Rows, examples_from_rows, read_items, read_rows, warn_truncated
from bertvision.inputs.tables import as_items, as_table, columns_of_items
from bertvision.pipeline import ExperimentResult, PipelineConfig, load_data, resolve, run_data
from bertvision.pipeline.experiment import DEFAULT_FRACTIONS, Experiment, check, merge
from bertvision.progress import PATIENCE, hidden
from bertvision.runs import Run
from bertvision.stage_view import RunView
from bertvision.tasks import DataSplits, Example, Task
from bertvision.time_limits import Clock, parse_seconds
from bertvision.trained_model import TrainedModel
from bertvision.training import Callback
from bertvision.training.callbacks import check_callbacks
from bertvision.types import Features, Predictions

logger: logging.Logger = logging.getLogger(__name__)

AUTO = "auto"
"""The value of `head` that trains the default heads of the kind of task. Validation chooses among them."""


class BaseTextEstimator(TimeLimitMixin, PersistenceMixin, BaseEstimator, ABC):
    """The common part of `TextClassifier`, `TextRegressor`, `TokenClassifier` and `QuestionAnswerer`.

    Fitted estimators have these attributes:

    - `model_`: the trained model.
    - `leaderboard_`: a DataFrame of all models that were trained: heads, BERT itself, controls and ensembles.
    - `history_`: a list of what was done, after how many seconds, with which validation score.
    """

    kind: ClassVar[str]
    """The kind of task, e.g. "classification"."""

    result_: ExperimentResult

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder = "minilm",
        *,
        fraction: float | None = None,
        time_limit: float | str | None = None,
        memory_limit: int | str | None = None,
        disk_limit: int | str | None = None,
        head: str | HeadConfig = "auto",
        validation_fraction: float = 0.1,
        max_tokens: int | None = None,
        long_texts: str = "truncate",
        controls: bool = True,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str | None = None,
        precision: str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        warm_start: bool = False,
        verbose: int = 1,
    ):
        self.encoder = encoder
        self.fraction = fraction
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.disk_limit = disk_limit
        self.head = head
        self.validation_fraction = validation_fraction
        self.max_tokens = max_tokens
        self.long_texts = long_texts
        self.controls = controls
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.precision = precision
        self.cache_dir = cache_dir
        self.warm_start = warm_start
        self.verbose = verbose

    # Training

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | Sequence[str] | None = None,
        eval_set: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        callbacks: Sequence[Callback] = (),
        warm_start: bool | None = None,
    ) -> Self:
        """Train on texts and labels. With a `time_limit`, everything is done within it.

        Args:
            X: Texts: a list, array or Series of texts or of pairs of texts; or a DataFrame, a `datasets.Dataset` or
                the path of a CSV, TSV, JSONL or Parquet file.
            y: Labels: a list, array or Series; None if X has a column of labels. A list of lists, or an array of 0
                and 1 with a column for each label, means any number of labels per row (`TextClassifier`).
            text: The column of the texts, if X is a table. By default it is inferred from the names of the columns.
            text_pair: The column of the second texts, for pairs.
            label: The column of the labels; or a list of columns of 0 and 1, one for each of several labels.
            eval_set: (X, y), or a table, for validation. By default a part of X is used.
            groups: A group for each row, or a column: rows of the same group are not split into training and
                validation.
            sample_weight: A weight for each row, or a column.
            callbacks: Objects with the methods of `bertvision.Callback`.
            warm_start: Whether to continue with the encoder and the head of the previous call, as `partial_fit` does.
                None: the parameter `warm_start` of the estimator.
        """
        warm_start = self.warm_start if warm_start is None else warm_start
        self._check(callbacks, warm_start=warm_start)
        clock = None if self.time_limit is None else Clock(parse_seconds(self.time_limit))
        rows = self._read_rows(
            X,
            y,
            text=text,
            text_pair=text_pair,
            label=self._label_format(label),
            groups=groups,
            sample_weight=sample_weight,
            labelled=True,
        )
        self._check_labels(rows)
        evaluation = None if eval_set is None else self._read_eval_set(eval_set, rows, label)
        start = self._last_head() if warm_start else None
        return self._fit(rows, evaluation, callbacks, start, clock)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        groups: Any = None,
        sample_weight: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train the head further on new rows. The encoder stays as it is. A label that is not known is an error.

        The arguments are those of `fit`. The columns of a table are those of the previous call, if it has such.
        """
        self._check(callbacks)
        start = self._last_head()
        names: dict[str, Any] = {"text": text, "text_pair": text_pair, "label": label}
        if start is not None:
            X = list(X) if isinstance(X, Iterator) else X
            names = self._known_columns(X, y) | {key: name for key, name in names.items() if name is not None}
        rows = self._read_rows(
            X,
            y,
            groups=groups,
            sample_weight=sample_weight,
            labelled=True,
            **names | {"label": self._label_format(names.get("label"))},
        )
        return self._fit(rows, None, callbacks, start)

    def _check(self, callbacks: Sequence[Callback], **more: Any) -> None:
        """Raise an error if a parameter or a callback is of a wrong type, also where the result is in the cache."""
        check_parameters(self.get_params(deep=False) | more)
        check_callbacks(callbacks)

    def _label_format(self, label: str | Sequence[str] | None) -> Any:
        """Return the column of the labels, with the separator of several labels in a string if there is one."""
        return label

    def _check_labels(self, rows: Rows) -> None:
        """Raise an error if the labels of the training rows seem to be something else than what they are read as."""

    def _read_eval_set(self, eval_set: Any, rows: Rows, label: str | Sequence[str] | None) -> Rows:
        """Read the validation rows. Tables have the columns of the training rows."""
        if isinstance(eval_set, tuple) and len(eval_set) == 2:
            texts, labels = eval_set
            return self._read_rows(texts, labels, label=self._label_format(None), labelled=True)
        if isinstance(eval_set, list) and len(eval_set) == 1 and isinstance(eval_set[0], tuple):
            return self._read_eval_set(eval_set[0], rows, label)  # as in XGBoost and LightGBM
        names = dict(zip(("text", "text_pair"), rows.text_names, strict=False))
        return self._read_rows(eval_set, None, label=self._label_format(label or rows.label), labelled=True, **names)

    def _fit(
        self,
        rows: Rows,
        evaluation: Rows | None,
        callbacks: Sequence[Callback],
        start: Run | None,
        clock: Clock | None = None,
    ) -> Self:
        """Train through the pipeline, or within the time of a clock, and load the best model."""
        if start is not None:
            self._check_labels_are_known(rows)
        task = self._make_task(rows, start)
        rows = self._weighted(rows)
        splits = DataSplits(
            train=_examples(rows, task),
            dev=[],
            validation=None if evaluation is None else _examples(evaluation, task),
            source=rows.source or "memory",
        )
        self._timed_run = None
        if clock is not None:
            config, encoder = self._configure(task, None)
            self._run_within(clock, config, splits, encoder, callbacks)
        else:
            history = HistoryRecorder()
            view = RunView(silent=not self.verbose, lines=self.verbose > 1, patience=PATIENCE)
            with self._context(), view:
                result, info = self._run(task, splits, [history, *callbacks], start)
                model = cached_states.load_model(result.best, info)
            self._set_result(result, model)
            history.add("finished", validation_score=result.best.validation_score[0])
            self.history_ = history.entries
        # A result from the cache may have been trained on a table with other names of columns.
        self._columns = (rows.text_names, rows.label)
        persistence.rename_columns(self.model_, self._columns)
        self._set_fitted_attributes(rows, start)
        return self

    def _set_result(self, result: ExperimentResult, model: TrainedModel) -> None:
        mark_used(result.best.directory.parent.parent)
        self.result_ = result
        self.run_ = result.best
        self.model_ = model

    def _run(
        self, task: Task, splits: DataSplits, callbacks: Sequence[Callback], start: Run | None
    ) -> tuple[ExperimentResult, EncoderInfo]:
        """Run the pipeline on rows in memory; return its result, and the tokenizer of the encoder."""
        config, encoder = self._configure(task, start)
        data = load_data(config, splits)
        given = encoder if isinstance(encoder, Encoder) else None
        data = replace(data, callbacks=callbacks, encoder=given, frozen_cache=cached_states.CACHE)
        self._validation_texts = [example.texts for example in data.validation.examples[:200]]
        return run_data(data, cache_directory(self.cache_dir), start=start), config.encoder

    def _configure(self, task: Task, start: Run | None) -> tuple[PipelineConfig, str | Encoder]:
        """Return the configuration of the pipeline, and the encoder that training starts from."""
        encoder = os.fspath(self.encoder) if isinstance(self.encoder, os.PathLike) else self.encoder
        fraction = DEFAULT_FRACTIONS[task.example_kind][0] if self.fraction is None else float(self.fraction)
        settings: dict[str, Any] = {"fractions": [fraction]}
        if start is not None:  # the encoder is the fine-tuned one, and is not changed
            encoder, settings = start.encoder_source, {"fractions": [0.0]}
        experiment = merge(
            Experiment(),
            {
                "task": task.name,
                "encoder": encoder if isinstance(encoder, str) else encoder.name,
                "heads": self._heads(start),
                "controls": self.controls,
                "metric": self._metric(),
                "seed": seed(self.random_state),
                "precision": self.precision,
                "data": {
                    "validation_fraction": float(self.validation_fraction),
                    "max_tokens": int(self.max_tokens or 0),
                    "long_texts": self.long_texts,
                },
                **settings,
            },
        )
        experiment = check(merge(experiment, _nested(self.settings or {})))
        is_name = isinstance(encoder, str) and not os.path.exists(encoder)
        info = cached_states.encoder_info(encoder) if is_name else load_encoder_info(encoder)
        return resolve(experiment, task, info), encoder

    def _heads(self, start: Run | None) -> list[str]:
        """Return the heads to train. No heads: those that are the default of the kind of task."""
        if start is not None:
            return [start.name]
        return [] if self.head == AUTO else [str(self.head)]

    def _last_head(self) -> Run | None:
        """Return the head that training continues with; of an ensemble, the best one on validation."""
        run = getattr(self, "run_", None)
        members = [] if run is None else run.members()
        return max(members, key=lambda member: member.validation_score) if members else run

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Use the device of the estimator, and show progress as `verbose` says."""
        with ExitStack() as stack:
            if self.device is not None:
                stack.enter_context(devices.use_device(self.device))
            if not self.verbose:
                stack.enter_context(hidden())
            yield

    @abstractmethod
    def _make_task(self, rows: Rows, start: Run | None) -> Task:
        """Return the task that the rows describe. `start` is the run that training continues with."""

    def _metric(self) -> str:
        """Return the metric by which epochs and heads are chosen. Empty: the primary metric of the task."""
        return ""

    def _read_rows(self, X: Any, y: Any, **options: Any) -> Rows:
        """Read and check rows. The options are those of `read_rows`."""
        return read_rows(X, y, **options)

    def _check_labels_are_known(self, rows: Rows) -> None:
        """Raise an error if rows have labels that the fitted estimator does not know."""

    def _weighted(self, rows: Rows) -> Rows:
        """Return the rows with the weights of their classes."""
        return rows

    def _set_fitted_attributes(self, rows: Rows, start: Run | None) -> None:
        """Set further attributes that end in an underscore. `start` is the run that training continued with."""

    # Results

    @property
    def leaderboard_(self) -> Any:
        """A DataFrame of all models that were trained, the best first. Scores are those of the validation rows.

        `low` and `high` are a 95 % bootstrap interval of the score. `chosen` marks the model that predicts.
        """
        check_is_fitted(self, "model_")
        import pandas

        table = pandas.DataFrame(self._leaderboard_rows())
        return table.sort_values("score", ascending=False, kind="stable").reset_index(drop=True)

    def _leaderboard_rows(self) -> list[dict[str, Any]]:
        return leaderboard_rows(self.result_) if hasattr(self, "result_") else self._saved_leaderboard

    # Prediction

    def _predict(self, features: Features) -> Predictions:
        """Return the logits of the model for all rows."""
        with self._context():
            return cached_states.logits(self.model_, features)

    def _logits(self, X: Any) -> np.ndarray:
        """Return the logits of the model for the rows of X, in their order. (N, C)"""
        items = self._items(X)
        if not items:
            return np.empty((0, self.model_.task.outputs), dtype=np.float32)
        features = self.model_.encode(items)
        warn_truncated({"given": features}, self.model_.max_tokens)
        return self._predict(features).logits

    def _items(self, X: Any) -> list[Any]:
        check_is_fitted(self, "model_")
        return read_items(X, self.model_.task.text_names)

    def _read_labelled(self, X: Any, y: Any, sample_weight: Any = None) -> Rows:
        """Read rows to score. The columns of tables are those of `fit`, if they have such."""
        check_is_fitted(self, "model_")
        X = list(X) if isinstance(X, Iterator) else X
        names = self._known_columns(X, y)
        return self._read_rows(
            X,
            y,
            sample_weight=sample_weight,
            labelled=True,
            **names | {"label": self._label_format(names.get("label"))},
        )

    def _known_columns(self, X: Any, y: Any) -> dict[str, Any]:
        """Return the columns of `fit` that a table has, as arguments of `read_rows`."""
        table = as_table(X) or columns_of_items(as_items(X))
        task = self.model_.task
        texts, label = getattr(self, "_columns", (task.text_names, getattr(task, "label", "")))
        names: dict[str, Any] = dict(zip(("text", "text_pair"), texts, strict=False))
        if y is None:
            names["label"] = label
        names = {key: name for key, name in names.items() if table.named and name in table.names}
        label_columns = getattr(task, "label_columns", ())
        if y is None and label_columns and table.named and set(label_columns) <= set(table.names):
            names["label"] = label_columns
        return names

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.target_tags.required = True
        return tags


def _examples(rows: Rows, task: Task) -> list[Example]:
    """Convert rows to examples with weights."""
    examples = examples_from_rows(rows, task)
    if rows.weights is None:
        return examples
    return [replace(example, weight=float(w)) for example, w in zip(examples, rows.weights, strict=True)]


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn "finetune.schedule" into nested tables."""
    nested: dict[str, Any] = {}
    for path, value in settings.items():
        *tables, name = path.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return nested
