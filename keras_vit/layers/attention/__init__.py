"""Attention over tokens, one kind per file."""
