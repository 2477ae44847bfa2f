"""Fitting within a time limit, and going on later."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from bertvision.encoders import Encoder
from bertvision.errors import BertVisionError
from bertvision.estimators import cached_states, persistence
from bertvision.estimators.cache import cache_directory
from bertvision.heads import HeadConfig
from bertvision.pipeline import ExperimentResult, PipelineConfig
from bertvision.tasks import DataSplits
from bertvision.time_limits import Clock, LiveView, RunRequest, TimedRun, parse_bytes, parse_seconds
from bertvision.trained_model import TrainedModel
from bertvision.training import Callback


class TimeLimitMixin:
    """`fit` with a `time_limit`, and `fit_more`."""

    head: str | HeadConfig
    memory_limit: int | str | None
    disk_limit: int | str | None
    cache_dir: str | os.PathLike[str] | None
    verbose: int
    history_: list[dict[str, Any]]
    model_: TrainedModel
    _columns: tuple[tuple[str, ...], str]
    _timed_run: TimedRun | None
    _validation_texts: list[tuple[str, ...]]

    def fit_more(self, seconds: float | str) -> Self:
        """Go on training for this long, on the rows of the last call of `fit`, which had a time limit.

        The encoder is fine-tuned further, and the heads learn further. The model is replaced only by a better one.

        Args:
            seconds: How long, in seconds or as a text such as "5m".
        """
        clock = Clock(parse_seconds(seconds))
        run = getattr(self, "_timed_run", None)
        if run is None:
            raise BertVisionError(
                "fit_more goes on after a call of `fit` with a time_limit in the same process, which holds the rows. "
                "Call fit first."
            )
        with self._context():
            self._finish_timed(run, run.more(clock), len(run.history))
        persistence.rename_columns(self.model_, self._columns)
        return self

    def _run_within(
        self,
        clock: Clock,
        config: PipelineConfig,
        splits: DataSplits,
        encoder: str | Encoder,
        callbacks: Sequence[Callback],
    ) -> None:
        """Train within the time of a clock, and load the best model."""
        kind = config.task.example_kind
        request = RunRequest(
            config=config,
            splits=splits,
            root=cache_directory(self.cache_dir),
            clock=clock,
            memory_limit=0 if self.memory_limit is None else parse_bytes(self.memory_limit, "memory_limit"),
            disk_limit=0 if self.disk_limit is None else parse_bytes(self.disk_limit, "disk_limit"),
            callbacks=callbacks,
            encoder=encoder if isinstance(encoder, Encoder) else None,
            frozen_cache=cached_states.CACHE,
            head=None if str(self.head) in ("auto", "default") else HeadConfig.parse(str(self.head), kind),
        )
        run = TimedRun(request, LiveView(clock, silent=not self.verbose))
        with self._context():
            self._finish_timed(run, run.run(), 0)
        self._timed_run = run

    def _finish_timed(self, run: TimedRun, result: ExperimentResult, entries: int) -> None:
        assert run.best.candidate is not None
        checkpoint = run.best.candidate.checkpoint
        model = cached_states.load_model(result.best, run.request.config.encoder, encoder=checkpoint.encoder)
        self._set_result(result, model)
        self._validation_texts = [example.texts for example in run.source.validation[:200]]
        self.history_ = [entry.to_dict() for entry in run.history]

    @abstractmethod
    def _set_result(self, result: ExperimentResult, model: TrainedModel) -> None:
        """Set the attributes of a result."""

    @abstractmethod
    def _context(self) -> AbstractContextManager[None]:
        """Use the device of the estimator, and show progress as `verbose` says."""
