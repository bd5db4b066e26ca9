"""model.classify and model.preprocess: every kind of image, by the model's own preprocessing; mistakes are named."""

import functools
import importlib.util
import io
import os
import pathlib
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter
from small_models import signatures_of

import keras_vit
from keras_vit.data import parse
from keras_vit.training import AdamW, SigmoidCrossEntropy

Image = pytest.importorskip("PIL.Image")
NAMES = tuple("abcde")
TEXT = "decode(3)|resize(10)|central_crop(8, 12)"


@pytest.fixture(scope="module")
def tiny(tiny):
    """One block is enough here."""
    return functools.partial(tiny, depth=1)


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(class_names=NAMES, preprocessing=TEXT)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{kind: path} of image files."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    colour = rng.integers(0, 256, (20, 30, 3), dtype="uint8")
    deep = rng.integers(0, 2**16, (20, 30), dtype="uint16")
    alpha = np.concatenate([colour, rng.integers(0, 256, (20, 30, 1), dtype="uint8")], -1)
    turned = Image.Exif()
    turned[0x0112] = 6
    images = {
        "rgb.png": Image.fromarray(colour),
        "grey.png": Image.fromarray(colour[..., 0]),
        "alpha.png": Image.fromarray(alpha),
        "grey_alpha.png": Image.fromarray(alpha[..., 2:]),
        "palette.png": Image.fromarray(colour).quantize(16),
        "one_bit.png": Image.fromarray(colour[..., 0]).convert("1"),
        "deep.png": Image.fromarray(deep),
        "cmyk.jpg": Image.fromarray(colour).convert("CMYK"),
        "turned.jpg": Image.fromarray(colour),
    }
    for name, image in images.items():
        image.save(folder / name, **({"exif": turned} if name == "turned.jpg" else {}))
    return {name: folder / name for name in images}


def expected(model, path):
    """What the model makes of a file, by the preprocessing of evaluation: probabilities (classes,)."""
    pixels = parse(model.preprocessing).image(pathlib.Path(path).read_bytes())
    return np.asarray(keras.ops.softmax(model(pixels[None])))[0]


def check(predictions, probabilities, top_k=5):
    order = np.argsort(-probabilities)[:top_k]
    assert [p.index for p in predictions] == list(order)
    assert [p.name for p in predictions] == [NAMES[i] for i in order]
    np.testing.assert_allclose([p.probability for p in predictions], probabilities[order], atol=1e-5)


KINDS = (
    pathlib.Path,
    str,
    lambda path: path.read_bytes(),
    lambda path: bytearray(path.read_bytes()),
    lambda path: io.BytesIO(path.read_bytes()),
    Image.open,
    lambda path: tf.constant(path.read_bytes()),
)


@pytest.mark.extended
def test_every_kind_of_one_image(model, files):
    for kind in KINDS:
        check(model.classify(kind(files["rgb.png"]), top_k=3), expected(model, files["rgb.png"]), 3)


@pytest.mark.extended
def test_every_format_from_files_and_from_pil(model, files):
    """Grey, alpha, palettes, 16 bits, CMYK and EXIF: PIL's image of a file is classified as the file."""
    for results in map(model.classify, (list(files.values()), list(map(Image.open, files.values())))):
        for path, predictions in zip(files.values(), results, strict=True):
            check(predictions, expected(model, path))


@pytest.mark.extended
def test_arrays_of_every_kind(model, files):
    colour = np.asarray(Image.open(files["rgb.png"]))
    alpha = np.asarray(Image.open(files["alpha.png"]))
    deep = np.asarray(Image.open(files["deep.png"])).astype("uint16")
    rgb = expected(model, files["rgb.png"])
    for array in (*map(colour.astype, ("uint8", "int64", "float32", "uint16")), alpha, tf.constant(colour)):
        check(model.classify(array), rgb)
    check(model.classify(deep), expected(model, files["deep.png"]))
    check(model.classify(colour[..., 0]), expected(model, files["grey.png"]))
    for batch in (np.stack([colour, colour]), tf.stack([colour, colour])):
        for predictions in model.classify(batch):
            check(predictions, rgb)


