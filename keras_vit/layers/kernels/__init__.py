"""Kernels for the JAX backend: TPUs' in Pallas, their choice (chosen.py), and their check (self_check.py)."""
