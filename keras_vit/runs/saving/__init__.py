"""A run on disk: its directory, its checkpoints, and the state in them."""
