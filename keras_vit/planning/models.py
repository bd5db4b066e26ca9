"""Costs of variants and published models, counted without building or downloading any."""

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE, Published, find
from keras_vit.models.families import FAMILIES, Spec
from keras_vit.models.families import find as family_of
from keras_vit.planning import counting
from keras_vit.planning.model_count import ModelCount, matching
from keras_vit.planning.text import aligned, short


def variants() -> list[str]:
    """Variants of all families, counted at 224 pixels with 1000 classes."""
    return [name for family in FAMILIES.values() for name in family.variants]


def spec_of(variant: str, **fields) -> Spec:
    """The spec of any family's variant; ValueError for an unknown variant or field."""
    return family_of(variant).make_spec(variant, **fields)


def rows_of(name: str, image_size: int | tuple[int, int] | None = None) -> list[counting.LayerCount]:
    """Rows of the layers of a variant or a published model, such as "B/16" or "deit/tiny".

    `image_size` is in pixels, a number or (height, width); None for 224 or the published model's own.

    Raises:
        ValueError: an unknown name, or an image that is not a whole number of patches.
    """
    if name not in CATALOGUE and name.partition("/")[0] in {known.partition("/")[0] for known in CATALOGUE}:
        find(name)  # raises, with the nearest name
    if name not in CATALOGUE:
        return counting.layer_counts(spec_of(name), image_size or 224)
    published = CATALOGUE[name]
    spec = spec_of(published.variant, **published.fields)
    if image_size is None and spec.has_tokens:  # with patches of 14 pixels, 378 of 384
        image_size = tuple(published.image_size // stride * stride for stride in spec.strides[0])
    return counting.layer_counts(spec, image_size or published.image_size, published.classes)


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
    forward, training = (4 * numbers(rows) for numbers in (counting.forward_activations, counting.training_activations))
    files = _files(CATALOGUE[name]) if name in CATALOGUE else ()
    return ModelCount(name, size, counting.parameters(rows), counting.flops(rows), forward, training, files)


def layers_table(rows: list[counting.LayerCount]) -> str:
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
    forward, training = counting.forward_activations(rows), counting.training_activations(rows)
    least = "at least " if any(row.flops is None for row in rows) else ""
    total = ("in all", "", f"{counting.parameters(rows):,}", f"{least}{counting.flops(rows) / 1e6:,.2f}")
    return aligned([head, *cells, (*total, short(4 * forward, "B"), short(4 * training, "B"))])
