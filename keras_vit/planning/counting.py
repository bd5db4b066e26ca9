"""What a model costs, counted from its spec; no model is built. models/costs.py says what is counted."""

from collections.abc import Iterable

from keras_vit.layers.embedding.patches import pair
from keras_vit.models import families
from keras_vit.models.costs import LayerCount

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # of a number, by compute dtype


def layer_counts(
    spec: families.Spec,
    image_size: int | tuple[int, int] = 224,
    classes: int | None = 1000,
    channels: int = 3,
    remat: bool | tuple[int, ...] = False,
) -> list[LayerCount]:
    """The rows of a model's layers, in order, with the names that they have in the model.

    Args:
        spec: of any family (`keras_vit.models.make_spec("B/16")`).
        image_size: in pixels, a number or (height, width).
        classes: of the head; None for a model without one.
        channels: of the image.
        remat: as in ViT and BiT.

    Raises:
        ValueError: if the image is not a whole number of patches.
    """
    size = pair(image_size, "image_size")
    return families.find(spec).layer_counts(spec, size, classes, channels, remat)


def parameters(rows: Iterable[LayerCount]) -> int:
    """The number of parameters of all rows."""
    return sum(row.parameters for row in rows)


def flops(rows: Iterable[LayerCount]) -> int:
    """Operations of one image's forward pass; layers whose products are not known are left out."""
    return sum(row.flops or 0 for row in rows)


def forward_activations(rows: Iterable[LayerCount]) -> int:
    """The numbers that one image's forward pass holds at once."""
    return max(row.alive for row in rows)


def training_activations(rows: Iterable[LayerCount]) -> int:
    """The numbers that one image's training step keeps for the gradients, where all layers train."""
    rows = list(rows)
    return sum(row.kept for row in rows) + max(row.recomputed for row in rows)
