"""Heads that find objects, one kind per file; detection_heads.py lists them."""