@pytest.mark.extended
def test_lists_may_be_mixed_and_their_results_are_lists(model, files):
    path = files["rgb.png"]
    mixed = [path, path.read_bytes(), Image.open(path)]
    for images in (mixed, tf.constant([path.read_bytes()] * 3), np.array([str(path)] * 3)):
        results = model.classify(images, top_k=2, batch_size=2, verbose=0)
        assert len(results) == 3
        for predictions in results:
            check(predictions, expected(model, path), 2)
    assert len(model.classify(path.parent.glob("rgb.*"))) == 1
    assert model.classify([]) == [] and len(model.classify([path])) == 1


@pytest.mark.extended
def test_it_equals_what_the_exported_model_says(model, files):
    out = signatures_of(model)["serving_default"](tf.constant([path.read_bytes() for path in files.values()]))
    for predictions, names, probabilities in zip(
        model.classify(files.values()), out["classes"], out["probabilities"], strict=True
    ):
        assert [p.name.encode() for p in predictions] == list(names.numpy())
        np.testing.assert_allclose([p.probability for p in predictions], probabilities, atol=1e-6)


@pytest.mark.extended
def test_progress_for_more_than_a_batch(model, files, capsys):
    model.classify([files["rgb.png"]] * 3, batch_size=2)
    assert "3/3" in capsys.readouterr().out
    model.classify([files["rgb.png"]] * 3, batch_size=2, verbose=0)
    model.classify([files["rgb.png"]] * 2, batch_size=2)
    assert not capsys.readouterr().out


def test_without_names_and_text(tiny, files):
    model = tiny(channels=1)
    [first, *_] = model.classify(files["rgb.png"])
    assert first.name == str(first.index)
    pixels = parse("decode(1)|resize(8, 12)").image(files["rgb.png"].read_bytes())
    np.testing.assert_array_equal(model.preprocess(files["rgb.png"]), pixels)


def test_models_built_on_a_vit_classify_too(model, files):
    dense = keras.layers.Dense(2, bias_initializer=keras.initializers.Constant([0.0, 3.0]))
    two = model.with_head(dense, class_names=["no", "yes"])
    assert [p.name for p in two.classify(files["rgb.png"])] in (["yes", "no"], ["no", "yes"])
    image = keras.Input((8, 12, 3))
    check(keras_vit.Model(image, model(image)).classify(files["rgb.png"]), expected(model, files["rgb.png"]))


@pytest.mark.extended
def test_sigmoid(tiny, files):
    model = tiny(class_names=NAMES, preprocessing=TEXT)
    logits = np.asarray(model(model.preprocess([files["rgb.png"]])))[0]
    sigmoid = 1 / (1 + np.exp(-logits))
    check(model.classify(files["rgb.png"], activation="sigmoid"), sigmoid)
    model.compile(AdamW(1e-3), SigmoidCrossEntropy())
    check(model.classify(files["rgb.png"]), sigmoid)
    one = tiny(classes=1, class_names=["cat"])
    [cat] = one.classify(files["rgb.png"])
    assert cat.name == "cat" and 0 < cat.probability < 1
    with pytest.raises(ValueError, match='softmax of a single class is always 1: use activation="sigmoid"'):
        one.classify(files["rgb.png"], activation="softmax")


def pixels(dtype="uint8", shape=(9, 13, 3), scale=255):
    return (np.random.default_rng(0).random(shape) * scale).astype(dtype)


