"""What every layer must do: round-trip its config, mixed precision, XLA, and the same numbers on JAX."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter

from keras_vit import layers

TOKENS = (2, 6, 16)
HEADS = (2, 3, 6, 8)
IMAGE = (2, 8, 12, 3)
MAP = (2, 5, 6, 16)
# One row per case: layer, constructor arguments, input shape.
CASES = [
    ("PixelNormalization", {"mean": (100.0, 110.0, 120.0), "std": (50.0, 60.0, 70.0)}, IMAGE),
    ("PatchEncoder", {"patch_size": (4, 6), "width": 16}, IMAGE),
    ("PatchEncoder", {"patch_size": 4, "width": 16, "norm": True, "form": "dense"}, IMAGE),
    ("PaletteEncoder", {"colors": 27, "width": 16}, IMAGE),
    ("PatchGrid", {"grid": (1, 5), "prefix": 1}, TOKENS),
    ("StdConv2D", {"filters": 8, "kernel_size": 7, "strides": 2}, (2, 8, 10, 3)),
    (
        "StdConv2D",
        {"filters": 8, "kernel_size": 3, "strides": 2, "padding": "fixed", "form": "variance"},
        (2, 8, 11, 4),
    ),
    ("BatchNormalization", {"momentum": 0.9}, (2, 8, 6, 16)),
    ("BottleneckUnit", {"filters": 32, "strides": 2}, (2, 8, 6, 32)),
    ("BottleneckUnit", {"filters": 32, "preactivation": True, "remat": True}, (2, 4, 6, 128)),
    ("ClassToken", {"count": 4, "after": 1, "initializer": "normal"}, TOKENS),
    ("AddPositionEmbs", {"grid": (2, 3), "stddev": 0.5}, TOKENS),
    ("AddPositionEmbs", {"grid": (1, 5), "prefix": 1, "kind": "sincos2d"}, TOKENS),
    ("AddPositionEmbs", {"grid": (2, 2), "prefix": 1, "kind": "learned2d", "registers": 1}, TOKENS),
    ("RelativeAttention", {"grid": (1, 4), "prefix": 2}, HEADS),
    ("RelativeBias", {"grid": (2, 2), "prefix": 2}, HEADS),
    ("ContinuousBias", {"window": (2, 3), "pretrained": (4, 4)}, HEADS),
    ("RotaryPositions", {"grid": (2, 2), "prefix": 2}, HEADS),
    ("MultiHeadSelfAttention", {"heads": 2, "positions": "relative", "grid": (1, 5), "prefix": 1}, TOKENS),
    ("MultiHeadSelfAttention", {"heads": 2, "positions": "relative2d", "grid": (2, 3)}, TOKENS),
    (
        "MultiHeadSelfAttention",
        {"heads": 2, "positions": "rope2d", "grid": (2, 2), "prefix": 2, "qk_norm": True},
        TOKENS,
    ),
    ("MultiHeadSelfAttention", {"heads": 3, "head_dim": 5, "qkv_bias": False, "qk_norm": True}, TOKENS),
    ("MlpBlock", {"mlp_dim": 32, "mlp_activation": "gelu_tanh"}, TOKENS),
    ("PostNormBlock", {"heads": 2, "mlp_dim": 32, "mlp_activation": "relu"}, TOKENS),
    ("MlpBlock", {"mlp_dim": 32, "form": "swiglu"}, TOKENS),
    ("LayerScale", {"initial": 0.5}, TOKENS),
    ("Dropout", {"rate": 0.5}, TOKENS),
    ("DropPath", {"rate": 0.5}, TOKENS),
    ("TransformerBlock", {"heads": 2, "mlp_dim": 32, "layer_scale": 0.1, "qk_norm": True, "remat": True}, TOKENS),
    ("TransformerBlock", {"heads": 2, "mlp_dim": 32, "causal": True, "hidden_norm": True, "key_bias": False}, TOKENS),
    ("TransformerBlock", {"heads": 2, "mlp_dim": 32, "windows": 2, "grid": (2, 4), "prefix": 1}, (2, 12, 16)),
    (
        "TransformerBlock",
        {"heads": 2, "mlp_dim": 32, "pattern": "window(3)", "grid": (4, 5), "prefix": 2},
        (2, 22, 16),
    ),
    ("MultiHeadSelfAttention", {"heads": 2, "pattern": "strided", "grid": (2, 3)}, TOKENS),
    ("MultiHeadSelfAttention", {"heads": 2, "pattern": "fixed(4, 1)", "grid": (1, 5), "prefix": 1}, TOKENS),
    ("MultiHeadSelfAttention", {"heads": 2, "pattern": "local(3)", "grid": (2, 3), "causal": True}, TOKENS),
    ("AxialBlock", {"heads": 2, "mlp_dim": 32, "grid": (2, 2), "prefix": 2, "remat": True}, TOKENS),
    ("WindowTokens", {"windows": 2, "prefix": 2}, TOKENS),
    ("ReducingBlock", {"heads": 2, "mlp_dim": 32, "prefix": 1, "merged": 2}, TOKENS),
    ("ReducingBlock", {"heads": 2, "mlp_dim": 32, "kept": 4, "merged": 1, "class_token": False, "remat": True}, TOKENS),
    ("PatchMerging", {"norm_first": False}, MAP),
    ("WindowAttention", {"heads": 2, "window": 4, "shift": (2, 2), "roll_first": True}, MAP),
    ("SwinBlock", {"heads": 2, "mlp_dim": 32, "window": (3, 4), "shift": (1, 2), "remat": True}, MAP),
    ("SwinBlock", {"heads": 2, "mlp_dim": 32, "window": 2, "v2": True, "pretrained_window": 4}, MAP),
    ("PatchDropout", {"rate": 0.5, "prefix": 1}, TOKENS),
    ("TokenPooling", {"index": 1}, TOKENS),
    ("MeanPooling", {"prefix": 1}, TOKENS),
    ("AttentionPooling", {"heads": 2, "mlp_dim": 32}, TOKENS),
]
IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]


def build(case, **kwargs):
    """The case's layer, built."""
    name, arguments, shape = case
    layer = getattr(layers, name)(**arguments, **kwargs)
    layer.build(shape)
    return layer


