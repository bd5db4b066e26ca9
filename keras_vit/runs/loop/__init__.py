"""`fit` from any step to the last: callbacks, measures on the way, faults, and reproducible results."""
