"""Reading checkpoint files without trusting them."""
