"""Post-norm blocks, activations, models without a final normalisation, and a hidden layer before the head."""

import keras
import numpy as np
import pytest
import scipy.special

import keras_vit
from keras_vit import layers
from keras_vit.inspection import attention_maps
from keras_vit.layers.blocks.mlp import ACTIVATIONS
from keras_vit.planning.model_counts import count, layer_counts, parameters

SIZE = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 24}
ORDER = {"norm_first": False, "mlp_activation": "relu", "final_norm": False, "pre_logits": 8}
IMAGES, LABELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype="uint8"), np.arange(6) % 3
FORMULAS = {
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * scipy.special.expit(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * scipy.special.expit(x),
    "tanh": np.tanh,
}


def vit(**fields):
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/4", image_size=8, classes=3, **SIZE, **fields)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=model.get_layer("head").kernel.shape))
    return model


@pytest.fixture(scope="module")
def post_norm():
    return vit(**ORDER)


def values(layer, name):
    return next(weight.numpy() for weight in layer.weights if weight.path.endswith(name))


def norm(x, layer):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.epsilon)
    return x * values(layer, "gamma") + values(layer, "beta")


def dense(x, layer):
    return x @ values(layer, "kernel") + values(layer, "bias")


def test_a_post_norm_block_normalises_each_sum():
    rng, block = np.random.default_rng(1), layers.PostNormBlock(2, 24, mlp_activation="relu", epsilon=1e-5)
    x = rng.normal(size=(2, 5, 16)).astype("float32")
    block.build(x.shape)
    for weight in block.weights:
        weight.assign(rng.normal(size=weight.shape))
    q, k, v = (
        dense(x, getattr(block.attention, name)).reshape(2, 5, 2, 8).transpose(0, 2, 1, 3)
        for name in ("query", "key", "value")
    )
    weights = scipy.special.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(8), -1)
    y = dense((weights @ v).transpose(0, 2, 1, 3).reshape(2, 5, 16), block.attention.out)
    y = norm(x + y, block.attention_norm)
    y = norm(y + dense(np.maximum(dense(y, block.mlp.hidden), 0), block.mlp.out), block.mlp_norm)
    np.testing.assert_allclose(block(x), y, atol=1e-4)
    np.testing.assert_allclose(block.attention_weights(x), weights, atol=1e-5)


def test_activations_are_their_formulas():
    x = np.linspace(-4, 4, 33, dtype="float32")
    assert {*ACTIVATIONS, "tanh"} == FORMULAS.keys()
    for name, function in ACTIVATIONS.items():
        for training in (False, True):
            np.testing.assert_allclose(function(x, training), FORMULAS[name](x), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_hidden_layer_before_the_head(name):
    model = vit(pre_logits=8, pre_logits_activation=name)
    pooled = keras.Model(model.input, model.get_layer("pool").output)(IMAGES).numpy()
    expected = FORMULAS[name](dense(pooled, model.get_layer("pre_logits")))
    np.testing.assert_allclose(keras.Model(model.input, model.features)(IMAGES), expected, atol=1e-5)


@pytest.mark.extended
def test_they_are_counted_and_inspected(post_norm):
    model = post_norm
    rows = layer_counts(model.spec, 8, 3)
    assert sum(row.parameters for row in count(model)) == model.count_params() == parameters(rows)
    names = [layer.name for layer in model.layers[1:]]
    assert "encoder_norm" not in names and names == [row.name for row in rows]
    assert attention_maps(model, IMAGES).shape == (6, 2, 2)
    tokens = keras.Model(model.input, model.tokens)(IMAGES).numpy()
    np.testing.assert_allclose(tokens, norm(tokens, model.get_layer("block_01").mlp_norm), atol=2e-2)


@pytest.mark.extended
def test_they_train_and_transfer(post_norm, tmp_path):
    model = post_norm
    model.compile(keras.optimizers.SGD(0.1), keras_vit.training.SoftmaxCrossEntropy(), jit_compile=False)
    first, *_, last = model.fit(IMAGES, LABELS, epochs=4, verbose=0, shuffle=False).history["loss"]
    assert last < first
    keras_vit.save(model, tmp_path / "model.keras")
    new = keras_vit.load(tmp_path / "model.keras", classes=5, head="reset", image_size=12)
    assert (new.spec.norm_first, new.spec.mlp_activation, new.spec.pre_logits) == (False, "relu", None)
    with pytest.raises(ValueError, match="norm_first=True: the weights fix norm_first=False"):
        keras_vit.load(tmp_path / "model.keras", norm_first=True)


def test_earlier_names_are_read():
    assert vit(gelu="tanh", mlp_form="gelu").spec == vit(mlp_activation="gelu_tanh").spec
    block = layers.TransformerBlock(2, 24, mlp_activation="gelu_tanh").get_config()
    old = {name: value for name, value in block.items() if name not in ("mlp_activation", "mlp_form")}
    again = layers.TransformerBlock.from_config({**old, "gelu": "tanh", "mlp_form": "gelu"})
    assert again.get_config() == block
