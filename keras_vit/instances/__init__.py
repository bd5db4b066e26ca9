"""Objects with masks: models, losses, and what they find in an image."""
