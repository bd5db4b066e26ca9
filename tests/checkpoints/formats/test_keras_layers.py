"""ViTs of Keras' own layers give the logits of the model that was saved, or are refused by the layer that does not fit.

reading/test_foreign_files.py has keras.io's example as published.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_vit

PIXELS = np.random.default_rng(0).uniform(0, 255, (2, 16, 16, 3)).astype("float32")


class Patches(layers.Layer):
    """As in keras.io's "Image classification with Vision Transformer"; nothing registers it."""

    def __init__(self, patch_size, **options):
        super().__init__(**options)
        self.patch_size = patch_size

    def call(self, images):
        patches = ops.image.extract_patches(images, self.patch_size)
        return ops.reshape(patches, (-1, patches.shape[1] * patches.shape[2], patches.shape[3]))


class PatchEncoder(layers.Layer):
    def __init__(self, count, width, **options):
        super().__init__(**options)
        self.count = count
        self.projection, self.position_embedding = layers.Dense(width), layers.Embedding(count, width)

    def call(self, patches):
        return self.projection(patches) + self.position_embedding(ops.arange(self.count)[None])


class ClassToken(layers.Layer):
    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token")

    def call(self, x):
        return ops.repeat(self.token, ops.shape(x)[0], axis=0)


class Positions(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(1, *shape[1:]), name="table")

    def call(self, x):
        return x + self.table


class OwnBlock(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(2, 4)

    def call(self, x):
        return x + self.attention(x, x)


def example(x):
    """keras.io's embedding: patches of 4 pixels, width 8."""
    return PatchEncoder(16, 8)(Patches(4)(x))


def convolution(x):
    """A convolution, a class token and positions."""
    x = layers.Reshape((16, 8))(layers.Conv2D(8, 4, 4)(x))
    return Positions()(layers.Concatenate(axis=1)([ClassToken()(x), x]))


def pre_norm(x, activation=keras.activations.gelu, epsilon=1e-6, last=None, **options):
    y = layers.LayerNormalization(epsilon=epsilon)(x)
    x = layers.Add()([layers.MultiHeadAttention(2, 8, dropout=0.1, **options)(y, y), x])
    y = layers.Dense(16, activation=activation)(layers.LayerNormalization(epsilon=epsilon)(x))
    return layers.Add()([layers.Dropout(0.1)(layers.Dense(8, activation=last)(layers.Dropout(0.1)(y))), x])


def post_norm(x):
    """With separate ReLU layers, sums without layers and an MLP in a Sequential."""
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(layers.MultiHeadAttention(4, 2, use_bias=False)(x, x)))
    return layers.LayerNormalization()(x + keras.Sequential([layers.Dense(12), layers.ReLU(), layers.Dense(8)])(x))


def mean(x):
    return layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))


def normed_mean(x):
    return layers.LayerNormalization(epsilon=1e-6)(layers.GlobalAveragePooling1D()(x))


def augmentation(x):
    """As in the example: the statistics of the training images, and operations that prediction leaves out."""
    normalise = layers.Normalization(mean=(120, 110, 100), variance=(3600, 4000, 4400))
    return keras.Sequential([normalise, layers.RandomFlip(), layers.RandomRotation(0.1)])(x)


def divided(x):
    return layers.Rescaling(1 / 255)(x)


def built(scale=divided, embed=example, block=pre_norm, pool=mean, head=lambda x: layers.Dense(3)(x)):
    """A model of two blocks, with random weights."""
    inputs = keras.Input((16, 16, 3))
    model = keras.Model(inputs, head(pool(block(block(embed(scale(inputs)))))))
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


def softmax(x):
    return layers.Dense(3, "softmax")(x)


def hidden(x):
    return layers.Dense(3)(layers.Dropout(0.5)(layers.Dense(6, "tanh")(x)))


MODELS = {
    "keras.io": {"scale": augmentation},
    "post-norm, class token": {
        "embed": convolution,
        "block": post_norm,
        "pool": lambda x: x[:, 0],
        "head": softmax,
    },
    "hidden head, norm after the mean": {
        "scale": lambda x: layers.Rescaling(1 / 127.5, -1)(x),
        "embed": convolution,
        "block": lambda x: pre_norm(x, "relu"),
        "pool": normed_mean,
        "head": hidden,
    },
}


@pytest.mark.extended
@pytest.mark.parametrize("form", ["keras", "h5"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_keras_layers_load(name, form, tmp_path):
    theirs = built(**MODELS[name])
    theirs.save(tmp_path / f"m.{form}")
    ours = keras_vit.load(tmp_path / f"m.{form}")
    assert ours.activation == ("softmax" if name == "post-norm, class token" else None)
    outputs = ops.softmax(ours(PIXELS)) if ours.activation else ours(PIXELS)
    np.testing.assert_allclose(outputs, theirs(PIXELS, training=False), atol=1e-5)


REFUSED = {
    r"has epsilon 0.001, others 1e-06": {"block": lambda x: pre_norm(x, epsilon=1e-3)},
    r"expected the embedding of patches, got the layer .*LayerNormalization": {
        "embed": lambda x: layers.LayerNormalization(epsilon=1e-6)(convolution(x))
    },
    r"expected the last block, for a ViT has one normalisation": {
        "pool": lambda x: normed_mean(layers.LayerNormalization(epsilon=1e-6)(x))
    },
    r"expected a residual sum, got the layer .*OwnBlock.*, with code that is not in the file": {
        "block": lambda x: OwnBlock()(x)
    },
    r"where x cannot be pixels(.|\n)*load\(.*mean=\?, std=\?\)": {"scale": lambda x: x},
    r"pool: what the head reads(.|\n)*load\(.*pool=\?\)": {
        "pool": lambda x: layers.Lambda(lambda t: t[:, 0], output_shape=(8,))(x)
    },
    r"are not a whole number of patches": {"embed": lambda x: PatchEncoder(9, 8)(Patches(5)(x))},
}


@pytest.mark.extended
@pytest.mark.parametrize("message", REFUSED)
def test_what_a_vit_lacks_or_the_graph_does_not_show_is_named(message, tmp_path):
    built(**REFUSED[message]).save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path / "m.keras")


@pytest.mark.extended
def test_what_the_graph_does_not_show_is_passed(tmp_path):
    theirs = built(lambda x: x)
    theirs.save(tmp_path / "m.keras")
    ours = keras_vit.load(tmp_path / "m.keras", mean=0, std=255)
    np.testing.assert_allclose(ours(PIXELS), theirs(PIXELS / 255), atol=1e-5)
