"""The augmentation strengths and the results of "How to train your ViT?" (arXiv 2106.10270)."""

# Strength: (RandAugment's arguments, mixup's alpha).
STRENGTHS = {
    "none": (None, None),
    "light1": ("2, 0", None),
    "light2": ("2, 10", 0.2),
    "medium1": ("2, 15", 0.2),
    "medium2": ("2, 15", 0.5),
    "strong1": ("2, 20", 0.5),
    "strong2": ("2, 20", 0.8),
}
VARIANTS = ("B/16", "B/32", "L/16", "S/16", "S/32", "Ti/16", "R+Ti/16", "R26+S/32", "R50+L/32")
# Best published top-1 on ImageNet at 384 px, of models pre-trained on ImageNet-21k.
IMAGENET_384 = {
    "L/16": 85.59,
    "B/16": 85.49,
    "S/16": 83.73,
    "R50+L/32": 85.99,
    "R26+S/32": 83.85,
    "Ti/16": 78.22,
    "B/32": 83.59,
    "S/32": 79.58,
    "R+Ti/16": 75.40,
}
# Results of B/32 with the authors' later code (big_vision's transfer).
B32_384 = {"cifar10": 98.55, "cifar100": 91.35, "pets": 93.78, "flowers": 99.43}


def crop(pixels, strength):
    """The preprocessing text of training."""
    layers, _ = STRENGTHS[strength]
    return f"decode|random_resized_crop({pixels})|random_flip" + (f"|rand_augment({layers})" if layers else "")
