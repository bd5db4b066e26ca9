"""Benchmarks of the model, the input pipeline, the ops, several workers and every strategy."""
