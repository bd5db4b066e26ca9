"""Convolutions of BiT and the hybrids."""
