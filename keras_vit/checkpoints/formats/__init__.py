"""Checkpoint formats, one per file: what it can express, and its names in both directions; recognise.py tells them
apart.
"""
