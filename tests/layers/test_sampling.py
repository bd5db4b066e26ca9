"""Bilinear samples beside torch's grid_sample, and deformable attention beside its equation."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.attention.deformable import DeformableAttention, first_offsets
from keras_vit.layers.bilinear import sampled

GOLDEN = json.loads(pathlib.Path(__file__).with_name("grid_samples.json").read_text())


def test_samples_and_gradients_are_torchs():
    maps, points, upstream = (tf.Variable(np.float32(GOLDEN[name])) for name in ("maps", "points", "upstream"))
    with tf.GradientTape() as tape:
        found = sampled(maps, points)
        total = tf.reduce_sum(found * upstream)
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(total, [maps, points])]
    for value, name in zip((found, *gradients), ("samples", "maps_gradient", "points_gradient")):
        np.testing.assert_allclose(value, GOLDEN[name], rtol=0, atol=1e-5, err_msg=name)


def test_a_point_at_a_places_centre_is_its_value_and_one_far_outside_is_zero():
    maps = np.arange(12, dtype="float32").reshape(1, 3, 4, 1)
    centers = [[[(x + 0.5) / 4, (y + 0.5) / 3] for y in range(3) for x in range(4)] + [[9.0, -9.0]]]
    np.testing.assert_allclose(sampled(maps, np.float32(centers))[0, :, 0], [*range(12), 0], atol=1e-5)


def test_deformable_attention_follows_its_equation():
    rng = np.random.default_rng(0)
    layer = DeformableAttention(heads=2, points=3, maps=2)
    layer.build((None, 4, 8), [(None, 5, 6, 8), (None, 2, 3, 8)])
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    queries, boxes = rng.normal(size=(1, 4, 8)).astype("float32"), rng.random((1, 4, 4)).astype("float32")
    maps = [rng.normal(size=(1, *size, 8)).astype("float32") for size in ((5, 6), (2, 3))]
    found = layer(queries, boxes, maps)[0]
    kernel, bias = map(np.array, layer.offsets.weights)
    offsets = (queries[0] @ kernel + bias).reshape(4, 2, 2, 3, 2)
    weights = np.array(tf.nn.softmax(layer.weighting(queries)[0].numpy().reshape(4, 2, 6))).reshape(4, 2, 2, 3)
    expected = np.zeros((4, 8), "float32")
    for q in range(4):
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            for i, x in enumerate(maps):
                value = layer.value(x).numpy()[..., part]
                at = boxes[0, q, :2] + offsets[q, head, i] / 3 * boxes[0, q, 2:] / 2  # (p, 2)
                expected[q, part] += weights[q, head, i] @ np.array(sampled(value, np.float32(at[None])))[0]
    np.testing.assert_allclose(found, layer.out(expected), rtol=0, atol=1e-5)


def test_heads_start_in_different_directions_with_their_points_in_a_row():
    offsets = first_offsets(heads=8, maps=1, points=2)
    np.testing.assert_allclose(offsets[:, 0, 0][[0, 1, 2]], [[1, 0], [1, 1], [0, 1]], atol=1e-12)
    np.testing.assert_allclose(offsets[:, :, 1], 2 * offsets[:, :, 0])


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="width of 10 does not divide into 4 heads"):
        DeformableAttention(heads=4, points=1).build((None, 3, 10), [(None, 2, 2, 10)])
