"""Evaluators of a classifier on images that are changed: corruptions, shifts, dropped and shuffled patches."""
