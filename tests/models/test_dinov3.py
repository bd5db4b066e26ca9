"""DINOv3's structure: published counts, its rescaling of coordinates in training."""

import numpy as np
import pytest

import keras_vit
from keras_vit.models import families, make_spec
from keras_vit.planning.model_counts import layer_counts, parameters

COUNTS = {  # of timm 1.0.31's models without a head, with the biases of query and value (`_qkvb`)
    "DINOv3-Ti/16": 5_489_664,
    "DINOv3-S/16": 21_596_160,
    "DINOv3-S+/16": 28_692_480,
    "DINOv3-B/16": 85_659_648,
    "DINOv3-L/16": 303_128_576,
    "DINOv3-H+/16": 840_591_360,
}
SMALL = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32}


def vit(**fields):
    return keras_vit.ViT("DINOv3-S+/16", **{"image_size": (8, 12), "classes": 3, "patch_size": 4, **SMALL, **fields})


@pytest.fixture(scope="module")
def model():
    return vit()


def test_parameters_are_the_published_ones():
    counted = {name: parameters(layer_counts(make_spec(name), 256, classes=None)) for name in COUNTS}
    assert counted == COUNTS
    assert parameters(layer_counts(make_spec("EVA02-Ti/14"), 224, classes=None)) == 5_502_144
    assert parameters(layer_counts(make_spec("EVA02-B/14"), 448, classes=1000)) == 87_117_544
    assert parameters(layer_counts(make_spec("PE-Ti/16"), 384, classes=512)) == 6_141_056
    assert parameters(layer_counts(make_spec("PE-S/16"), 384, classes=512)) == 23_783_168
    assert parameters(layer_counts(make_spec("PE-B/16"), 224, classes=1024)) == 93_673_984
    assert parameters(layer_counts(make_spec("PE-L/14"), 336, classes=1024)) == 317_152_256
    giant = make_spec("DINOv3-L/16", depth=40, width=1536, heads=24, mlp_dim=4096, mlp_form="swiglu", qkv_bias=False)
    assert parameters(layer_counts(giant, 512, classes=None)) == 1_134_473_216  # LingBot-Vision
    # timm's plain names have no biases of query, key and value.
    assert parameters(layer_counts(make_spec("DINOv3-7B/16", qkv_bias=False), 256, classes=None)) == 6_716_030_976


def test_the_key_alone_has_no_bias(model):
    attention = model.get_layer("block_01").attention
    assert [dense.use_bias for dense in (attention.query, attention.key, attention.value)] == [True, False, True]


def test_a_spec_of_this_structure_has_its_name():
    spec = make_spec("DINOv3-S/16", layer_scale=1e-5, rope_rescale=1.0, pool="gap", class_token=True)
    assert families.variant_name(spec) == "DINOv3-S/16"
    assert families.variant_name(make_spec("S/16")) == "S/16"


def test_key_bias_counts_only_among_biases():
    assert make_spec("DINOv3-S/16", qkv_bias=False) == make_spec("DINOv3-S/16", qkv_bias=False, key_bias=True)


def test_each_step_of_training_rescales_the_coordinates_of_all_blocks_alike(model):
    blocks = [model.get_layer(f"block_{i:02d}") for i in range(2)]
    draws = np.array(
        [[float(block.attention.rotary.random_scale(block.rescale_generator)) for block in blocks] for _ in range(8)]
    )
    np.testing.assert_array_equal(draws[:, 0], draws[:, 1])
    assert len(set(draws[:, 0])) == 8 and 0.5 <= draws.min() < 0.8 and 1.3 < draws.max() <= 2


def test_the_factor_multiplies_the_angles():
    """Twice the angles of a grid of two rows, at -1/2 and 1/2, are those at -1 and 1."""
    rotary = keras_vit.layers.RotaryPositions((2, 1))
    x = np.random.default_rng(0).normal(size=(1, 1, 2, 4)).astype("float32")
    first, second = x[..., :2], x[..., 2:]
    angles = 2 * np.pi * np.array([[-1.0, 0.0], [1.0, 0.0]])  # (n, c/2): row, column
    cos, sin = np.cos(angles), np.sin(angles)
    expected = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    np.testing.assert_allclose(rotary(x, scale=2.0), expected, atol=1e-6)
    np.testing.assert_allclose(rotary(x, scale=1.0), rotary(x), atol=1e-6)


def test_only_training_is_random(model):
    images = np.random.default_rng(0).integers(0, 256, (1, 8, 12, 3))
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    for block in ("block_00", "block_01"):
        model.get_layer(block).attention_scale.gamma.assign(np.ones(16))
    one, other = (np.asarray(model(images, training=True)) for _ in range(2))
    assert np.abs(one - other).max() > 1e-6
    np.testing.assert_array_equal(model(images), model(images))
