"""Cutmix, and Mixup together with it, against numpy: boxes, shares of labels, replicas, odd batches, XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import dense_on_images

from keras_vit.fit.mixing import check_pairs
from keras_vit.optim.wrappers import batches_taken
from keras_vit.training import Accuracy, Cutmix, Lookahead, Mixup, MixupOrCutmix, SoftmaxCrossEntropy

H, W = 12, 20


def batch(b=4, h=H, w=W):
    """Images of one value each, 0, 1, 2..., and labels of as many classes."""
    images = np.arange(b, dtype="uint8")[:, None, None, None] * np.ones((1, h, w, 3), "uint8")
    return images, np.arange(b)


def mixed(mixing, step, b=4, h=H, w=W):
    return [np.asarray(x) for x in mixing(*batch(b, h, w), step)]


def reference_box(h, w, area, cy, cx):
    """The paper's Algorithm A1: a box with this share of the area, centred on a pixel and clipped."""
    height, width = int(h * np.sqrt(area)), int(w * np.sqrt(area))
    top, bottom = np.clip([cy - height // 2, cy + height // 2], 0, h)
    left, right = np.clip([cx - width // 2, cx + width // 2], 0, w)
    box = np.zeros((h, w), bool)
    box[top:bottom, left:right] = True
    return box


@pytest.mark.extended
def test_cutmix_exchanges_one_box_between_neighbours():
    areas, cutmix = [], tf.function(Cutmix(1.0, 4, seed=5))
    for step in range(200):
        images, rows = (x.numpy() for x in cutmix(*map(tf.constant, batch()), tf.constant(step)))
        changed = images[0, :, :, 0] == 1
        ys, xs = changed.any(1), changed.any(0)
        np.testing.assert_array_equal(changed, np.outer(ys, xs))  # a box
        for axis in (ys, xs):
            assert np.count_nonzero(np.diff(axis.astype(int))) <= 2  # in one piece
        np.testing.assert_array_equal(images[1, :, :, 0], ~changed)
        np.testing.assert_array_equal(images[2:] - 2, images[:2])
        # Labels are mixed in the proportion of the pixels.
        share = changed.mean()
        np.testing.assert_allclose(rows[:2, :2], [[1 - share, share], [share, 1 - share]], atol=1e-6)
        np.testing.assert_allclose(rows[2:, 2:], rows[:2, :2])
        assert not rows[:2, 2:].any()
        areas.append((share, ys, xs))
    shares, rng = np.array([share for share, _, _ in areas]), np.random.default_rng(0)
    expected = [reference_box(H, W, rng.random(), rng.integers(H), rng.integers(W)).mean() for _ in range(2000)]
    assert abs(shares.mean() - np.mean(expected)) < 0.04 and abs(shares.std() - np.std(expected)) < 0.04
    # Every pixel is inside some box, those in the middle most often.
    often = np.mean([np.outer(ys, xs) for _, ys, xs in areas], axis=0)
    assert often.min() > 0.05 and often[H // 2, W // 2] > often[0, 0]


def test_cutmix_boxes_are_the_papers(monkeypatch):
    for area, u, v in [(0.25, 0.5, 0.5), (0.5, 0.02, 0.99), (0.9, 0.7, 0.3), (0.0, 0.4, 0.4), (0.3, 0.999, 0.0)]:
        draws = {(3,): np.array([0.5, u, v], "float32")}
        monkeypatch.setattr(keras.random, "uniform", lambda shape, seed, draws=draws: tf.constant(draws[shape]))
        monkeypatch.setattr(
            "keras_vit.classification.mixup.beta_from_uniform", lambda alpha, uniform, area=area: tf.constant(1 - area)
        )
        images, rows = mixed(Cutmix(1.0, 4), 0)
        box = reference_box(H, W, area, int(u * H), int(v * W))
        np.testing.assert_array_equal(images[0, :, :, 0], box)
        np.testing.assert_allclose(rows[0, 1], box.mean(), atol=1e-6)


@pytest.mark.extended
def test_both_take_turns_evenly_and_are_what_each_alone_is():
    both, mixup, cutmix = MixupOrCutmix(0.8, 0.5, 4, seed=1), Mixup(0.8, 4, seed=1), Cutmix(0.5, 4, seed=1)
    boxes = 0
    both, mixup, cutmix = map(tf.function, (both, mixup, cutmix))
    for step in map(tf.constant, range(60)):
        images, rows = mixed(both, step)
        whole = len(np.unique(images[0])) == 1 and 0 < images[0].max() < 1
        boxes += not whole
        expected = mixed(mixup if whole else cutmix, step)
        np.testing.assert_array_equal(images, expected[0])
        np.testing.assert_allclose(rows, expected[1], atol=1e-6)
    assert 20 < boxes < 40


MIXINGS = [Mixup(0.5, 5, 1), Cutmix(0.5, 5, 1), MixupOrCutmix(0.5, 1.0, 5, 1)]


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda m: type(m).__name__)
def test_mixing_is_a_function_of_seed_and_step(mixing):
    first, again, other = mixed(mixing, 3), mixed(mixing, 3), [mixed(mixing, step)[0] for step in range(4, 9)]
    np.testing.assert_array_equal(first[0], again[0])
    assert any((images != first[0]).any() for images in other)
    assert (mixed(type(mixing)(**{**vars(mixing), "seed": 2}), 3)[0] != first[0]).any()


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda m: type(m).__name__)
def test_pairs_stay_together_in_any_even_part_and_the_last_of_an_odd_batch_stays(mixing):
    images, labels = batch(8, 4, 6)
    labels = labels % 5
    whole = [np.asarray(x) for x in mixing(images, labels, 2)]
    for i in (0, 4):
        part = mixing(images[i : i + 4], labels[i : i + 4], 2)
        for a, b in zip(part, whole):
            np.testing.assert_array_equal(a, b[i : i + 4])
    odd = mixing(images[:5], labels[:5], 2)
    np.testing.assert_array_equal(odd[0][:4], whole[0][:4])
    np.testing.assert_allclose(odd[0][4], images[4], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(odd[1])[4], np.eye(5)[4], atol=1e-6)


@pytest.mark.extended
def test_xla_compiles_the_mixing_and_shapes_are_static():
    """XLA samples other numbers from the same seeds; there too, labels are mixed in the proportion of the pixels."""
    images, labels = batch(4)
    compiled = tf.function(MIXINGS[2], jit_compile=True)
    seen = set()
    for step in range(8):
        values, rows = compiled(tf.constant(images), tf.constant(labels), tf.constant(step))
        assert values.shape == (4, H, W, 3) and rows.shape == (4, 5)
        share = np.mean(values[0])
        np.testing.assert_allclose(rows[:2, :2], [[1 - share, share], [share, 1 - share]], atol=1e-5)
        np.testing.assert_allclose(values[2:], values[:2] + 2, atol=1e-5)
        seen.add(float(share))
    assert len(seen) > 4


def test_rows_come_in_as_well_as_numbers():
    images, labels = batch(4)
    rows = keras.ops.one_hot(labels, 4)
    for a, b in zip(Cutmix(1.0, 4)(images, labels, 1), Cutmix(1.0, 4)(images, rows, 1)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.extended
def test_micro_batches_train_alike(pixels):
    """The batch is mixed as a whole, before it is split."""
    weights = []
    for parts in (1, 2):
        model = dense_on_images()
        model.mixing, model.micro_batches = MixupOrCutmix(0.8, 1.0, 5), parts
        model.compile(keras.optimizers.SGD(0.1), SoftmaxCrossEntropy(), metrics=[Accuracy()], jit_compile=False)
        model.fit(pixels, np.arange(4) % 5, batch_size=4, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_layer("head").kernel.numpy())
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


def test_mistakes_are_clear_errors():
    with pytest.raises(ValueError, match="Cutmix: alpha must be positive, got 0"):
        Cutmix(0.0, 4)
    with pytest.raises(ValueError, match="MixupOrCutmix: cutmix must be positive, got -1"):
        MixupOrCutmix(0.2, -1, 4)


def test_a_batch_without_pairs_is_refused_where_its_size_is_known(pixels):
    model = dense_on_images()
    model.mixing = Mixup(0.2, 5)
    model.compile(keras.optimizers.SGD(0.1), SoftmaxCrossEntropy(), jit_compile=False)
    with pytest.raises(ValueError, match="pairs of images, and a batch has 1: choose a batch size .* multiple of 2"):
        model.train_on_batch(pixels[:1], np.zeros(1))
    ones = tf.data.Dataset.from_tensor_slices((pixels, np.zeros(4))).batch(1, drop_remainder=True)
    for data, options in ((ones, {}), (pixels, {"y": np.zeros(4), "batch_size": 1}), (pixels[:1], {"y": np.zeros(1)})):
        with pytest.raises(ValueError, match="and a batch has 1"):
            model.fit(data, **options)
    model.fit(pixels[:3], np.zeros(3), batch_size=2, verbose=0)  # the last batch of one image is left as it is
    for rows, devices in ((1, 2), (3, 2)):
        with pytest.raises(ValueError, match=f"2 devices has {rows}: choose a batch size that is a multiple of 4"):
            check_pairs(rows, devices)
    check_pairs(3)  # on one device only the last row has no neighbour
    check_pairs(4, 8)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "make",
    [keras.optimizers.Adam, lambda: keras.optimizers.Adam(gradient_accumulation_steps=2), lambda: Lookahead("adam")],
)
def test_the_step_that_seeds_mixing_advances_in_every_optimizer(make, scaled):
    """The counter of a LossScaleOptimizer, its first variable, never moves: all batches would be mixed alike."""
    weight = keras.Variable(np.ones(2, "float32"))
    optimizer = make()
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
    optimizer.build([weight])
    for _ in range(3):
        optimizer.apply([np.ones(2, "float32")])
    assert int(batches_taken(optimizer, [np.asarray(variable) for variable in optimizer.variables])) == 3
