"""Pixels are checked where a model normalises them, behind the layers before it; what prepares images follows."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from small_models import data

import keras_vit
from keras_vit.fit.checks.inputs import InputChecks
from keras_vit.fit.checks.marked import plain_errors
from keras_vit.fit.checks.pixels import InputRange

X, Y = data(8)
FLOATS = X.astype("float32")


@pytest.fixture(autouse=True)
def quick(eagerly):
    """Here nothing depends on tracing."""


@pytest.fixture(scope="module")
def vit(tiny):
    """vit(mean=..., std=...): a tiny ViT, made once; tests do not change it."""
    return functools.cache(functools.partial(tiny, depth=1))


@pytest.fixture
def behind(vit):
    """Makes a model of a ViT behind layers: behind(function of images, shape=..., mean=..., ...)."""

    def make(front, shape=(8, 12, 3), **kwargs):
        inputs = keras.Input(shape, name="image")
        return keras_vit.Model(inputs, vit(**kwargs)(front(inputs)))

    return make


def check(model, x):
    """Checks arrays, and a dataset of them."""
    InputChecks.of(model).arrays(x)
    with plain_errors():
        list(InputChecks.of(model).dataset(tf.data.Dataset.from_tensor_slices(x).batch(4)))


def refused(model, x, message):
    with pytest.raises(ValueError, match=message):
        InputChecks.of(model).arrays(x)
    with pytest.raises(ValueError, match=message), plain_errors():
        list(InputChecks.of(model).dataset(tf.data.Dataset.from_tensor_slices(x).batch(4)))


KEEPING = {
    "Resizing": layers.Resizing(8, 12),
    "RandomFlip": layers.RandomFlip(),
    "CenterCrop": layers.CenterCrop(8, 12),
    "RandomBrightness": layers.RandomBrightness(0.1),
    "Sequential": keras.Sequential([layers.RandomRotation(0.1), layers.RandomContrast(0.1)]),
    "Pipeline": layers.Pipeline([layers.RandomTranslation(0.1, 0.1), layers.RandAugment()]),
    "operations": lambda x: keras.ops.flip(keras.ops.image.resize(x, (8, 12)), axis=2)[..., ::-1],
    "nested": keras.Sequential([keras.Sequential([layers.Rescaling(1 / 255), layers.Rescaling(255.0)])]),
    "arithmetic": lambda x: (1 - x / 255) * 255,
    "Lambda": layers.Lambda(lambda x: x[:, ::-1]),
}


@pytest.mark.extended
@pytest.mark.parametrize("front", KEEPING.values(), ids=KEEPING)
def test_layers_that_keep_the_range_keep_the_check(behind, front):
    model = behind(front)
    check(model, FLOATS)
    check(model, X)
    refused(model, FLOATS / 255, "look normalised|almost no contrast")


SCALES = {
    # front, the ViT's mean and std, the range that the whole model takes
    "to 255": (layers.Rescaling(255.0), 127.5, (0, 1)),
    "from -1..1": (layers.Rescaling(127.5, 127.5), 127.5, (-1, 1)),
    "to 1": (layers.Rescaling(1 / 255), 0.5, (0, 255)),
    "by an operation": (lambda x: x / 255.0, 0.5, (0, 255)),
    "by channels": (layers.Normalization(mean=[10.0, 20, 30], variance=[1.0, 4, 9], invert=True), 0.5, None),
    "16 bits": (layers.Rescaling(255 / 65535), 127.5, (0, 65535)),
}


@pytest.mark.extended
@pytest.mark.parametrize(["front", "half", "ends"], SCALES.values(), ids=SCALES)
def test_layers_that_change_the_range_are_computed(behind, front, half, ends):
    model = behind(front, mean=half, std=half)
    if ends is None:
        [scale] = InputChecks.of(model).scales["image"]
        low, high = scale.expected
        np.testing.assert_allclose((low, high), ((-10, -10, -10), (-9, -9.5, -29 / 3)), rtol=1e-5)
        return
    right = (FLOATS / 255 * (ends[1] - ends[0]) + ends[0]).astype("float32")
    check(model, right)
    for wrong in (FLOATS / 255, FLOATS / 127.5 - 1, FLOATS, FLOATS * 257):
        if not np.allclose((wrong.min(), wrong.max()), (right.min(), right.max()), rtol=0.02):
            if wrong.max() > 2 or not (ends[0] <= 0 and ends[1] <= 1):
                refused(model, wrong, "of the model: the values of the first batch")
    if ends != (0, 255):
        refused(model, X, "of the model: the values of the first batch")


@pytest.mark.extended
def test_a_layer_that_makes_right_pixels_wrong_is_named(behind):
    model = behind(layers.Rescaling(1 / 255, name="to_1"))
    text = (
        r"look normalised behind the layer to_1 of the model: the values of the first batch are in \[\d+, 255\], and in"
        r" \[\S+, 1\] where the model normalises them. Expected there: pixels 0..255. Leave the layer to_1 out"
    )
    refused(model, FLOATS, text)
    refused(model, X, text)
    model = behind(layers.Normalization(mean=[123.0, 117, 104], variance=[3364.0, 3249, 3249], name="imagenet"))
    refused(model, FLOATS, "look normalised behind the layer imagenet")
    twice = behind(lambda x: layers.Rescaling(1 / 255)(layers.Rescaling(1 / 255)(x)), mean=0.5, std=0.5)
    for x in (X, FLOATS):
        refused(twice, x, "almost no contrast behind the layers rescaling")


DOUBLE = {
    "to 1": (layers.Rescaling(1 / 255, name="front"), True),
    "to -1..1": (layers.Rescaling(1 / 127.5, -1, name="front"), True),
    "ImageNet": (layers.Normalization(mean=[123.0, 117, 104], variance=[3364.0, 3249, 3249], name="front"), True),
    "to 255": (layers.Rescaling(255.0, name="front"), False),
    "from 16 bits": (layers.Rescaling(255 / 65535, name="front"), False),
}


@pytest.mark.parametrize(["front", "is_double"], DOUBLE.values(), ids=DOUBLE)
def test_normalising_twice_warns_in_a_plain_keras_model(vit, front, is_double):
    # With XLA or on JAX a plain keras.Model or Sequential does not check its data, and trains on almost black images.
    inputs = keras.Input((8, 12, 3))
    for build in (
        lambda: keras.Sequential([inputs, front, vit(classes=None), layers.Dense(4)]),
        lambda: keras.Model(inputs, vit()(front(inputs))),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            build()
        texts = [str(each.message) for each in caught]
        assert len(texts) == is_double
        assert all(text.startswith('Leave the layer front out: "vit" normalises pixels 0..255') for text in texts)
        assert all("Sequential only in graphs of TensorFlow without XLA" in text for text in texts)


def test_normalising_twice_does_not_warn_where_the_pixels_are_right(tiny):
    inputs, front = keras.Input((8, 12, 3)), layers.Rescaling(1 / 255)
    unchecked = tiny(depth=1)
    unchecked.check_pixels = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (unchecked, tiny(depth=1, mean=0.5, std=0.5), tiny(depth=1, mean=0, std=1)):
            model(front(inputs))


def test_normalising_layers_before_a_model_that_does_not(behind):
    front = layers.Normalization(mean=[123.0, 117, 104], variance=[3364.0, 3249, 3249])
    model = behind(front, mean=0, std=1)
    for x in (FLOATS, X, X // 100):
        check(model, x)
    refused(model, FLOATS / 255, "almost no contrast behind the layer normalization")


def test_an_augmentation_for_another_value_range_is_refused(behind):
    model = behind(layers.RandAugment(value_range=(0, 1), name="augment"))
    message = (
        r'"augment" clips pixels to its range \(value_range\), which is \[0, 1\] where.*expects pixels 0..255 there'
    )
    with pytest.raises(ValueError, match=message):
        model.predict(FLOATS, verbose=0)
    check(behind(lambda x: layers.Rescaling(255.0)(layers.RandomContrast(0.1, value_range=(0, 1))(x))), FLOATS / 255)
    model.check_pixels = False
    check(model, FLOATS)
    check(behind(lambda x: keras.ops.clip(x, 0, 255)), FLOATS)
    with pytest.warns(UserWarning, match="The range of the pixels cannot be checked"):
        InputChecks.of(behind(lambda x: keras.ops.clip(x, 0, 1)))


def test_what_hides_the_range_is_said_once(behind):
    model = behind(layers.Conv2D(3, 1, name="mix"), shape=(8, 12, 4))
    x = np.zeros((2, 8, 12, 4), "float32")
    with pytest.warns(UserWarning, match='the effect of the layer "mix" on them.*model.check_pixels = False'):
        model.predict(x, verbose=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The range of the pixels")
        model.predict(x, verbose=0)
        silent = behind(layers.Conv2D(3, 1), shape=(8, 12, 4))
        silent.check_pixels = False
        silent.predict(x, verbose=0)
        inputs = keras.Input((8, 12, 4))  # normalises nothing: there is nothing to check
        keras_vit.Model(inputs, layers.Flatten()(layers.Conv2D(3, 1)(inputs))).predict(x, verbose=0)


def test_each_of_many_sums_is_seen_once(behind):
    def front(x):
        for _ in range(40):  # with 2 ** 40 ways through them
            x = x + layers.Rescaling(0.0)(x)
        return x

    refused(behind(front), FLOATS / 255, "look normalised")


def test_inputs_of_other_shapes_and_names(behind, vit):
    grey = behind(lambda x: layers.Concatenate()([x, x, x]), shape=(8, 12, 1))
    refused(grey, FLOATS[..., :1] / 255, "look normalised")
    bright = behind(lambda x: layers.Concatenate()([layers.Rescaling(255.0)(x)] * 3), shape=(8, 12, 1))
    assert InputRange.of(bright).of_bytes(X[..., :1]).shape == X[..., :1].shape
    check(bright, FLOATS[..., :1] / 255)
    frames = keras.Input((2, 8, 12, 3))
    video = keras_vit.Model(frames, layers.TimeDistributed(vit())(frames))
    refused(video, np.stack([FLOATS, FLOATS], 1) / 255, "look normalised")
    check(video, np.stack([X, X], 1))
    photo, size = keras.Input((8, 12, 3), name="photo"), keras.Input((1,), name="age")
    outputs = layers.Dense(2)(layers.Concatenate()([vit()(photo), size]))
    model = keras_vit.Model({"photo": photo, "age": size}, outputs)
    given = {"age": np.zeros((8, 1), "float32"), "photo": FLOATS}
    InputChecks.of(model).arrays(given)
    for more in ({}, {"name": np.arange(8)}):  # a dict may hold more than the inputs
        with pytest.raises(ValueError, match="look normalised"):
            InputChecks.of(model).arrays({**given, "photo": FLOATS / 255, **more})


def test_bytes_in_a_dataset_are_refused_by_a_model_of_smaller_values(vit):
    refused(vit(mean=0.5, std=0.5), X, "look like pixels 0..255")


@pytest.fixture
def photograph():
    return tf.io.encode_png(X[0]).numpy()


@pytest.mark.extended
@pytest.mark.parametrize(["front", "half", "ends"], [SCALES[name] for name in ("to 255", "from -1..1", "to 1")])
def test_classify_and_preprocess_give_the_range_that_the_model_expects(behind, photograph, front, half, ends):
    model = behind(front, mean=half, std=half)
    model.classes = 5
    expected = X[:1] / np.float32(255) * (ends[1] - ends[0]) + ends[0]
    pixels = model.preprocess([photograph])
    np.testing.assert_allclose(pixels, expected, atol=1e-5)
    assert pixels.dtype == ("uint8" if ends == (0, 255) else "float32")
    [mapped] = tf.data.Dataset.from_tensors(photograph).map(model.preprocess)
    np.testing.assert_allclose(mapped, expected[0], atol=1e-5)
    shares = keras.ops.convert_to_numpy(keras.ops.softmax(model.predict(expected, verbose=0)))[0]
    for image in (photograph, X[0], FLOATS[0]):
        [best] = model.classify(image, top_k=1)
        assert best.index == shares.argmax() and best.probability == pytest.approx(shares.max(), rel=1e-4)
    if ends != (0, 255):
        with pytest.raises(ValueError, match="images have pixels 0..255, and become the model's own, in"):
            model.classify(expected[0])


def test_a_model_whose_range_is_unknown_does_not_guess(tiny, photograph, tmp_path):
    model = tiny(depth=1, mean=0, std=1)
    for call in (model.classify, model.preprocess, lambda x: keras_vit.export(model, tmp_path / "m")):
        with pytest.raises(ValueError, match="has mean 0 and std 1, so that the scale of its images is unknown"):
            call(photograph)
    model.check_pixels = False
    np.testing.assert_array_equal(model.preprocess(photograph), X[0])
