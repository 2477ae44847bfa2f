"""Studies: each table and figure of the paper is one function over an experiment and several seeds."""

from bertvision.lab.studies.context import StudyContext, StudyOptions
from bertvision.lab.studies.result import Figure, StudyResult, StudyTable, find_results, load_result
from bertvision.lab.studies.runner import run_studies, run_studies_on_cluster, run_study
from bertvision.lab.studies.table import STUDIES, Study, studies_for

__all__ = [
    "STUDIES",
    "Figure",
    "Study",
    "StudyContext",
    "StudyOptions",
    "StudyResult",
    "StudyTable",
    "find_results",
    "load_result",
    "run_studies",
    "run_studies_on_cluster",
    "run_study",
    "studies_for",
]
