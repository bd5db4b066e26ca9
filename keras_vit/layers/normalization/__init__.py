"""Normalisation of pixels, tokens and batches."""
