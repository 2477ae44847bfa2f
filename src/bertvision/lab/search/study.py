"""The record of a search, which several processes and machines may share: who tries what, and what came of it.

Trials are drawn a few at a time, and given up by what was known when they were drawn. So a search draws the same
settings and comes to the same end wherever its trials are trained, one after the other or side by side, and however
often it is killed.
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalRedisBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from bertvision.errors import BertVisionError
from bertvision.lab.search.space import Setting
from bertvision.lab.search.trials import Outcome

BEAT = 15.0  # seconds between two signs of life of a running trial
GRACE = 90.0  # seconds without one after which its process is taken for dead
POLL = 1.0
STARTUP = 5  # finished trials before any is given up early
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
BARS = "bars"

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_study(url: str, name: str) -> optuna.Study:
    """Open or begin the study `name` in the storage at `url`."""
    try:
        storage: BaseStorage = JournalStorage(JournalRedisBackend(url)) if url.startswith("redis") else RDBStorage(url)
        return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    except (SQLAlchemyError, ImportError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        shown = re.sub(r":[^:@/]+@", ":***@", url)
        raise BertVisionError(
            f"Cannot use {shown!r} as storage of a search: {reason}. A URL such as sqlite:///search.db or "
            "postgresql://user:password@host/name works, if the database answers and its driver is installed."
        ) from error


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial is part of the budget: all but those that a dead process left behind, and surplus ones."""
    return trial.state != TrialState.FAIL or "failed" in trial.user_attrs


class Drawn(NamedTuple):
    """A trial to be done."""

    trial: Trial
    setting: Setting
    pruning_thresholds: list[float]
    """Below which it is given up, by what was known when it was first drawn."""


def draw(study: optuna.Study, suggest: Callable[[Trial], Setting], *, budget: int, most: int, seed: int) -> list[Drawn]:
    """Take up to `most` trials that nobody else has; fewer if that would go beyond the budget.

    What was cut off comes first, and new trials only fill up the group it was drawn in: so the next group is drawn, as
    in an undisturbed search, when all before it are known.
    """
    take_back(study)
    drawn: list[Drawn] = []
    now = pruning_thresholds(study)
    while len(drawn) < most:
        known = study.get_trials(deepcopy=False)
        taken = sum(map(counts, known))
        waiting = any(trial.state == TrialState.WAITING for trial in known)
        if not waiting and (taken >= budget or (drawn and taken % most == 0)):
            break
        trial = study.ask()
        trial.set_user_attr("alive", time.time())
        earlier = [each for each in study.get_trials(deepcopy=False) if counts(each) and each.number < trial.number]
        if len(earlier) >= budget:  # another process was quicker
            study.tell(trial, state=TrialState.FAIL)
            break
        # Its own random numbers, so that neither another process nor a resumed one draws the same again, and a resumed
        # search draws what an undisturbed one would. Each parameter is drawn by itself: none is before this line.
        study.sampler = TPESampler(seed=(seed * 1_000_003 + len(earlier)) % 2**32, multivariate=False)
        setting = suggest(trial)
        if BARS not in trial.user_attrs:
            trial.set_user_attr(BARS, now)
        drawn.append(Drawn(trial, setting, trial.user_attrs[BARS]))
    return drawn


def take_back(study: optuna.Study) -> None:
    """Queue what processes that died were trying; the settings are tried again."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        seen = trial.user_attrs.get("alive") or (trial.datetime_start.timestamp() if trial.datetime_start else 0.0)
        if time.time() - seen > GRACE:
            trim_memory(study, trial)


def trim_memory(study: optuna.Study, trial: Trial | FrozenTrial) -> None:
    """End a trial that will not be finished, and queue its settings, if it was drawn to the end."""
    try:
        study.tell(trial.number, state=TrialState.FAIL)
    except ValueError:  # another process has ended it: the settings are queued once only
        return
    if BARS in trial.user_attrs:
        study.enqueue_trial(trial.params, user_attrs={BARS: trial.user_attrs[BARS]})


def others_at_work(study: optuna.Study) -> bool:
    """Whether trials are running, or left by a process that may be dead."""
    return bool(study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)))


@contextmanager
def at_work(study: optuna.Study, trials: Sequence[Trial]) -> Iterator[None]:
    """Give signs of life for these trials; if the work is broken off, queue them for whoever goes on."""
    ended = Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            for trial in trials:
                trial.set_user_attr("alive", time.time())

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        ended.set()
        thread.join()
        for trial in trials:
            trim_memory(study, trial)
        raise
    ended.set()
    thread.join()


def tell(study: optuna.Study, trial: Trial, setting: Setting, outcome: Outcome) -> None:
    """Record what came of a trial."""
    trial.set_user_attr("setting", vars(setting))
    trial.set_user_attr("seconds", outcome.seconds)
    for epoch, score in enumerate(outcome.by_epoch):
        trial.report(score, epoch)
    if outcome.failed:
        trial.set_user_attr("failed", outcome.failed)
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
    elif outcome.pruned:
        study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
    else:
        trial.set_user_attr("grade", list(outcome.validation_score))
        trial.set_user_attr("scores", [score for score, _ in outcome.validation_scores])
        study.tell(trial, outcome.validation_score[0], skip_if_finished=True)


def pruning_thresholds(study: optuna.Study) -> list[float]:
    """The median of the best score so far, after each epoch, of the trials that were finished."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    curves = [[score for _, score in sorted(trial.intermediate_values.items())] for trial in complete]
    curves = [curve for curve in curves if curve]
    if len(curves) < STARTUP:
        return []
    # One that stopped early keeps its best; after a single epoch it is too early to tell.
    longest = max(map(len, curves))
    curves = [curve + curve[-1:] * (longest - len(curve)) for curve in curves]
    return [float("-inf"), *map(statistics.median, list(zip(*curves, strict=True))[1:])]


def best(study: optuna.Study) -> FrozenTrial:
    """The trial with the best validation score, then loss."""
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    if not complete:
        failures = [t.user_attrs["failed"] for t in study.get_trials() if "failed" in t.user_attrs]
        raise BertVisionError(f"Every trial failed. The first said: {failures[0] if failures else 'nothing'}.")
    return max(complete, key=lambda trial: (*trial.user_attrs["grade"], -trial.number))
