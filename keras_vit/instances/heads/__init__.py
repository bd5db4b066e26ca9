"""Heads that find objects with masks."""
