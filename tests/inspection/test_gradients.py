"""Maps of a class: Grad-CAM against its equation and finite differences, on every kind of model."""

import keras
import numpy as np
import pytest
from interpreters import Interpreter

import keras_vit
from keras_vit.inspection import class_maps, grad_cam, head_statistics, layer_similarity
from keras_vit.inspection.model_page import inspect_model
from keras_vit.models import taps


def test_grad_cam_is_its_equation():
    rng = np.random.default_rng(0)
    features, gradients = rng.normal(size=(2, 2, 2, 3, 4))
    expected = np.zeros((2, 2, 3))
    for b in range(2):
        for i in range(2):
            for j in range(3):
                expected[b, i, j] = max(0, sum(gradients[b, :, :, d].mean() * features[b, i, j, d] for d in range(4)))
        expected[b] /= expected[b].max()
    np.testing.assert_allclose(grad_cam(features, gradients), expected, atol=1e-10)
    assert grad_cam(-np.ones((1, 2, 2, 3)), np.ones((1, 2, 2, 3))).max() == 0  # all speaks against it


def test_gradients_are_those_of_finite_differences(tiny, pixels):
    """The map made of differences of the logit when a token that enters the last block is moved."""
    model, x = tiny(), pixels[:1].astype("float32")
    front, back = taps.split(model, lambda encoder: encoder.get_layer("block_01").input)
    tokens = np.asarray(front(x), "float32")  # (1, 7, 16)
    step, gradients = 1e-2, np.zeros((6, 16))
    moved = np.repeat(tokens, 2 * 96, axis=0)
    for i in range(96):
        for half, sign in enumerate((1, -1)):
            moved[2 * i + half, 1 + i // 16, i % 16] += sign * step
    logits = np.asarray(back(moved))[:, 3].reshape(96, 2)
    gradients = ((logits[:, 0] - logits[:, 1]) / (2 * step)).reshape(1, 2, 3, 16)
    expected = grad_cam(tokens[:, 1:].reshape(1, 2, 3, 16), gradients)
    np.testing.assert_allclose(class_maps(model, x, 3), expected, atol=5e-3)


def test_before_a_mean_it_is_the_head_s_own_column_of_weights():
    """A BiT's head takes the mean of the last feature map: the gradient is the kernel's column, and the map the class
    activation map.
    """
    model = keras_vit.BiT("R50x1", image_size=64, classes=3, units=(1,), width_factor=0.5)
    kernel = np.random.default_rng(0).normal(size=(128, 3)).astype("float32")
    model.get_layer("head").kernel.assign(kernel)
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype("float32")
    # (b, h, w)
    maps = np.maximum(np.asarray(keras_vit.Model(model.input, model.feature_map())(images)) @ kernel[:, 1], 0)
    np.testing.assert_allclose(class_maps(model, images, 1), maps / maps.max((1, 2), keepdims=True), atol=1e-5)
    assert class_maps(model, images, 1, block=0).shape == (2, 16, 16)


@pytest.mark.extended
@pytest.mark.parametrize(
    "options",
    [{"registers": 2, "distillation_token": True}, {"pool": "map"}, {"depth": 1, "pool": "gap", "fc_norm": True}],
)
def test_maps_are_on_the_patch_grid_whatever_the_batch(tiny, pixels, options):
    model = tiny(**options)
    maps = class_maps(model, pixels, [0, 1, 2, 3])
    assert maps.shape == (4, 2, 3) and np.isfinite(maps).all()
    np.testing.assert_allclose(class_maps(model, pixels, [0, 1, 2, 3], batch_size=3), maps, atol=1e-5)
    np.testing.assert_allclose(class_maps(model, pixels[2:3], 2)[0], maps[2], atol=1e-5)


@pytest.mark.extended
def test_models_built_on_ours_are_cut_in_two(tiny, pixels):
    vit = tiny()
    expected = class_maps(vit, pixels, 2)
    image = keras.Input((8, 12, 3))
    nested = keras_vit.Model(image, vit(image))
    np.testing.assert_allclose(class_maps(nested, pixels, 2), expected, atol=1e-6)
    outer = keras_vit.Model(other := keras.Input((8, 12, 3)), keras.layers.Dense(3)(nested(other)))
    front, back = taps.split(outer, lambda encoder: encoder.get_layer("block_00").output)
    x = pixels.astype("float32")
    np.testing.assert_allclose(back(front(x)), outer(x), atol=1e-5)
    assert class_maps(outer, pixels, 1).shape == (4, 2, 3)
    probable = keras_vit.Model(vit.input, keras.layers.Softmax()(vit.output))
    assert class_maps(probable, pixels, 2).max() <= 1
    beside = keras_vit.Model(
        image, keras.layers.Dense(2)(keras.layers.Concatenate()([vit(image), keras.layers.Flatten()(image)]))
    )
    with pytest.raises(ValueError, match="depends on more than the outputs of its ViT"):
        class_maps(beside, pixels, 0)


def test_mistakes(tiny, pixels):
    model = tiny()
    with pytest.raises(
        ValueError, match="block=-1: after it, no patch influences the output, which reads only the class token"
    ):
        class_maps(model, pixels, 0, block=-1)
    with pytest.raises(ValueError, match="one output per class"):
        class_maps(tiny(classes=None).with_head(keras.layers.Conv2D(5, 1), on="feature_map"), pixels, 2)
    with pytest.raises(ValueError, match="block=2: the model has blocks 0 to 1"):
        class_maps(model, pixels, 0, block=2)
    for classes in (5, -1, [0, 1], 0.5):
        with pytest.raises(ValueError, match="expected one class for all images or one for each of 4, from 0 to 4"):
            class_maps(model, pixels, classes)


@pytest.mark.parametrize("dtype", ["mixed_float16", "int8"])
def test_in_16_bits_and_quantised_the_map_is_about_the_same(tiny, pixels, dtype):
    expected = class_maps(tiny(), pixels, 1)
    model = tiny(dtype=None if dtype == "int8" else dtype)
    if dtype == "int8":
        model.quantize("int8")
    np.testing.assert_allclose(class_maps(model, pixels, 1), expected, atol=0.1)


def measured_here(path, images):
    """What is measured of a saved model on the backend of this process, as lists."""
    model, x = keras_vit.load(path), np.load(images)
    statistics = head_statistics(model, x)
    found = class_maps(model, x, 1), statistics.distance, statistics.entropy, layer_similarity(model, x)
    return [keras.backend.backend(), *(values.tolist() for values in found)]


@pytest.mark.processes
def test_jax_measures_the_same(tiny, pixels, tmp_path):
    tiny(registers=1, depth=1).save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", pixels)
    arguments = str(tmp_path / "m.keras"), str(tmp_path / "x.npy")
    with Interpreter("jax") as jax:
        there = jax.run(measured_here, *arguments)
    here = measured_here(*arguments)
    assert (here[0], there[0]) == ("tensorflow", "jax")
    for ours, theirs in zip(here[1:], there[1:], strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-3)


@pytest.mark.parametrize("options", [{"token_merging": 1}, {"patch_dropout": 0.5}])
def test_maps_of_a_model_without_its_whole_grid_are_refused(tiny, pixels, options):
    model = tiny(**options)
    for look in (lambda: class_maps(model, pixels, 0), lambda: inspect_model(model, pixels, list("abcd"))):
        with pytest.raises(
            ValueError, match="merges or leaves out patches.*Load it with token_merging=None and patch_dropout=0"
        ):
            look()
