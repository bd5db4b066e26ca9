"""Costs of variants and published models, counted without values or downloads."""

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE, Published, find
from keras_vit.depth.depth_model import DepthModel
from keras_vit.detection.detection_model import DetectionModel
from keras_vit.detection.heads import detection_heads
from keras_vit.instances.instance_model import InstanceModel
from keras_vit.layers.embedding.patches import pair
from keras_vit.models.families import FAMILIES, find_spec
from keras_vit.models.without_values import without_values
from keras_vit.planning import model_counts
from keras_vit.planning.model_count import ModelCount, matching
from keras_vit.planning.rows_of_text import aligned, short
from keras_vit.segmentation.segmentation_model import SegmentationModel


def variants() -> list[str]:
    """Variants of all families, counted at 224 pixels with 1000 classes."""
    return [name for family in FAMILIES.values() for name in family.variants]


def _dense_model(published, spec, size):
    head, classes, options = published.head, published.classes or 1, published.head_options
    if options.get("depth"):
        return DepthModel(spec, head, image_size=size, **DepthModel.constructor_arguments(options))
    if "mask_stride" in options:
        return InstanceModel(spec, head, classes, size, head_options=options, auxiliary=0.0)
    if head in detection_heads.HEADS:
        return DetectionModel(spec, head, classes, size, head_options=options)
    return SegmentationModel(spec, head, classes, size, head_options=options, auxiliary=float(classes > 1))


def rows_of(name: str, image_size: int | tuple[int, int] | None = None) -> list[model_counts.LayerCount]:
    """Layer rows of a variant or published model, such as "B/16" or "deit/tiny".

    `image_size` is in pixels, a number or (height, width); None for 224 or the published model's own.

    Raises:
        ValueError: an unknown name, or an image that is not a whole number of patches.
    """
    if name not in CATALOGUE and name.partition("/")[0] in {known.partition("/")[0] for known in CATALOGUE}:
        find(name)  # raises, with the nearest name
    if name not in CATALOGUE:
        return model_counts.layer_counts(find_spec(name), image_size or 224)
    published = CATALOGUE[name]
    spec = find_spec(published.variant, **published.fields)
    if image_size is None and spec.has_tokens:  # with patches of 14 pixels, 378 of 384
        own = pair(published.image_size, "image_size")
        image_size = tuple(side // stride * stride for side, stride in zip(own, spec.strides[0]))
    size = pair(image_size or published.image_size, "image_size")
    if published.head is None:
        return model_counts.layer_counts(spec, size, published.classes)
    with without_values():
        return model_counts.count(_dense_model(published, spec, size))


def _files(published: Published) -> tuple[str, ...]:
    own = "safetensors" if published.url.startswith("hf://") else f".{published.url.rpartition('.')[2]}"
    return (own, ".pth") if published.original else (own,)


def count_models(pattern: str = "*", image_size: int | tuple[int, int] | None = None) -> list[ModelCount]:
    """Rows of the variants and published models that match `pattern` ("deit/*", "*16*"; case-sensitive).

    `image_size` is in pixels; None for 224, or each published model's own.

    Raises:
        ValueError: no name matches, or an image is not a whole number of patches.
    """
    names = matching((*variants(), *sorted(CATALOGUE)), pattern)
    return [_model_count(name, image_size) for name in names]


def _model_count(name, image_size):
    rows = rows_of(name, image_size)
    size = rows[0].output[:2]  # of the normalised image
    forward, training = 4 * model_counts.forward_activations(rows), 4 * model_counts.training_activations(rows)
    files = _files(CATALOGUE[name]) if name in CATALOGUE else ()
    return ModelCount(name, size, model_counts.parameters(rows), model_counts.flops(rows), forward, training, files)


def layers_table(rows: list[model_counts.LayerCount]) -> str:
    """A model's layers and totals as text; "?" for unknown operations."""
    head = ("", "output", "parameters", "MFLOP", "forward", "training")
    cells = [
        (
            row.name,
            " x ".join(map(str, row.output)),
            f"{row.parameters:,}",
            "?" if row.flops is None else f"{row.flops / 1e6:,.2f}",
            short(4 * row.alive, "B"),
            short(4 * row.kept, "B"),
        )
        for row in rows
    ]
    forward, training = model_counts.forward_activations(rows), model_counts.training_activations(rows)
    least = "at least " if any(row.flops is None for row in rows) else ""
    total = ("in all", "", f"{model_counts.parameters(rows):,}", f"{least}{model_counts.flops(rows) / 1e6:,.2f}")
    return aligned([head, *cells, (*total, short(4 * forward, "B"), short(4 * training, "B"))])
