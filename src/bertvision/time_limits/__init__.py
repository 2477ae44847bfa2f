"""Runs with a time limit: measure unit costs, plan, and improve a saved model until the time is over."""

from bertvision.time_limits.best_model import BEST_FILE, open_best
from bertvision.time_limits.clock import Clock, parse_bytes, parse_seconds, process_start
from bertvision.time_limits.history import HistoryEntry
from bertvision.time_limits.live_view import LiveView
from bertvision.time_limits.planner import DataSize, Limits, Plan, Stage, StageKind, make_plan, revise
from bertvision.time_limits.timed_run import Forecast, RunRequest, TimedRun, request_of
from bertvision.time_limits.unit_costs import UnitCosts

__all__ = [
    "BEST_FILE",
    "Clock",
    "DataSize",
    "Forecast",
    "HistoryEntry",
    "Limits",
    "LiveView",
    "Plan",
    "RunRequest",
    "Stage",
    "StageKind",
    "TimedRun",
    "UnitCosts",
    "make_plan",
    "open_best",
    "parse_bytes",
    "parse_seconds",
    "process_start",
    "request_of",
    "revise",
]
