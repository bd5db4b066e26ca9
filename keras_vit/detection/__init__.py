"""Objects in images: the model, its heads, matching and losses, and boxes in images of any size."""
