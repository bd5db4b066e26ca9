"""Checkpoint formats, one per file: capabilities, and names in both directions; recognise.py tells them apart."""
