"""Models that learn from images without labels, and their losses."""
