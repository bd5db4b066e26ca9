"""Reads, writes and indexes TFRecord files."""
