"""Files, paths, caches, checksums and hints. Imports nothing else of this package."""
