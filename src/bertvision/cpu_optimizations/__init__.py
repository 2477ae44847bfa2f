"""Optimizations for CPUs. Each has a parity test against the plain path, and one switch turns all of them off."""
