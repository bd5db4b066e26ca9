"""Draws images from an ImageGPT pixel by pixel, with cached keys and values: one compiled loop on every backend."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.arguments import integer, is_integer, number
from keras_vit.models import taps


def empty_cache(model: Any, count: int) -> tuple:
    """Each block's (keys, values) before the first pixel of `count` images, zeros (count, k, n, c)."""
    n = model.output_shape[1]
    attentions = [block.attention for block in taps.blocks(model)]

    def shape(attention):
        return (count, attention.heads, n, attention.size)

    return tuple(tuple(ops.zeros(shape(a), a.compute_dtype) for _ in ("keys", "values")) for a in attentions)


def next_logits(model: Any, place: Any, previous: Any, cache: tuple) -> tuple[Any, tuple]:
    """The logits of one pixel of each image.

    Args:
        model: an ImageGPT.
        place: the pixel's number, a scalar.
        previous: colour number of the pixel before it, (b,); anything for the first pixel.
        cache: from `empty_cache` or this function, for all earlier pixels.

    Returns:
        (logits (b, colors) float32, the cache with this pixel's).
    """
    pixels, start, positions = (
        model.get_layer(name) for name in ("patch_encoder", "class_token", "position_embedding")
    )
    # (b, d)
    x = ops.where(ops.equal(place, 0), ops.cast(start.tokens[0], pixels.compute_dtype), pixels.embed(previous))
    table = positions.table()  # (1, 1 + n, d)
    x = x[:, None] + ops.cast(ops.take(table, ops.reshape(place, (1,)), axis=1), x.dtype)  # (b, 1, d)
    kept = []
    for block, (keys, values) in zip(taps.blocks(model), cache):
        x, keys, values = block.next_token(x, keys, values, place)
        kept.append((keys, values))
    logits = model.get_layer("next_color")(model.get_layer("encoder_norm")(x))
    return ops.cast(logits[:, 0], "float32"), tuple(kept)


def draw(logits: Any, uniform: Any, temperature: Any, top_k: int | None) -> Any:
    """Colours (b,) int32 from logits (b, colors), by uniform numbers (b,) and the inverse distribution."""
    logits = logits / ops.reshape(temperature, (-1, 1))
    if top_k is not None:
        least = ops.top_k(logits, top_k)[0][:, -1:]
        logits = ops.where(logits >= least, logits, -1e30)
    below = ops.cumsum(ops.softmax(logits), axis=-1)  # (b, colors)
    # Of the sum as it was rounded, so that the last colours are not drawn too often.
    place = uniform[:, None] * below[:, -1:]
    return ops.sum(ops.cast(below <= place, "int32"), axis=-1)


class Sampler(keras.Model):
    """A loop over the pixels, compiled by Keras' predict on any backend.

    Its call takes a dict: colors (b, n) int32 of which the first `given`, (b,), are kept; uniform (b, n), numbers in
    [0, 1); and temperature (b,). It returns the colours (b, n).
    """

    def __init__(self, model, top_k):
        super().__init__(name="sampler")
        self.model, self.top_k, self.built = model, top_k, True
        self.jit_compile = True

    def call(self, inputs):
        colors, given, uniform = inputs["colors"], inputs["given"], inputs["uniform"]

        def body(place, state):
            colors, cache = state

            def column(table, i):
                return ops.take(table, ops.reshape(i, (1,)), axis=1)[:, 0]

            logits, cache = next_logits(self.model, place, column(colors, ops.maximum(place - 1, 0)), cache)
            drawn = draw(logits, column(uniform, place), inputs["temperature"], self.top_k)
            chosen = ops.where(place < given, column(colors, place), drawn)
            return ops.slice_update(colors, (0, place), chosen[:, None]), cache

        return ops.fori_loop(0, colors.shape[1], body, (colors, empty_cache(self.model, ops.shape(colors)[0])))[0]


def _sampler(model, top_k):
    """The model's Sampler, compiled once per top_k."""
    if model.__dict__.get("_sampler") is None or model.__dict__["_sampler"].top_k != top_k:
        model.__dict__["_sampler"] = Sampler(model, top_k)  # not a part of the model
    return model.__dict__["_sampler"]


def _prompt(model, prompt, count, rows):
    """(the colours (count, n) of the images to complete, how many are kept)."""
    h, w = model.image_size
    if prompt is None:
        if rows is not None:
            raise ValueError(f"rows={rows} needs prompt, the images to complete.")
        return np.zeros((integer(1 if count is None else count, "count"), h * w), "int32"), 0
    images = np.asarray(prompt)
    if images.ndim != 4 or images.shape[1:] != (h, w, model.channels) or not len(images):
        raise ValueError(f"prompt has the shape {images.shape}, expected images (b, {h}, {w}, {model.channels}).")
    if count is not None and count != len(images) != 1:
        raise ValueError(f"count={count} for {len(images)} images to complete: leave count out, or give one image.")
    rows = h // 2 if rows is None else rows
    if not is_integer(rows) or not 0 <= rows <= h:
        raise ValueError(f"rows must be a whole number from 0 to {h}, the images' height, got {rows!r}.")
    colors = model.colors(images)
    return np.repeat(colors, integer(count, "count"), axis=0) if len(colors) == 1 and count else colors, rows * w


def sample(model, count, prompt, rows, temperature, top_k, seed, batch_size) -> np.ndarray:
    """See ImageGPT.sample."""
    colors, given = _prompt(model, prompt, count, rows)
    if number(temperature, "temperature") <= 0:
        raise ValueError(
            f"temperature must be above 0, got {temperature!r}. For the likeliest colour at each pixel give top_k=1."
        )
    if top_k is not None and integer(top_k, "top_k") > model.output_shape[-1]:
        raise ValueError(f"top_k={top_k}: the palette has {model.output_shape[-1]} colours.")
    n, size = colors.shape[1], min(integer(batch_size, "batch_size"), len(colors))
    sampler, parts = _sampler(model, top_k), []
    uniform = np.random.default_rng(integer(seed, "seed", least=0)).random((len(colors), n), "float32")
    for i in range(0, len(colors), size):
        # Whole batches, so that one is compiled.
        rest = [np.resize(array[i : i + size], (size, n)) for array in (colors, uniform)]
        each = np.full(size, given, "int32"), np.full(size, temperature, "float32")
        parts.append(sampler.predict_on_batch(dict(zip(("colors", "uniform", "given", "temperature"), (*rest, *each)))))
    return model.pixels(np.concatenate(parts)[: len(colors)])
