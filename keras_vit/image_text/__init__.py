"""Images with texts: two encoders, their training, and classes by name."""
