"""Heads that give every pixel a class, one kind per file; segmentation_heads.py lists them."""