def test_what_is_not_an_image_is_named(model):
    for x, message in [
        ("/nowhere/cat.jpg", 'There is no image file "/nowhere/cat.jpg"'),
        (["/nowhere/cat.jpg"], "no image file"),
        (os.path.dirname(__file__), "a folder: give its files"),
        ("https://example.org/cat.jpg", "an address: download the image"),
        (__file__, r'test_classify.py" cannot be decoded as an image'),
        (b"", "The image cannot be decoded as an image"),
        ([pixels(), b"text"], "Image 1 of the list cannot be decoded"),
        (pixels("float32", scale=1), "The image: The images look normalised"),
        ([pixels("float32") - 1000], r"Image 0 of the list: expected pixels 0..255.*values from -"),
        (pixels("int32", scale=65000), "expected pixels 0..255 .or uint16 of 16 bits.* to 6"),
        (pixels("float32") * np.nan, "expected pixels 0..255"),
        (pixels("bool"), "expected pixels, integers or floats, got bool"),
        (pixels(shape=(9, 13, 7)), r"with c of 1 to 4 channels, got shape \(9, 13, 7\)"),
        (pixels(shape=(3, 9, 13)), "Is the first axis the channels"),
        (pixels(shape=(2, 1, 9, 13, 3)), r"got an array of shape \(2, 1, 9, 13, 3\)"),
        ([pixels(shape=(1, 9, 13, 3))], r"Image 0 of the list: expected an array"),
        ([[1, 2, 3]], "Image 0 of the list: expected a path, bytes, a PIL image or an array, got list"),
        ({"image": pixels()}, "got dict. For a dataset: model.predict"),
        (tf.data.Dataset.range(2), "For a dataset: model.predict"),
        (3, "Expected a path, bytes, a PIL image, an array or a list of these, got 3"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            model.classify(x)


def test_models_that_cannot_classify_say_why(tiny, files):
    path = files["rgb.png"]
    with pytest.raises(ValueError, match="has no classes: it returns features"):
        tiny(classes=None).classify(path)
    with pytest.raises(ValueError, match="has no classes.*class_names"):
        tiny().with_head(keras.layers.Dense(2)).classify(path)
    with pytest.raises(ValueError, match="head is all zeros"):
        keras_vit.ViT("Ti/4", image_size=8, classes=2, depth=1, width=16, heads=2, mlp_dim=16).classify(path)
    with pytest.raises(ValueError, match=r"gives pixels of shape \(9, 9, 3\), and the model takes \(8, 12, 3\)"):
        tiny(preprocessing="decode(3)|resize(9, 9)").classify(path)
    with pytest.raises(ValueError, match="random ops"):
        tiny(preprocessing="decode(3)|random_crop(8, 12)").classify(path)
    with pytest.raises(ValueError, match="top_k must be a positive integer, got 0"):
        tiny().classify(path, top_k=0)
    with pytest.raises(ValueError, match="Unknown activation .tanh.. Valid: softmax, sigmoid"):
        tiny().classify(path, activation="tanh")


def test_models_of_probabilities(tiny, files):
    vit = tiny(preprocessing=TEXT)
    model = keras_vit.Model(vit.input, keras.layers.Softmax()(vit.output))
    model.classes, model.class_names = 5, NAMES
    check(model.classify(files["rgb.png"]), expected(vit, files["rgb.png"]))
    with pytest.raises(ValueError, match="probabilities already: leave out activation='softmax'"):
        model.classify(files["rgb.png"], activation="softmax")


@pytest.mark.extended
def test_preprocess_gives_the_models_pixels(model, files):
    path = files["rgb.png"]
    one = parse(TEXT).image(path.read_bytes()).numpy()
    x = model.preprocess(path)
    assert x.dtype == "uint8"
    np.testing.assert_array_equal(x, one)
    assert model.preprocess([path, path]).shape == (2, 8, 12, 3) and model.preprocess([]).shape == (0, 8, 12, 3)
    encoded = tf.data.Dataset.from_tensors(path.read_bytes())
    [mapped] = encoded.map(model.preprocess)
    np.testing.assert_array_equal(mapped, one)


def on_jax(path, folder):
    """[backend, indices, probabilities] of the images of a folder; that ours are refused without TensorFlow."""
    model, find = keras_vit.load(path), importlib.util.find_spec
    paths = sorted(pathlib.Path(folder).iterdir())
    results = model.classify(paths)
    layer = keras_vit.training.Preprocessing(model.preprocessing)
    [mapped] = tf.data.Dataset.from_tensors(paths[-1].read_bytes()).map(layer)
    assert tf.is_tensor(mapped)
    np.testing.assert_array_equal(mapped, model.preprocess(paths[-1]))
    np.testing.assert_array_equal(layer(np.array([paths[-1].read_bytes()]))[0], mapped)

    def hidden(name, *rest):
        return None if name == "tensorflow" else find(name, *rest)

    with mock.patch("importlib.util.find_spec", hidden):
        with pytest.raises(ImportError, match="needs TensorFlow, on the JAX backend too"):
            model.classify(paths)
    numbers = [[[getattr(one, name) for one in row] for row in results] for name in ("index", "probability")]
    return [keras.backend.backend(), *numbers]


@pytest.mark.processes
def test_on_jax(model, files, tmp_path):
    model.save(tmp_path / "m.keras")
    with Interpreter("jax") as jax:
        backend, *numbers = jax.run(on_jax, str(tmp_path / "m.keras"), str(files["rgb.png"].parent))
    assert backend == "jax"
    for indices, probabilities, path in zip(*numbers, sorted(files.values()), strict=True):
        np.testing.assert_allclose(probabilities, expected(model, path)[indices], atol=1e-5)
