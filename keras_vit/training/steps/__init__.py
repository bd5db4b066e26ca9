"""The training steps of each backend: inputs per worker, weights of examples, compiled functions."""
