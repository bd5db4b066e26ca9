"""Compile a training step for a TPU slice, without one, to find its memory, cost and bottleneck."""