def make(case, layer=None, **kwargs):
    """The case's layer, or the one given, with reproducible random weights; and its input."""
    shape = case[2]
    layer = build(case, **kwargs) if layer is None else layer
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        if "seed" not in weight.path:
            value = 0.3 * rng.normal(size=weight.shape)
            weight.assign(0.1 + np.abs(value) if weight.path.endswith("variance") else value)
    scale = 255.0 if shape == IMAGE else 1.0
    return layer, (scale * rng.random(shape)).astype("float32")


def run(layer, x, **options):
    """The layer's output; of several the first."""
    return keras.tree.flatten(layer(x, **options))[0]


def trained(layer, x):
    """As `run`, in training."""
    return run(layer, x, training=True) if layer._call_has_training_arg else run(layer, x)


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_config_round_trip_rebuilds_the_same_layer(case):
    layer, x = make(case)
    config = layer.get_config()
    json.dumps(config)
    copy = type(layer).from_config(config)
    assert copy.get_config() == config
    copy.build(x.shape)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(run(copy, x), run(layer, x))
    shapes = keras.tree.map_structure(lambda y: tuple(y.shape), layer(x))
    assert layer.compute_output_shape(x.shape) == shapes
    for given, value in case[1].items():
        if given != "initializer":
            assert config[given] == value or tuple(config[given]) == (value, value)


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_mixed_precision_stays_near_float32_and_has_gradients(case):
    full, x = make(case)
    mixed, expected = make(case, dtype="mixed_bfloat16")[0], np.asarray(run(full, x))
    y = run(mixed, x)
    assert y.dtype == run(mixed, keras.KerasTensor(x.shape)).dtype == "bfloat16"
    np.testing.assert_allclose(tf.cast(y, "float32"), expected, atol=0.03 * max(1.0, np.abs(expected).max()))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.cast(trained(mixed, tf.constant(x)), "float32")))
    weights = [weight.value for weight in mixed.trainable_weights]
    for gradient in tape.gradient(loss, weights, unconnected_gradients="zero"):
        assert gradient.dtype == "float32" and np.isfinite(tf.convert_to_tensor(gradient)).all()


@pytest.mark.extended
def test_xla_takes_every_form_of_a_layer():
    """Forward and backward, in one program for all cases. XLA has each operation, with these shapes; that it computes
    the same numbers, JAX shows below.
    """
    made = [make(case) for case in CASES]

    def step(xs):
        found = []
        for (layer, _), x in zip(made, xs):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(trained(layer, x)))
            sources = [x, *(weight.value for weight in layer.trainable_weights)]
            gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
            found.append((run(layer, x), [tf.convert_to_tensor(gradient) for gradient in gradients]))
        return found

    lowered = tf.function(step, jit_compile=True, autograph=False).experimental_get_compiler_ir
    assert lowered([tf.constant(x) for _, x in made])(stage="hlo_serialized")


def outputs_on_jax():
    """The output of each case: one compiled function, and no initial values, of which each would be compiled too."""
    import jax

    with keras.StatelessScope(initialize_variables=False):
        built = [build(case) for case in CASES]
    made = [make(case, layer) for case, layer in zip(CASES, built)]
    found = jax.jit(lambda xs: [run(layer, x) for (layer, _), x in zip(made, xs)])([x for _, x in made])
    return [np.asarray(y).tolist() for y in found]


