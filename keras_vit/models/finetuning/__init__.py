"""Adapting a trained model: freezing, LoRA, whitened first layers."""
