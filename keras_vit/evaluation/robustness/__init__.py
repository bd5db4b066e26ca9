"""Robustness of classifiers: corrupted and shifted images, dropped and shuffled patches."""