@pytest.mark.processes
def test_jax_gives_the_same_numbers():
    """The same weights and inputs on the JAX backend: within 1e-5."""
    with Interpreter("jax") as jax:
        for case, name, theirs in zip(CASES, IDS, jax.run(outputs_on_jax), strict=True):
            layer, x = make(case)
            np.testing.assert_allclose(theirs, run(layer, x), atol=1e-5, rtol=1e-5, err_msg=name)


def test_every_public_layer_is_in_the_cases():
    assert {name for name, _, _ in CASES} == set(layers.__all__)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: layers.PatchEncoder(5, 16).build((None, 8, 12, 3)),
            "not divisible by patches of 5x5. The nearest size",
        ),
        (lambda: layers.PatchEncoder(4, 16, form="fft"), 'unknown form "fft". Valid: conv, dense'),
        (lambda: layers.PatchEncoder(4, 16).build((None, None, None, 3)), "fixed size"),
        (lambda: layers.PatchEncoder((4, 4, 4), 16), "pair"),
        (lambda: layers.PaletteEncoder(1, 16), "colors must be an integer of 2 or more, got 1"),
        (lambda: layers.PaletteEncoder(8, 16, autocast=True), "would round the pixels"),
        (lambda: layers.AddPositionEmbs((2, 3), kind="rotary"), "Valid: learned, learned2d, sincos1d, sincos2d"),
        (lambda: layers.AddPositionEmbs((2, 3), kind="sincos1d").build((None, 6, 15)), "need an even width, got 15"),
        (
            lambda: layers.RelativeBias((2, 3), prefix=1).build((None, 2, 6, 8)),
            "RelativeBias: got 6 tokens, expected 7",
        ),
        (lambda: layers.RotaryPositions((2, 3)).build((None, 2, 6, 6)), "divisible by 4, got 6"),
        (
            lambda: layers.MultiHeadSelfAttention(2, positions="rope", grid=2),
            'unknown positions "rope". Did you mean "rope2d".* Valid: relative, relative2d, rope2d',
        ),
        (lambda: layers.TransformerBlock(2, 32, positions="rope2d"), "need the grid"),
        (
            lambda: layers.MultiHeadSelfAttention(2, positions="relative", grid=2).build((None, None, 16)),
            "need a fixed number of tokens",
        ),
        (
            lambda: layers.ReducingBlock(2, 32, merged=1, prefix=1, positions="rope2d", grid=2),
            "need all patches in their places",
        ),
        (lambda: layers.AddPositionEmbs((2, 3), kind="sincos2d").build((None, 6, 18)), "divisible by 4"),
        (lambda: layers.MultiHeadSelfAttention(3).build((None, 6, 16)), "width of 16 does not divide into 3 heads"),
        (lambda: layers.MlpBlock(32, mlp_activation="fast"), "Valid: gelu, gelu_tanh"),
        (lambda: layers.StdConv2D(8, padding="valid"), 'unknown padding "valid". Valid: same, fixed'),
        (lambda: layers.BottleneckUnit(24), "multiple of 32 for group normalisation, got 24"),
        (
            lambda: layers.ReducingBlock(2, 32, merged=3, prefix=1).build((None, 6, 16)),
            "of 5 patches 5 are to be kept and 3 merged",
        ),
        (
            lambda: layers.ReducingBlock(2, 32, merged=1, prefix=1).build((None, None, 16)),
            "number of tokens must be fixed",
        ),
        (lambda: layers.ReducingBlock(2, 32, merged=1), "needs a prefix of at least that token"),
        (lambda: layers.PatchDropout(0.5, prefix=6).build((None, 6, 16)), "more than the prefix of 6"),
        (lambda: layers.Dropout(1.0), r"rate must be in \[0, 1\)"),
        (lambda: layers.ClassToken(0), "count >= 1"),
        (lambda: layers.PixelNormalization(std=0), "std must be positive"),
        (lambda: layers.PixelNormalization(mean=(1, 2)).build((None, 8, 8, 3)), "mean has 2 values, the image has 3"),
        (lambda: layers.TransformerBlock(2, 32, dropuot=0.1), "dropuot"),
    ],
)
def test_mistakes_are_clear_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_patches_of_integers_are_those_of_floats():
    layer, images = layers.PatchEncoder(4, 8), np.arange(2 * 8 * 8 * 3, dtype="uint8").reshape(2, 8, 8, 3)
    np.testing.assert_array_equal(layer(images), layer(images.astype("float32")))


def test_keras_policies_reach_the_sublayers():
    keras.config.set_dtype_policy("mixed_bfloat16")
    block = layers.TransformerBlock(2, 32)
    block.build((None, 6, 16))
    assert {layer.compute_dtype for layer in block._flatten_layers()} == {"bfloat16"}
