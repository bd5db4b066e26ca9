"""This package beside others that have the same models: `python -m benchmarks.peers`."""
