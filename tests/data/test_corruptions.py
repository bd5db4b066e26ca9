"""ImageNet-C's corruptions against imagecorruptions at the same draws, and inside tf.data."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import evaluation_batches, from_arrays
from keras_vit.data.ops.corruption.noise import Draws
from keras_vit.data.ops.corruption.strengths import CORRUPTIONS, STANDARD
from keras_vit.data.ops.op_registry import parse

GOLDENS = np.load(pathlib.Path(__file__).parent / "goldens" / "corruptions.npz")
IMAGE = GOLDENS["image"]
SEED = tf.constant([1, 2], tf.int64)


class Given:
    """What Draws draws, from np.random.RandomState(0) in the order of the goldens."""

    def __init__(self):
        self.state = np.random.RandomState(0)

    def normal(self, shape):
        return tf.constant(self.state.normal(size=tuple(shape)))

    def uniform(self, shape, low=0.0, high=1.0):
        return tf.constant(self.state.uniform(low, high, size=tuple(shape)))

    def poisson(self, rate):
        return tf.constant(self.state.poisson(np.asarray(rate)).astype("float64"))

    def integers(self, shape, low, high):
        """glass_blur's offsets, which its loop draws pixel by pixel, from the last to the first."""
        offsets = np.zeros(shape, "int32")
        for row in range(shape[0] - high, high, -1):
            for column in range(shape[1] - high, high, -1):
                offsets[row, column] = self.state.randint(low, high, size=2)
        return tf.constant(offsets)


@pytest.mark.extended
def test_values_are_those_of_imagecorruptions():
    """Of every corruption but frost."""
    for name in GOLDENS.files[1:]:
        kind, strength = name.split()
        corruption = CORRUPTIONS[kind]
        x = corruption.function(tf.constant(IMAGE / 255.0), Given(), *corruption.rows[int(strength) - 1])
        difference = np.abs((np.clip(x, 0, 1) * 255).astype("uint8").astype(int) - GOLDENS[name])
        # Theirs compute partly in float32, and levels are cut off: one next to a whole number may fall to either side.
        assert difference.max() <= 1 and (difference > 0).mean() < 0.002, name
    assert {name.split()[0] for name in GOLDENS.files} == {"image", *CORRUPTIONS} - {"frost"}
    assert len(STANDARD) == 15 and len(CORRUPTIONS) == 19


@pytest.mark.extended
@pytest.mark.parametrize("name", ["fog", "glass_blur"])  # which loop
def test_inside_tf_data_the_pixels_are_the_same(name):
    ops = parse(f"corrupt('{name}', 5)")
    eager = np.asarray(ops.image(IMAGE, SEED))
    dataset = tf.data.Dataset.from_tensors(IMAGE).map(lambda x: ops.image(x, SEED))
    assert dataset.element_spec == tf.TensorSpec(IMAGE.shape, tf.uint8)
    # A graph may add up in another order before levels are cut off.
    difference = np.abs(eager.astype(int) - next(iter(dataset)))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.002


@pytest.mark.extended
def test_each_changes_an_image_and_takes_grey_ones():
    for name in CORRUPTIONS:
        ops = parse(f"corrupt('{name}', 5)")
        assert np.abs(np.asarray(ops.image(IMAGE, SEED)).astype(int) - IMAGE).mean() > 2, name
        grey = np.asarray(ops.image(IMAGE[..., :1], SEED))
        assert grey.shape == (48, 56, 1) and grey.dtype == np.uint8, name


@pytest.mark.extended
def test_frost_darkens_with_its_strength_and_has_its_own_pattern_for_each_seed():
    images = [np.asarray(parse(f"corrupt('frost', {s})").image(IMAGE, SEED), int) for s in (1, 5)]
    assert np.abs(images[1] - IMAGE).mean() > np.abs(images[0] - IMAGE).mean()
    assert (np.asarray(parse("corrupt('frost', 5)").image(IMAGE, SEED + 1)) != images[1]).any()


def test_draws_have_their_distributions_and_do_not_repeat():
    draws = Draws(SEED)
    first, second = draws.normal((200, 200)).numpy(), draws.normal((200, 200)).numpy()
    assert abs(first.mean()) < 0.02 and abs(first.std() - 1) < 0.02 and abs((first * second).mean()) < 0.02
    counts = draws.poisson(tf.fill((40_000,), tf.constant(3.0, tf.float64))).numpy()
    assert abs(counts.mean() - 3) < 0.05 and abs(counts.var() - 3) < 0.1
    whole = draws.integers((10_000,), -2, 2).numpy()
    assert set(whole) == {-2, -1, 0, 1} and abs((whole == 1).mean() - 0.25) < 0.02
    uniform = draws.uniform((10_000,), -45, 45).numpy()
    assert uniform.min() > -45 and uniform.max() < 45 and abs(uniform.mean()) < 1


@pytest.mark.extended
def test_an_evaluation_with_a_seed_draws_by_row_whatever_the_batch_and_the_hosts():
    source = from_arrays(np.repeat(IMAGE[None, :8, :8], 6, 0), np.arange(6) % 2)

    def rows(batch_size, seed=0, shard=(0, 1)):
        batches = evaluation_batches(source, "corrupt('gaussian_noise', 5)", batch_size, shard, seed=seed)
        return np.concatenate([images for images, _, _ in batches.as_numpy_iterator()])

    whole = rows(6)
    assert len({image.tobytes() for image in whole}) == 6
    np.testing.assert_array_equal(rows(2, shard=(1, 2)), whole[1::2])
    assert (rows(6, seed=1) != whole).any()
    with pytest.raises(ValueError, match="must not be random"):
        evaluation_batches(source, "corrupt('gaussian_noise', 5)", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corrupt('fogg')", "got name='fogg'. Did you mean .fog"),
        ("corrupt('fog', 6)", "strength of 1 to 5, got strength=6"),
        ("corrupt('fog', True)", "strength of 1 to 5"),
    ],
)
def test_mistakes_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_an_image_without_a_fixed_size_is_refused():
    function = tf.function(lambda x: parse("corrupt('fog')").image(x, SEED), autograph=False)
    with pytest.raises(ValueError, match="images of a fixed size"):
        function.get_concrete_function(tf.TensorSpec((None, None, 3), tf.uint8))
