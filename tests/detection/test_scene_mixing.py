"""Mosaics and mixup of images with objects: boxes against the pixels of the objects, groups of rows, chance, XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import dense_on_images

from keras_vit.fit.mixing import check_pairs
from keras_vit.training import Mosaic, SceneMixup

B, H, W, OBJECTS = 8, 24, 32, 2
STEPS = 100


def scenes():
    """Images (8, 24, 32, 8) and objects (8, 3, 7): object k of row n is 255 in channel 2 (n % 4) + k, labelled 2 n + k.

    The last row of objects is padding. An object's area is its label plus 100.
    """
    rng = np.random.default_rng(0)
    images, objects = np.zeros((B, H, W, 4 * OBJECTS), "uint8"), np.zeros((B, OBJECTS + 1, 7), "float32")
    objects[:, -1, 4] = -1
    for n in range(B):
        for k in range(OBJECTS):
            top, left = rng.integers(0, H - 8), rng.integers(0, W - 8)
            bottom, right = rng.integers(top + 6, H + 1), rng.integers(left + 6, W + 1)
            images[n, top:bottom, left:right, OBJECTS * (n % 4) + k] = 255
            label = OBJECTS * n + k
            objects[n, k] = top / H, left / W, bottom / H, right / W, label, k, label + 100
    return images, objects


def results(mixing, steps, **options):
    function, (images, objects) = tf.function(mixing, **options), map(tf.constant, scenes())
    return [tuple(x.numpy() for x in function(images, objects, step)) for step in map(tf.constant, range(steps))]


def rows_of(objects):
    """{label: row} of the objects (m, 7) of one image; checks that the real ones come first."""
    real = objects[:, 4] >= 0
    assert real[: real.sum()].all() and not real[real.sum() :].any()
    assert (objects[~real] == [0, 0, 0, 0, -1, 0, 0]).all()
    found = {int(row[4]): row for row in objects[real]}
    assert len(found) == real.sum()
    return found


def box_of(mask):
    """The bounding box of a mask (h, w) in pixels, None if the mask is empty."""
    ys, xs = np.nonzero(mask)
    return np.array([ys.min(), xs.min(), ys.max() + 1, xs.max() + 1]) if len(ys) else None


@pytest.mark.extended
def test_a_mosaic_moves_boxes_as_it_moves_the_pixels_of_their_objects():
    _, given = scenes()
    seen = set()
    for images, objects in results(Mosaic(low=0.4, keep=0.0, probability=1.0), STEPS):
        assert images.shape == (B, H, W, 8) and objects.shape == (B, 12, 7)
        for n in range(B):
            found, first = rows_of(objects[n]), OBJECTS * (n // 4 * 4)
            for label in range(first, first + 4 * OBJECTS):
                pixels = images[n, ..., label - first]
                shown = box_of(pixels > pixels.max() / 2)
                if pixels.max() < 127:  # outside, or thinner than a pixel
                    assert label not in found or min((found[label][2:4] - found[label][:2]) * [H, W]) < 1
                elif label in found:
                    np.testing.assert_allclose(found[label][:4] * [H, W, H, W], shown, atol=1)
                    np.testing.assert_array_equal(found[label][5:], given[label // 2, label % 2, 5:])
                else:
                    assert min(shown[2:] - shown[:2]) <= 1
            seen.add((n, tuple(found)))
    assert len(seen) > 5 * B  # other windows show other objects


def test_a_mosaic_of_whole_images_drops_nothing():
    images, given = scenes()
    mixed, objects = (np.asarray(x) for x in Mosaic(low=1.0, keep=1.0, probability=1.0)(images, given, 0))
    own = given[[0, 1, 2, 3, 0, 1, 2], :2]
    for n in range(4):
        boxes = own[n : n + 4, :, :4] / 2 + np.array([[0, 0], [0, 0.5], [0.5, 0], [0.5, 0.5]])[:, None, [0, 1, 0, 1]]
        np.testing.assert_allclose(objects[n, :8, :4], boxes.reshape(8, 4), atol=1e-6)
        np.testing.assert_array_equal(objects[n, :8, 4:], own[n : n + 4, :, 4:].reshape(8, 3))
        halves = tf.image.resize(images[[n, (n + 1) % 4]], (H // 2, W // 2), antialias=True)
        np.testing.assert_allclose(mixed[n, : H // 2], np.concatenate(halves, 1), atol=1e-3)


@pytest.mark.extended
def test_a_mosaic_drops_boxes_of_which_too_little_is_left():
    images, given = scenes()
    given[:, 0, :4], given[:, 1, :4] = [0, 0, 1, 1], [0.25, 0.25, 0.75, 0.75]
    dropped = 0
    for step in range(8):
        before, after = (Mosaic(0.8, keep, 1.0)(images, given, step)[1].numpy() for keep in (0.0, 0.9))
        for n in range(B):
            found, kept = rows_of(before[n]), rows_of(after[n])
            # A window has a side of at least 1.6 images, so that the middle of some image is whole.
            side = max((row[2:4] - row[:2]).max() * (1 + label % 2) for label, row in found.items())
            for label, row in found.items():
                share = np.prod(row[2:4] - row[:2]) / (side / (1 + label % 2)) ** 2
                assert label in kept if share > 0.91 else label not in kept or share > 0.89
                dropped += label not in kept
    assert dropped > 10


@pytest.mark.extended
def test_scene_mixup_blends_pairs_and_joins_their_objects():
    images, given = scenes()
    shares = set()
    for blended, objects in results(SceneMixup(alpha=8.0, probability=1.0), 5):
        assert objects.shape == (B, 6, 7)
        for n in range(B):
            other = n + 1 - 2 * (n % 2)
            np.testing.assert_array_equal(objects[n, :4], np.concatenate([given[n, :2], given[other, :2]]))
            assert list(rows_of(objects[n])) == [2 * n, 2 * n + 1, 2 * other, 2 * other + 1]
            keep = blended[n][images[n] > 0].max() / 255
            np.testing.assert_allclose(blended[n], keep * images[n] + (1 - keep) * images[other], atol=1e-3)
        shares.add(float(keep))
    assert len(shares) == 5 and 0 < min(shares) < max(shares) < 1


BOTH = [Mosaic(probability=1.0, seed=3), SceneMixup(probability=1.0, seed=3)]


@pytest.mark.parametrize("mixing", BOTH, ids=lambda m: type(m).__name__)
def test_groups_stay_together_in_any_part_and_the_last_rows_of_another_batch_stay(mixing):
    images, objects = scenes()
    whole = [np.asarray(x) for x in mixing(images, objects, 2)]
    for part in (slice(0, 4), slice(4, 8)):
        for x, y in zip(mixing(images[part], objects[part], 2), whole):
            np.testing.assert_allclose(x, y[part], atol=1e-4)
    last = 7 // mixing.group * mixing.group
    mixed, rows = (np.asarray(x) for x in mixing(images[:7], objects[:7], 2))
    np.testing.assert_allclose(mixed[:last], whole[0][:last], atol=1e-4)
    np.testing.assert_array_equal(rows[:last], whole[1][:last])
    np.testing.assert_allclose(mixed[last:], images[last:7], rtol=1e-6)
    np.testing.assert_array_equal(rows[last:, :3], objects[last:7])
    assert (rows[last:, 3:, 4] == -1).all()


@pytest.mark.extended
@pytest.mark.parametrize("kind", [Mosaic, SceneMixup])
def test_a_batch_is_mixed_with_the_probability_and_by_seed_and_step(kind):
    images, objects = scenes()
    first, again = results(kind(probability=0.5), 40), results(kind(probability=0.5), 2)
    for one, other in zip(first, again):
        for x, y in zip(one, other):
            np.testing.assert_array_equal(x, y)
    unmixed = [(pixels == images).all() for pixels, _ in first]
    assert 10 < sum(unmixed) < 30
    for i in np.flatnonzero(unmixed):
        np.testing.assert_array_equal(first[i][1][:, :3], objects)
        assert (first[i][1][:, 3:, 4] == -1).all()


@pytest.mark.extended
@pytest.mark.parametrize("kind", [Mosaic, SceneMixup])
def test_xla_compiles_them(kind):
    """XLA samples other numbers from the same seeds."""
    for images, objects in results(kind(probability=1.0), 3, jit_compile=True):
        assert images.shape == (B, H, W, 8) and objects.shape == (B, 3 * kind.group, 7)
        assert all(len(rows_of(rows)) >= OBJECTS for rows in objects)


@pytest.mark.extended
def test_fit_mixes_objects_on_the_device():
    images, objects = np.zeros((4, 8, 12, 3), "uint8"), scenes()[1][:4]

    def objects_in_view(y, y_pred):
        assert y.shape == (4, 12, 7)
        return keras.ops.mean(keras.ops.cast(y[..., 4] >= 0, "float32"), -1) + 0 * keras.ops.mean(y_pred)

    model = dense_on_images()
    model.mixing = Mosaic(low=1.0, probability=1.0)
    model.compile("sgd", objects_in_view, jit_compile=False)
    history = model.fit(images, objects, batch_size=4, verbose=0)
    np.testing.assert_allclose(history.history["loss"], 8 / 12, rtol=1e-6)  # all two objects of four images


def test_mistakes_are_clear_errors():
    with pytest.raises(ValueError, match="A mosaic mixes groups of 4 images, and a batch has 3: .* multiple of 4"):
        check_pairs(3, group=4)
    with pytest.raises(ValueError, match="each of 2 devices has 6: choose a batch size that is a multiple of 8"):
        check_pairs(6, 2, group=4)
    with pytest.raises(ValueError, match="Mosaic: low must be above 0"):
        Mosaic(low=0)
    with pytest.raises(ValueError, match="SceneMixup: probability must be from 0 to 1, got 2"):
        SceneMixup(probability=2)
    with pytest.raises(ValueError, match="SceneMixup: alpha must be positive"):
        SceneMixup(alpha=0)
