"""A stem of convolutions before the patches."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.planning.model_counts import forward_flops
from keras_vit.training import AdamW, SoftmaxCrossEntropy

SMALL = {"image_size": 32, "classes": 10, "depth": 1, "width": 32, "heads": 2, "mlp_dim": 64, "pool": "gap"}


@pytest.fixture(scope="module")
def trained(eager_module):
    """Two epochs of 16 images; with the images."""
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/1", conv_stem=(8, 16, 32), **SMALL)
    x = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), dtype="uint8")
    model.compile(AdamW(1e-3), SoftmaxCrossEntropy(), jit_compile=False)
    model.fit(x, np.arange(16) % 10, batch_size=16, epochs=2, verbose=0)
    return model, x


@pytest.mark.extended
def test_strides_set_the_grid_and_the_count_is_that_of_the_formula(trained):
    model, _ = trained
    assert model.grid == (4, 4) and model.spec.stride == (8, 8)
    assert model.spec.conv_strides == (2, 2, 2)
    stem = sum(9 * a * b + 4 * b for a, b in ((3, 8), (8, 16), (16, 32)))
    without = keras_vit.ViT("Ti/1", channels=32, **{**SMALL, "image_size": 4})
    assert model.count_params() == without.count_params() + stem
    strided = keras_vit.ViT("Ti/1", conv_stem=(8, 32), conv_strides=(1, 4), **SMALL)
    assert strided.grid == (8, 8)
    products = 32 * 32 * 9 * 3 * 8 + 8 * 8 * 9 * 8 * 32
    without = keras_vit.ViT("Ti/1", channels=32, **{**SMALL, "image_size": 8})
    assert forward_flops(strided.spec, 32) == forward_flops(without.spec, 8, 32) + 2 * products


@pytest.mark.extended
def test_statistics_of_the_batch_are_the_last_convolutions_moments(trained):
    """After a step from fresh statistics: 0.95 of the start, 0.05 of the batch's own."""
    model = keras_vit.ViT("Ti/1", conv_stem=(8,), **SMALL)
    x = trained[1].astype("float32")
    conv, norm = model.get_layer("stem_conv1"), model.get_layer("stem_norm1")
    output = keras.ops.convert_to_numpy(keras.Model(model.input, conv.output)(x))
    model(x, training=True)
    np.testing.assert_allclose(norm.moving_mean, 0.05 * output.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.moving_variance, 0.95 + 0.05 * output.var((0, 1, 2)), rtol=1e-4)


@pytest.mark.extended
def test_a_file_and_another_size_keep_the_stem_with_its_statistics(trained, tmp_path):
    model, x = trained
    path = str(tmp_path / "model.keras")
    model.save(path)
    np.testing.assert_array_equal(keras_vit.load(path).predict(x, verbose=0), model.predict(x, verbose=0))
    larger = keras_vit.load(path, image_size=48)
    assert larger.grid == (6, 6)
    for name in ("stem_conv1", "stem_norm1", "stem_norm3"):
        for a, b in zip(larger.get_layer(name).get_weights(), model.get_layer(name).get_weights()):
            np.testing.assert_array_equal(a, b)


@pytest.mark.extended
def test_the_residual_form_pools_and_adds_where_the_shape_stays():
    """Against NumPy: convolution, maxima of 2 x 2, normalisation, ReLU, sum."""
    form = {"conv_stem": (8, 16, 16), "conv_strides": (2, 2, 1), "conv_form": "residual"}
    model = keras_vit.ViT("Ti/1", **form, **SMALL)
    assert model.grid == (8, 8)
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("float32")
    maps = {name: model.get_layer(name).output for name in ("stem_relu1", "stem_relu2", "stem_add3")}
    one, two, three = (keras.ops.convert_to_numpy(y) for y in keras.Model(model.input, list(maps.values()))(x))

    def convolved(x, i):
        kernel = model.get_layer(f"stem_conv{i}").kernel.numpy()
        padded, (h, w) = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), x.shape[1:3]
        parts = [padded[:, r : r + h, s : s + w] @ kernel[r, s] for r in range(3) for s in range(3)]
        return sum(parts)

    def rectified(x):
        return np.maximum(x / np.sqrt(1 + 1e-3), 0)  # by running statistics of 0 and 1

    pooled = convolved(one, 2).reshape(2, 8, 2, 8, 2, 16).max((2, 4))
    np.testing.assert_allclose(two, rectified(pooled), atol=1e-4)
    np.testing.assert_allclose(three, two + rectified(convolved(two, 3)), atol=1e-4)
