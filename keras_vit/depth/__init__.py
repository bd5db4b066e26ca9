"""A depth for every pixel."""
