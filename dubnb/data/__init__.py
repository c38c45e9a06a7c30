"""Logs: reading and checking them, splitting them into a `Partition`, built-in datasets and simulated logs."""
