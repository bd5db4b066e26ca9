"""Every public layer passes Keras' own checks: config, build, symbolic and eager calls, a training step, mixed
precision. Every form of each is in test_all_layers.py.
"""

import pytest
from interpreters import Interpreter
from keras.src.testing import TestCase

from keras_vit import layers

TOKENS = (2, 6, 16)
HEADS = (2, 3, 6, 8)
MAP = (2, 5, 6, 16)
IMAGE = (2, 8, 12, 3)
# {layer: (arguments, input shape, output shape, trainable weights, other weights, seed generators)}.
LAYERS = {
    "AddPositionEmbs": ({"grid": (2, 3)}, TOKENS, TOKENS, 1, 0, 0),
    "AttentionPooling": ({"heads": 2, "mlp_dim": 32}, TOKENS, (2, 16), 15, 0, 0),
    "BatchNormalization": ({}, (2, 8, 6, 16), (2, 8, 6, 16), 2, 2, 0),
    "BottleneckUnit": ({"filters": 32, "strides": 2}, (2, 8, 6, 32), (2, 4, 3, 128), 12, 0, 0),
    "ClassToken": ({}, TOKENS, (2, 7, 16), 1, 0, 0),
    "ContinuousBias": ({"window": (2, 3)}, HEADS, (1, 3, 6, 6), 3, 0, 0),
    "DropPath": ({"rate": 0.5}, TOKENS, TOKENS, 0, 0, 1),
    "Dropout": ({"rate": 0.5}, TOKENS, TOKENS, 0, 0, 1),
    "LayerScale": ({"initial": 0.5}, TOKENS, TOKENS, 1, 0, 0),
    "MeanPooling": ({"prefix": 1}, TOKENS, (2, 16), 0, 0, 0),
    "MlpBlock": ({"mlp_dim": 32}, TOKENS, TOKENS, 4, 0, 0),
    "MultiHeadSelfAttention": ({"heads": 2}, TOKENS, TOKENS, 8, 0, 0),
    "PaletteEncoder": ({"colors": 27, "width": 16}, IMAGE, (2, 96, 16), 1, 1, 0),
    "PatchDropout": ({"rate": 0.5, "prefix": 1}, TOKENS, (2, 3, 16), 0, 0, 1),
    "PatchEncoder": ({"patch_size": (4, 6), "width": 16}, IMAGE, (2, 4, 16), 2, 0, 0),
    "PatchGrid": ({"grid": (1, 5), "prefix": 1}, TOKENS, (2, 1, 5, 16), 0, 0, 0),
    "PatchMerging": ({}, MAP, (2, 3, 3, 32), 3, 0, 0),
    "PixelNormalization": ({"mean": (100.0, 110.0, 120.0), "std": (50.0, 60.0, 70.0)}, IMAGE, IMAGE, 0, 0, 0),
    "PostNormBlock": ({"heads": 2, "mlp_dim": 32}, TOKENS, TOKENS, 16, 0, 0),
    "ReducingBlock": ({"heads": 2, "mlp_dim": 32, "prefix": 1, "merged": 2}, TOKENS, ((2, 4, 16), (2, 4)), 16, 0, 0),
    "RelativeAttention": ({"grid": (2, 3)}, HEADS, (2, 3, 6, 6), 1, 0, 0),
    "RelativeBias": ({"grid": (2, 3)}, HEADS, (1, 3, 6, 6), 1, 0, 0),
    "RotaryPositions": ({"grid": (2, 3)}, HEADS, HEADS, 0, 0, 0),
    "StdConv2D": ({"filters": 8, "kernel_size": 3}, IMAGE, (2, 8, 12, 8), 1, 0, 0),
    "SwinBlock": ({"heads": 2, "mlp_dim": 32, "window": (2, 3)}, MAP, MAP, 17, 0, 0),
    "TokenPooling": ({}, TOKENS, (2, 16), 0, 0, 0),
    "AxialBlock": ({"heads": 2, "mlp_dim": 32, "grid": (2, 3)}, TOKENS, TOKENS, 32, 0, 0),
    "TransformerBlock": ({"heads": 2, "mlp_dim": 32}, TOKENS, TOKENS, 16, 0, 0),
    "WindowAttention": ({"heads": 2, "window": (2, 3), "shift": (1, 1)}, MAP, MAP, 9, 0, 0),
    "WindowTokens": ({"windows": 2, "prefix": 2}, TOKENS, (2, 12, 16), 0, 0, 0),
}


def check(name):
    arguments, shape, output, trainable, others, seeds = LAYERS[name]
    TestCase().run_layer_test(
        getattr(layers, name),
        arguments,
        input_shape=shape,
        expected_output_shape=output,
        expected_num_trainable_weights=trainable,
        expected_num_non_trainable_weights=others,
        expected_num_seed_generators=seeds,
    )


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(layers.__all__))
def test_every_public_layer_passes(name, eagerly):
    assert name in LAYERS, "a new layer needs a row"
    check(name)


def check_all():
    for name in LAYERS:
        check(name)


@pytest.mark.processes
def test_every_public_layer_passes_on_jax():
    with Interpreter("jax") as other:
        other.run(check_all)
