"""What a step computes on each backend, and on which part of a batch: inputs per worker, weights of examples, the
compiled functions.
"""
