"""Evaluators for ImageNet's 1000 classes: reassessed labels, and other data sets with some of these classes."""
