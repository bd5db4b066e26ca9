"""The preprocessing text as a layer: what parse(text).image gives, in a model, in tf.data, and in a file."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data import parse
from keras_vit.training import Preprocessing

TEXT = "decode(3)|resize(10)|central_crop(8, 12)"


@pytest.fixture
def encoded():
    rng = np.random.default_rng(0)
    return [tf.io.encode_png(rng.integers(0, 256, (20 + i, 30, 3), dtype="uint8")).numpy() for i in range(2)]


def expected(images):
    return np.stack([parse(TEXT).image(image).numpy() for image in images])


@pytest.mark.extended
def test_strings_and_pixels_one_and_many(encoded):
    layer = Preprocessing(TEXT)
    x = layer(tf.constant(encoded))
    assert x.dtype == "float32"
    np.testing.assert_array_equal(x, expected(encoded))
    np.testing.assert_array_equal(layer(encoded[0]), expected(encoded)[0])
    pixels = tf.stack([parse("decode").image(encoded[0])] * 2)
    np.testing.assert_array_equal(layer(pixels), expected(encoded[:1] * 2))
    np.testing.assert_array_equal(Preprocessing(TEXT, dtype="mixed_bfloat16")(encoded), expected(encoded))
    assert Preprocessing(TEXT, dtype="uint8")(encoded).dtype == "uint8"


@pytest.mark.extended
def test_pixels_on_other_scales_are_refused_in_a_dataset_too(tiny):
    model = tiny()
    bright = np.full((2, 20, 30, 3), 200, "uint8")

    def datasets(x):
        return tf.data.Dataset.from_tensor_slices(x).map(model.preprocess)

    for x in (bright / 255.0, (bright.astype("float32") - 100) * [0.0, 2, -2], bright.astype("int32") * 257):
        x = np.where(np.arange(30)[:, None] > 3, x, 0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="look normalised|negative pixels|look like 16-bit"):
            list(datasets(x))
    bright[0, 0, 0] = 255
    [first, _] = datasets(bright.astype("uint16"))  # of 8 bits
    np.testing.assert_array_equal(first, model.preprocess(bright[0]))
    [first, _] = datasets(bright.astype("uint16") * 257)  # 16 bits by their high 8, as an array is
    np.testing.assert_array_equal(first, model.preprocess(bright[0].astype("uint16") * 257))
    layer = Preprocessing(TEXT, check_pixels=False)
    assert layer.get_config()["check_pixels"] is False
    assert np.max(layer(np.where(np.arange(30)[:, None] > 3, bright / 255.0, 0))) <= 1


@pytest.mark.extended
def test_in_a_dataset(encoded):
    layer = Preprocessing(TEXT)
    dataset = tf.data.Dataset.from_tensor_slices(encoded)
    mapped = dataset.map(layer)
    assert mapped.element_spec.shape == (8, 12, 3)
    np.testing.assert_array_equal(np.stack(list(mapped)), expected(encoded))
    [batch] = dataset.batch(2).map(layer)
    np.testing.assert_array_equal(batch, expected(encoded))


@pytest.mark.extended
def test_in_front_of_a_model_saved_trained_and_loaded(tiny, encoded, tmp_path, eagerly):
    vit = tiny()
    images = keras.Input((), dtype="string")
    model = keras_vit.Model(images, vit(Preprocessing(TEXT)(images)))
    y = model.predict(tf.constant(encoded), verbose=0)
    np.testing.assert_allclose(y, vit(expected(encoded)), atol=1e-5)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    model.fit(tf.data.Dataset.from_tensors((tf.constant(encoded), tf.constant([0, 1]))), verbose=0)
    model.save(tmp_path / "m.keras")
    for load in (keras_vit.load, keras.saving.load_model):
        again = load(tmp_path / "m.keras")
        np.testing.assert_allclose(again(tf.constant(encoded)), model(tf.constant(encoded)), atol=1e-6)


def test_mistakes_are_clear_errors():
    with pytest.raises(ValueError, match='Unknown preprocessing op "resise". Did you mean "resize"'):
        Preprocessing("decode|resise(8)")
    with pytest.raises(ValueError, match="has random ops, which are for training"):
        Preprocessing("decode|random_crop(8)")
    with pytest.raises(ValueError, match=r"takes strings \(b,\) or pixels \(b, h, w, c\), got the shape \(2, 3\)"):
        Preprocessing(TEXT)(np.zeros((2, 3), "uint8"))
