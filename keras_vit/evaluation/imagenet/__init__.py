"""Evaluators of models with ImageNet's 1000 classes: its reassessed labels, and data sets that share its classes."""
