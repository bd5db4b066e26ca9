"""A training step compiled for a slice of TPUs, without one: what it needs, what it costs, and where."""
