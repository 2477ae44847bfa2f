"""Benchmark tasks (SQuAD, GLUE and others): their definitions, where their data come from, official scoring."""

from bertvision.lab.benchmarks.scoring import score_file
from bertvision.lab.benchmarks.table import BENCHMARK_TASKS

__all__ = ["BENCHMARK_TASKS", "score_file"]
