"""Sources of examples, one file per kind."""
