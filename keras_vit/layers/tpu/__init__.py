"""What TPUs compute faster in another form than layers write, for the JAX backend: kernels in Pallas. layers/backend.py alone calls them."""
