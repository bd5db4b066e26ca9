"""Dense layers, quantised or with LoRA."""
