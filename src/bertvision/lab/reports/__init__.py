"""Reports: one HTML page of all results, figures and tables as files, and leaderboard submissions."""

from bertvision.lab.reports.claims import write_claims
from bertvision.lab.reports.diagnostics import Phenomenon, diagnose
from bertvision.lab.reports.glue import GLUE_TASKS, GlueResult, run_glue
from bertvision.lab.reports.run_charts import run_charts, save_charts
from bertvision.lab.reports.submission import write_submission
from bertvision.lab.reports.writer import write_report

__all__ = [
    "GLUE_TASKS",
    "GlueResult",
    "Phenomenon",
    "diagnose",
    "run_charts",
    "run_glue",
    "save_charts",
    "write_claims",
    "write_report",
    "write_submission",
]
