"""A model's cost, counted from its spec without building it. models/costs.py defines what counts."""

from collections.abc import Iterable

from keras_vit.layers.embedding.patches import pair
from keras_vit.models import families
from keras_vit.models.costs import LayerCount

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # per value, by compute dtype


def layer_counts(
    spec: families.Spec,
    image_size: int | tuple[int, int] = 224,
    classes: int | None = 1000,
    channels: int = 3,
    remat: bool | tuple[int, ...] = False,
) -> list[LayerCount]:
    """Rows of a model's layers, in order, with their names in the model.

    Args:
        spec: spec of any family, such as `keras_vit.models.make_spec("B/16")`.
        image_size: pixels, a number or (height, width).
        classes: number of classes; None for no head.
        channels: image channels.
        remat: as in ViT and BiT.

    Raises:
        ValueError: the image is not a whole number of patches.
    """
    size = pair(image_size, "image_size")
    return families.find(spec).layer_counts(spec, size, classes, channels, remat)


def parameters(rows: Iterable[LayerCount]) -> int:
    """Number of parameters of all rows."""
    return sum(row.parameters for row in rows)


def flops(rows: Iterable[LayerCount]) -> int:
    """Operations of one image's forward pass, without layers of unknown cost."""
    return sum(row.flops or 0 for row in rows)


def forward_activations(rows: Iterable[LayerCount]) -> int:
    """Peak number of values in one image's forward pass."""
    return max(row.alive for row in rows)


def training_activations(rows: Iterable[LayerCount]) -> int:
    """Number of values that one image's training step keeps for gradients, if all layers train."""
    rows = list(rows)
    return sum(row.kept for row in rows) + max(row.recomputed for row in rows)
