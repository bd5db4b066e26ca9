"""Heads that find objects, one kind per file; rows.py lists them."""
