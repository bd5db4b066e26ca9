"""What the JAX backend computes otherwise: attention by cuDNN and its check (self_check.py), gradients of biases."""
