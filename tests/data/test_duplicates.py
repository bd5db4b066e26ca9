"""Near-duplicates: photos that were altered are found, other photos are not."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import duplicates, open_source
from keras_vit.data.duplicates import descriptors, near_duplicates, thumbnail
from keras_vit.data.ops.decode import decode_image


def uint8(image):
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def jpeg(image, quality):
    return tf.io.decode_jpeg(tf.image.encode_jpeg(image, quality=quality))


def scaled(image, factor):
    return uint8(tf.image.resize(image, [int(side * factor) for side in image.shape[:2]], antialias=True))


def cropped(image, left, top, right, bottom):
    """Without those fractions of the sides."""
    height, width = image.shape[:2]
    return image[int(top * height) : height - int(bottom * height), int(left * width) : width - int(right * width)]


ALTERATIONS = {
    "mirrored": lambda image: image[:, ::-1],
    "all together": lambda image: jpeg(scaled(cropped(image[:, ::-1], 0.05, 0.0, 0.0, 0.05), 0.5) // 2 + 30, 40),
}


@pytest.fixture(scope="module")
def photos(shared_data):
    """The pixels of the 100 ImageNet photos, at 40% of their size for speed."""
    source = open_source(f"csv:{shared_data}/imagenet_sample/labels.csv?classes=1000", "train")
    return [scaled(pixels, 0.4) for pixels in source.ordered().map(lambda example: decode_image(example["image"]))]


def thumbnails(images):
    return np.stack([thumbnail(image).numpy() for image in images])


@pytest.mark.parametrize("name", ["mirrored", pytest.param("all together", marks=pytest.mark.extended)])
def test_altered_photos_are_found_and_others_are_not(name, photos):
    pairs = near_duplicates(thumbnails(photos), thumbnails([ALTERATIONS[name](photo) for photo in photos]))
    right = {pair.test for pair in pairs if pair.train == pair.test}
    assert all(pair.train == pair.test for pair in pairs), "precision 1"
    assert len(right) >= 98
    assert np.mean([pair.flipped for pair in pairs]) > 0.95
    assert all(pair.correlation > 0.9 for pair in pairs)


def test_images_of_one_colour_are_like_nothing():
    blank = np.stack([np.full((32, 32), value, "uint8") for value in (0, 128, 255)])
    assert np.abs(descriptors(blank)).max() < 0.01 and near_duplicates(blank, blank) == []


def test_every_copy_is_found_in_the_order_of_the_test_set():
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (5, 12, 12, 1)).astype("float32")
    images = np.round(np.clip(tf.image.resize(coarse, (32, 32), method="bicubic"), 0, 255)).astype("uint8")[..., 0]
    train = images[[0, 1, 1, 2] + [3] * 12]
    pairs = near_duplicates(train, images[[3, 1, 4]])
    assert [(pair.test, pair.train) for pair in pairs if pair.test == 1] == [(1, 1), (1, 2)]
    assert {pair.train for pair in pairs if pair.test == 0} == set(range(4, 16)) and len(pairs) == 14


def test_a_warning_says_if_many_images_would_be_left_out(caplog):
    duplicates._warn_of_many(2, 20, "out/excluded.txt")
    assert not caplog.records
    duplicates._warn_of_many(866, 1437, "out/excluded.txt")
    assert "60% of the training images, 866, are duplicates" in caplog.text and "out/excluded.png" in caplog.text
