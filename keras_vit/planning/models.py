"""Costs of variants and published models, counted without building an encoder or downloading anything."""

import dataclasses
import math
from typing import Any

import keras

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE, Published, find
from keras_vit.depth import depth_model
from keras_vit.detection.heads import detection_heads
from keras_vit.layers.embedding.patches import grid_size, pair
from keras_vit.models.families import FAMILIES, find_spec
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.planning import counting, model_counts
from keras_vit.planning.model_count import ModelCount, matching
from keras_vit.planning.rows_of_text import aligned, short
from keras_vit.runs.prepare import without_values
from keras_vit.segmentation.heads.segmentation_heads import make_decoder


def variants() -> list[str]:
    """Variants of all families, counted at 224 pixels with 1000 classes."""
    return [name for family in FAMILIES.values() for name in family.variants]


def _decoder(published: Published, encoder: Encoder) -> Decoder:
    """The layers of a published model's head."""
    head, classes, policy = str(published.head), published.classes or 1, keras.dtype_policies.get("float32")
    if head in detection_heads.HEADS:
        return detection_heads.make_detector(head, encoder, classes, policy, published.head_options)
    if published.head_options.get("depth"):
        return depth_model.HEADS[head](**published.head_options).decoder(encoder, 1, False, policy)
    return make_decoder(head, encoder, classes, classes > 1, policy, published.head_options)


def _rows_with_tokens(decoder: Decoder, spec: Any, image_size: tuple[int, int]) -> list[counting.LayerCount]:
    """Rows of a ViT whose blocks learned tokens join: they cost what registers do, and have positions."""
    shape = (decoder.neck.count, spec.width)
    values = math.prod(shape)
    positions = counting.LayerCount("positions_of_tokens", shape, values * (1 + len(decoder.auxiliary)), 0, values, 0)
    tokens = keras.Input(shape)
    encoder = counting.layer_counts(dataclasses.replace(spec, registers=decoder.neck.count), image_size, None)
    return [*encoder, positions, *model_counts.count(keras.Model(tokens, decoder.head(tokens)))]


def _rows_on_maps(decoder: Decoder, spec: Any, image_size: tuple[int, int]) -> list[counting.LayerCount]:
    """Rows of an encoder, and of neck, head and auxiliary heads on its maps."""
    shapes = [(*grid_size(image_size, spec.strides[i]), spec.width) for i in decoder.taps]
    maps, tokens = ([keras.Input(shape) for shape in each] for each in (shapes, [shape[-1:] for shape in shapes]))
    given = [maps, tokens] if decoder.class_tokens else [maps]
    found = maps if decoder.neck is None else decoder.neck(*given)
    outputs = [decoder.head(found), *(layer([found[place]]) for place, layer in decoder.auxiliary)]
    rows = model_counts.count(keras.Model(given, keras.tree.flatten(outputs)))
    return counting.layer_counts(spec, image_size, None) + rows


def rows_of(name: str, image_size: int | tuple[int, int] | None = None) -> list[counting.LayerCount]:
    """Layer rows of a variant or published model, such as "B/16" or "deit/tiny".

    `image_size` is in pixels, a number or (height, width); None for 224 or the published model's own.

    Raises:
        ValueError: an unknown name, or an image that is not a whole number of patches.
    """
    if name not in CATALOGUE and name.partition("/")[0] in {known.partition("/")[0] for known in CATALOGUE}:
        find(name)  # raises, with the nearest name
    if name not in CATALOGUE:
        return counting.layer_counts(find_spec(name), image_size or 224)
    published = CATALOGUE[name]
    spec = find_spec(published.variant, **published.fields)
    if image_size is None and spec.has_tokens:  # with patches of 14 pixels, 378 of 384
        own = pair(published.image_size, "image_size")
        image_size = tuple(side // stride * stride for side, stride in zip(own, spec.strides[0]))
    size = pair(image_size or published.image_size, "image_size")
    if published.head is None:
        return counting.layer_counts(spec, size, published.classes)
    with without_values():
        decoder = _decoder(published, Encoder(spec, size))
        return (_rows_with_tokens if decoder.joins else _rows_on_maps)(decoder, spec, size)


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
