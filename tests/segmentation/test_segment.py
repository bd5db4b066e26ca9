"""A class for every pixel of images of any size."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small_models import NAMED, segmenting

import keras_vit
from keras_vit.segmentation import sliding_windows
from keras_vit.segmentation.segment import stretches

CLASSES = 3
SIZE = (16, 24)
pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time


@pytest.fixture(scope="module")
def model():
    return segmenting()


def pixels(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), "uint8")


def encoded(array, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def by_brute_force(function, image, size, overlap, flips):
    """Averages over all windows, pixel by pixel."""
    height, width = size
    corners = [
        (top, left)
        for top in sliding_windows.starts(image.shape[0], height, overlap)
        for left in sliding_windows.starts(image.shape[1], width, overlap)
    ]
    given = np.stack([image[top : top + height, left : left + width] for top, left in corners])
    outputs = [function(given)] + ([function(given[:, :, ::-1])[:, :, ::-1]] if flips else [])
    total, count = np.zeros((*image.shape[:2], CLASSES)), np.zeros((*image.shape[:2], 1))
    for found in outputs:
        for (top, left), window in zip(corners, found):
            total[top : top + height, left : left + width] += window
            count[top : top + height, left : left + width] += 1
    return total / count


@pytest.mark.parametrize(
    ("length", "window", "overlap", "expected"),
    [
        (10, 10, 0.5, [0]),
        (20, 10, 0.5, [0, 5, 10]),
        (21, 10, 0.0, [0, 10, 11]),  # the last one is flush with the border
        (1024, 512, 1 / 3, [0, 341, 512]),  # mmsegmentation's stride for crops of 512
    ],
)
def test_windows_cover_an_image_up_to_its_border(length, window, overlap, expected):
    assert sliding_windows.starts(length, window, overlap) == expected


@pytest.mark.parametrize(("overlap", "flips", "batch_size"), [(0.0, False, 3), (0.5, True, 3), (0.9, False, 64)])
def test_sliding_windows_equal_a_loop_over_pixels(model, overlap, flips, batch_size):
    image = pixels(37, 53)
    found = model.segment(
        image, window="slide", scale=1, overlap=overlap, flips=flips, batch_size=batch_size, probabilities=True
    )
    logits = by_brute_force(lambda x: model.predict_on_batch(x), image, SIZE, overlap, flips)
    np.testing.assert_array_equal(found.classes, logits.argmax(-1))
    np.testing.assert_allclose(found.probabilities, keras.ops.softmax(logits), atol=1e-5)


@pytest.mark.parametrize("size", [(43, 15), (7, 90), SIZE])
def test_the_whole_image_equals_tensorflows_resizing(model, size):
    image = pixels(*size)
    given = tf.image.resize(image, SIZE, antialias=True)
    given = np.clip(np.round(given), 0, 255).astype("uint8")
    logits = tf.image.resize(model.predict_on_batch(given[None]), size)[0]
    found = model.segment(image, probabilities=True)
    np.testing.assert_allclose(found.probabilities, tf.nn.softmax(logits), atol=1e-5)
    np.testing.assert_array_equal(found.classes, np.argmax(logits, -1))


def test_resizing_in_strips_equals_resizing_at_once(monkeypatch):
    values = np.random.default_rng(0).normal(size=(9, 7, 2)).astype("float32")
    monkeypatch.setattr(sliding_windows, "_STRIP", 60)
    for size in ((31, 20), (4, 3), (9, 15)):
        parts = list(sliding_windows.resized([values[:4], values[4:5], values[5:]], (9, 7), size))
        assert len(parts) > 1
        np.testing.assert_allclose(np.concatenate(parts), tf.image.resize(values, size), atol=1e-5)


def test_an_image_is_scaled_until_a_window_fits(model):
    found = model.segment(pixels(8, 20), window="slide")  # twice as high, so 40 wide
    assert found.classes.shape == (8, 20)


def test_images_of_every_kind_keep_their_own_size(model):
    grey, alpha = pixels(9, 14, 1)[..., 0], pixels(5, 7, 4)
    deep = np.asarray(pixels(4, 6, 1)[..., 0], "uint16") * 257
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees
    photograph = encoded(pixels(8, 12), "JPEG", exif=turned)
    found = model.segment([grey, encoded(alpha), encoded(deep), photograph], batch_size=2)
    assert [each.classes.shape for each in found] == [(9, 14), (5, 7), (4, 6), (12, 8)]
    np.testing.assert_array_equal(found[0].image[..., 0], grey)
    np.testing.assert_array_equal(found[1].image, alpha[..., :3])
    np.testing.assert_array_equal(found[2].image[..., 0], deep >> 8)


def test_images_in_one_batch_equal_images_alone(model):
    images = [pixels(20, 34), pixels(47, 26, seed=1)]
    together = model.segment(images, window="slide", batch_size=5)
    for image, found in zip(images, together):
        np.testing.assert_array_equal(model.segment(image, window="slide").classes, found.classes)


def test_a_segmentation_says_what_is_in_the_image(model):
    image = pixels(30, 40)
    found = model.segment(image)
    counts = {name: int((found.classes == i).sum()) for i, name in enumerate(NAMED)}
    assert {share.name: round(1200 * share.share) for share in found.shares} == {n: c for n, c in counts.items() if c}
    assert sorted((share.share for share in found.shares), reverse=True) == [share.share for share in found.shares]
    assert found.names == NAMED
    assert found.probabilities is None
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(found.png()))), found.classes)
    picture = found.picture(alpha=0, legend=False)
    np.testing.assert_array_equal(np.asarray(picture), image)
    assert found.picture().height > 30


def test_a_preprocessing_that_crops_is_not_used(model):
    assert stretches("decode(3)|resize(16, 24, method='bicubic')")
    assert not stretches("decode|resize(8)|central_crop(16, 24)")
    assert not stretches("decode|resize(8)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "slides"}, 'Unknown window "slides". Did you mean "slide"'),
        ({"overlap": 1.0, "window": "slide"}, "overlap is a share of a window"),
        ({"scale": 2}, 'scale is for window="slide"'),
        ({"scale": 0, "window": "slide"}, "scale is a positive factor"),
        ({"batch_size": 0}, "batch_size"),
        ({"scale": 1e4, "window": "slide"}, "too many for sliding windows"),
    ],
)
def test_arguments_out_of_range_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.segment(pixels(*SIZE), **options)


def test_a_model_of_one_output_has_no_classes():
    with pytest.raises(ValueError, match="one output per pixel, and no classes"):
        keras_vit.SegmentationModel(
            "Ti/8", "linear", 1, image_size=SIZE, depth=1, width=16, heads=2, mlp_dim=16
        ).segment(pixels(*SIZE))


def test_an_unreadable_image_is_named(model):
    with pytest.raises(ValueError, match="Image 1 of the list"):
        model.segment([pixels(*SIZE), b"no image"])
