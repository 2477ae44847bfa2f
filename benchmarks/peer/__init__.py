"""The benchmark of peers: data sets, plan, methods, report. `benchmarks/peers.py` is its command."""
