"""From image files to names and probabilities: reading, preprocessing, classification."""
