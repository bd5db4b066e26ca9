"""TPU kernels in Pallas, for the JAX backend, and the choice between them (chosen.py)."""
