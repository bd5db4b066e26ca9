"""A training step compiled for a TPU slice, without one: its needs, costs and bottlenecks."""
