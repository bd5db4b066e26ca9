"""From image files to a model's pixels."""
