"""TFRecord files: reading, writing and indexing them."""
