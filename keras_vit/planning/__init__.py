"""Explain a run and estimate its cost, without data and devices."""
