"""A small HTTP service for one machine: `keras-vit serve`."""
