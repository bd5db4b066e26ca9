"""`fit` from any step to the last: callbacks, periodic measures, faults, and reproducible results."""
