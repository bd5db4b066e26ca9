"""Heads from an encoder's tokens to a model's outputs, one kind per file."""
