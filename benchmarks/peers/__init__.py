"""This package against others with the same models: `python -m benchmarks.peers`."""
