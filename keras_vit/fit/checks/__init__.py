"""Refuses losses, labels and images that would train or evaluate wrongly."""
