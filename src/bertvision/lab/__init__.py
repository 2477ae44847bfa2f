"""The laboratory: reproducible experiments, studies, hyperparameter searches and reports.

    from bertvision.lab import Experiment, run, study, search, report

    run(Experiment(task="mrpc"))                    # fine-tune, train heads, score: an ExperimentResult
    study(Experiment(task="mrpc"), "zoo")           # one table of the paper over several seeds: a StudyResult
    search(Experiment(task="mrpc"), trials=20)      # tune on the validation split: a SearchResult
    report(["runs"], "report.html")                 # one HTML page of all studies and searches below a directory

These names are functions (`Experiment` is a dataclass). The packages behind them have plural names, so that no module
shadows a function: `studies`, `searches` and `reports`. Attributes are loaded on first use, because importing torch and
optuna takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertvision.lab.reports import write_report as report
    from bertvision.lab.searches import run_search as search
    from bertvision.lab.studies import run_study as study
    from bertvision.pipeline import run
    from bertvision.pipeline.experiment import Experiment

__all__ = ["Experiment", "report", "run", "search", "study"]

_EXPORTS = {
    "Experiment": ("pipeline.experiment", "Experiment"),
    "run": ("pipeline", "run"),
    "study": ("lab.studies", "run_study"),
    "search": ("lab.searches", "run_search"),
    "report": ("lab.reports", "write_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _EXPORTS[name]
    return getattr(import_module(f"bertvision.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
