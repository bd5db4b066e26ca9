"""What TPUs compute faster in another form than layers write, for the JAX backend: kernels in Pallas, and which of them
a program gets (chosen.py).
"""
