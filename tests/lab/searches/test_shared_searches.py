"""Real processes on one study: side by side, and killed with SIGKILL; no trial is done twice or lost."""

import json
import time
from pathlib import Path

import optuna

from bertvision.lab import search
from bertvision.pipeline.experiment import make
from forking import ForkedProcess

SPACE = ["epochs=[3,10]"]
TRIALS = 8
# A driver, so that a dead process is noticed within seconds, and every trial leaves a line in a log.
DRIVER = """
import json, os, sys, time
from bertvision.pipeline.experiment import make
from bertvision.lab import search
from bertvision.lab.searches import optuna_study, trials
settings = json.loads(sys.argv[1])
optuna_study.HEARTBEAT_SECONDS, optuna_study.DEAD_AFTER_SECONDS, optuna_study.POLL_SECONDS = 0.2, 6.0, 0.1
train, pause, log = trials.TrialRunner.train, settings.pop("pause"), open(settings.pop("log"), "a")

def logged(self, todo, pruning_thresholds):
    outcomes = train(self, todo, pruning_thresholds)
    time.sleep(pause)
    for each in todo:
        print(json.dumps(vars(each)), file=log, flush=True)
    return outcomes

trials.TrialRunner.train = logged
found = search(make(**settings.pop("experiment")), **settings)
print(json.dumps({"validation": found.validation, "score": found.runs[0].primary_score, "history": found.history}))
"""


def start(root: Path, log: Path, experiment: dict, pause: float, **more) -> ForkedProcess:
    settings = {"experiment": experiment, "root": str(root), "log": str(log), "pause": pause, "trials": TRIALS}
    settings |= {"space": SPACE} | more
    modules = ("bertvision.lab.searches.runner", "bertvision.pipeline", "optuna", "sqlalchemy.dialects.sqlite")
    return ForkedProcess(DRIVER, [json.dumps(settings)], modules, log.with_suffix(".out"), log.with_suffix(".errors"))


def result(process: ForkedProcess) -> dict:
    assert process.wait(200) == 0, process.err.read_text()
    return json.loads(process.out.read_text())


def settings(tiny, reviews) -> dict:
    train = {"train_file": str(reviews), "encoder": str(tiny), "fractions": [0.5], "controls": False}
    return train | {
        "finetune": {"learning_rate": 1e-3},
        "heads": ["adapter:token_pooling=max"],
        "train": {"batch_size": 16, "epochs": 3.0, "patience": 2},
    }


def finished(url: str) -> dict[int, tuple]:
    """What is on record of the trials that ended."""
    (name,) = optuna.get_all_study_names(url)
    states = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
    trials = optuna.load_study(storage=url, study_name=name).get_trials(states=states)
    return {trial.number: (trial.params, trial.value, trial.datetime_complete) for trial in trials}


def test_two_processes_never_run_the_same_trial(tiny, reviews, tmp_path):
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    work = [start(tmp_path / "runs", log, settings(tiny, reviews), 0.3, trials_per_batch=1) for log in logs]
    one, two = map(result, work)
    assert one == two and len(one["history"]) == TRIALS
    tried = [log.read_text().splitlines() for log in logs]
    assert all(tried), "one process did all the work"
    assert len(tried[0]) + len(tried[1]) == TRIALS == len({*tried[0], *tried[1]})
    assert len(list((tmp_path / "runs").rglob("checkpoint.json"))) == 1  # fine-tuned once


def test_killed_and_resumed_without_losing_finished_trials(tiny, reviews, tmp_path):
    url, log = f"sqlite:///{tmp_path}/shared.db", tmp_path / "log"
    made = make(**settings(tiny, reviews))
    calm = search(made, trials=TRIALS, trials_per_batch=2, space=SPACE, root=tmp_path / "calm")
    known: dict[int, tuple] = {}
    for kill_after in (1, 5):
        process = start(tmp_path / "runs", log, settings(tiny, reviews), 0.5, trials_per_batch=2, storage=url)
        until = time.monotonic() + 100
        while (len(log.read_text().splitlines()) if log.exists() else 0) < kill_after:
            assert process.poll() is None and time.monotonic() < until, process.err.read_text()
            time.sleep(0.02)
        process.kill()
        process.wait()
        now = finished(url)
        assert known.items() <= now.items() and len(now) < TRIALS
        known = now
    assert known
    last = result(start(tmp_path / "runs", log, settings(tiny, reviews), 0.0, trials_per_batch=2, storage=url))
    after = finished(url)
    assert known.items() <= after.items()  # neither lost nor done again
    assert len(last["history"]) == TRIALS == len(after)
    # What was cut off is tried again: the same settings, and the same result, as in an undisturbed search. How early a
    # trial is pruned depends on how many trials had ended when it was drawn, so the epochs that both have are compared.
    found, expected = (
        {json.dumps(row["params"]): row["by_epoch"] for row in rows} for rows in (last["history"], calm.history)
    )
    assert found.keys() == expected.keys() and len(found) == TRIALS
    for params, by_epoch in found.items():
        epochs = min(len(by_epoch), len(expected[params]))
        assert epochs and by_epoch[:epochs] == expected[params][:epochs]
    assert last["score"] == calm.runs[0].primary_score
