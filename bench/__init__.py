"""Benchmarks and the statistics of simulated data, each run as `python -m bench.<name>`."""
