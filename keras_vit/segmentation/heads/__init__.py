"""Heads that give every pixel a class, one kind per file; rows.py lists them."""
