"""Dropout, its masks and its seeds."""
