"""Optimizations for CPUs. Each has a parity test against the plain path, and one switch turns all of them off."""

from bertvision.cpu_optimizations.environment import set_environment

__all__ = ["set_environment"]
