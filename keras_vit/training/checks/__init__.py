"""Refuses what would train or evaluate wrongly: unsuitable losses, labels, and images on the wrong scale."""
