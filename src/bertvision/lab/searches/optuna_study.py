"""The Optuna study of a search, which several processes and machines may share.

Trials are drawn in batches. Pruning thresholds are computed when a batch is drawn and saved with each trial. A search
therefore draws the same settings and gives the same result wherever its trials are trained, sequentially or in
parallel, and however often it is interrupted.
"""

import logging
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import NamedTuple

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalRedisBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from bertvision.errors import BertVisionError
from bertvision.lab.searches.space import TrialSettings
from bertvision.lab.searches.trials import TrialOutcome

logger: logging.Logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0  # between two heartbeats of a running trial
DEAD_AFTER_SECONDS = 90.0  # without a heartbeat, after which the process of a trial is considered dead
POLL_SECONDS = 1.0
STARTUP_TRIALS = 5  # finished trials before any is pruned
# User attributes of saved trials. The names are part of the format of existing studies.
THRESHOLDS, SETTINGS, VALIDATION_SCORE, HEARTBEAT, FAILURE = "bars", "setting", "grade", "alive", "failed"

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(url: str, name: str) -> optuna.Study:
    """Open or create the study `name` in the storage at `url`."""
    try:
        storage: BaseStorage = JournalStorage(JournalRedisBackend(url)) if url.startswith("redis") else RDBStorage(url)
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    except (SQLAlchemyError, ImportError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        without_password = re.sub(r":[^:@/]+@", ":***@", url)
        raise BertVisionError(
            f"Cannot use {without_password!r} as storage of a search: {reason}. A URL such as sqlite:///search.db or "
            "postgresql://user:password@host/name works, if the database answers and its driver is installed."
        ) from error


def counts_towards_budget(trial: FrozenTrial) -> bool:
    """Whether a trial is part of the budget. Trials of dead processes and surplus trials are not."""
    return trial.state != TrialState.FAIL or FAILURE in trial.user_attrs


class DrawnTrial(NamedTuple):
    """A trial to train."""

    trial: Trial
    settings: TrialSettings
    pruning_thresholds: list[float]
    """The trial is pruned below these scores, which were known when it was first drawn."""


def draw_trials(
    study: optuna.Study, suggest: Callable[[Trial], TrialSettings], *, budget: int, batch_size: int, seed: int
) -> list[DrawnTrial]:
    """Draw up to `batch_size` trials that no other process has; fewer if the budget ends.

    Interrupted trials come first, and new trials only complete the batch that those were drawn in. The next batch is
    therefore drawn when all earlier trials are known, as in an uninterrupted search.
    """
    requeue_dead_trials(study)
    drawn: list[DrawnTrial] = []
    thresholds = pruning_thresholds(study)
    while len(drawn) < batch_size:
        trials = study.get_trials(deepcopy=False)
        count = sum(map(counts_towards_budget, trials))
        waiting = any(trial.state == TrialState.WAITING for trial in trials)
        if not waiting and (count >= budget or (drawn and count % batch_size == 0)):
            break
        trial = study.ask()
        trial.set_user_attr(HEARTBEAT, time.time())
        earlier = [
            counted
            for counted in study.get_trials(deepcopy=False)
            if counts_towards_budget(counted) and counted.number < trial.number
        ]
        if len(earlier) >= budget:  # another process was quicker
            study.tell(trial, state=TrialState.FAIL)
            break
        # The seed depends on the number of the trial: neither another process nor a resumed one draws the same
        # settings again, and a resumed search draws what an uninterrupted one would. With multivariate=False every
        # parameter is drawn when it is asked for, so nothing has been drawn before this line.
        study.sampler = TPESampler(seed=(seed * 1_000_003 + len(earlier)) % 2**32, multivariate=False)
        settings = suggest(trial)
        if THRESHOLDS not in trial.user_attrs:
            trial.set_user_attr(THRESHOLDS, thresholds)
        drawn.append(DrawnTrial(trial, settings, trial.user_attrs[THRESHOLDS]))
    return drawn


def requeue_dead_trials(study: optuna.Study) -> None:
    """Queue the trials of processes that died, so that their settings are tried again."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        if time.time() - (trial.user_attrs.get(HEARTBEAT) or started) > DEAD_AFTER_SECONDS:
            requeue(study, trial)


def requeue(study: optuna.Study, trial: Trial | FrozenTrial) -> None:
    """End a trial that will not be finished and queue its settings, if all of them had been drawn."""
    try:
        study.tell(trial.number, state=TrialState.FAIL)
    except ValueError:  # another process has ended it; the settings are queued only once
        return
    if THRESHOLDS in trial.user_attrs:
        study.enqueue_trial(trial.params, user_attrs={THRESHOLDS: trial.user_attrs[THRESHOLDS]})


def has_unfinished_trials(study: optuna.Study) -> bool:
    """Whether trials are running or queued, in this process or another."""
    return bool(study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)))


@contextmanager
def heartbeat(study: optuna.Study, trials: Sequence[Trial]) -> Iterator[None]:
    """Record heartbeats of trials while they are trained. If training is interrupted, queue them again."""
    ended = Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            for trial in trials:
                with suppress(UpdateFinishedTrialError):
                    trial.set_user_attr(HEARTBEAT, time.time())

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        ended.set()
        thread.join()
        for trial in trials:
            requeue(study, trial)
        raise
    ended.set()
    thread.join()


def record_outcome(study: optuna.Study, trial: Trial, settings: TrialSettings, outcome: TrialOutcome) -> None:
    """Save the outcome of a trial, unless another process took this one for dead and queued the trial again."""
    try:
        trial.set_user_attr(SETTINGS, vars(settings))
    except UpdateFinishedTrialError:
        logger.warning(f"Trial {trial.number} had no heartbeat for too long and was queued again; its outcome is lost.")
        return
    trial.set_user_attr("seconds", outcome.seconds)
    for epoch, score in enumerate(outcome.by_epoch):
        trial.report(score, epoch)
    if outcome.failed:
        trial.set_user_attr(FAILURE, outcome.failed)
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
    elif outcome.pruned:
        study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
    else:
        trial.set_user_attr(VALIDATION_SCORE, list(outcome.validation_score))
        trial.set_user_attr("scores", [score for score, _ in outcome.validation_scores])
        study.tell(trial, outcome.validation_score[0], skip_if_finished=True)


def pruning_thresholds(study: optuna.Study) -> list[float]:
    """Return the median, over finished trials, of the best score up to each epoch (Optuna's median pruning rule)."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    curves = [[score for _, score in sorted(trial.intermediate_values.items())] for trial in complete]
    curves = [curve for curve in curves if curve]
    if len(curves) < STARTUP_TRIALS:
        return []
    # A trial that stopped early keeps its best score. No trial is pruned after its first epoch.
    longest = max(map(len, curves))
    curves = [curve + curve[-1:] * (longest - len(curve)) for curve in curves]
    return [float("-inf"), *map(statistics.median, list(zip(*curves, strict=True))[1:])]


def best_trial(study: optuna.Study) -> FrozenTrial:
    """Return the trial with the best validation score; ties are broken by loss, then by number."""
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    if not complete:
        failures = [trial.user_attrs[FAILURE] for trial in study.get_trials() if FAILURE in trial.user_attrs]
        raise BertVisionError(f"Every trial failed. The first error: {failures[0] if failures else 'unknown'}.")
    return max(complete, key=lambda trial: (*trial.user_attrs[VALIDATION_SCORE], -trial.number))
