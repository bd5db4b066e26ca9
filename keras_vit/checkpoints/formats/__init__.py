"""Checkpoint formats, one per file: how to recognise a format, what it can express, and its names in both
directions.
"""
