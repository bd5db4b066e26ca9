"""Where examples come from: one file per kind of source."""
