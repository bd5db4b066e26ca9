"""A class for every pixel: the model, its heads, losses and scores, and masks of images of any size."""
