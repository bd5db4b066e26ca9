"""The random augmentation ops: policies, jitter, erasing; the value check; ops on labels."""

import collections
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import evaluation_batches, from_arrays, training_batches
from keras_vit.data.ops import affine, color, policies
from keras_vit.data.ops.op_registry import OPS, parse

PHOTO = np.load(pathlib.Path(__file__).parent / "goldens" / "augment.npz")["color"]
NEW = [
    "rand_augment(2, 0)", "auto_augment()", "trivial_augment()", "color_jitter(.4, .4, .4, .1)",
    "random_grayscale(.5)", "gaussian_blur(.5)", "solarize(.5)", "three_augment()", "random_erasing(.9)",
    "random_erasing(.9, mode='rand')", "random_erasing(.9, mode='const')",
]  # fmt: skip


def draws(text, n, image=PHOTO):
    """The results for seeds 0 to n - 1, (n, h, w, c), in tf.data."""
    ops = parse(text)
    dataset = tf.data.Dataset.range(n).map(lambda i: ops.image(image, tf.stack([i, 7])), num_parallel_calls=2)
    assert dataset.element_spec == tf.TensorSpec(image.shape, tf.uint8)
    return np.stack(list(dataset.as_numpy_iterator()))


@pytest.mark.extended
def test_a_result_is_a_function_of_the_seed_in_tf_data_and_outside_and_gray_stays_gray():
    text = "rand_augment(2, 0)|color_jitter(.4, .4, .4, .1)|random_erasing(.9)"
    ops, inside = parse(text), draws(text, 3)
    for i in range(3):
        np.testing.assert_array_equal(ops.image(tf.constant(PHOTO), tf.constant([i, 7], tf.int64)), inside[i])
    assert len({pixels.tobytes() for pixels in inside}) == 3
    gray = tf.constant(PHOTO[..., :1])
    for text in NEW:
        assert parse(text).image(gray, tf.constant([0, 7], tf.int64)).shape == (24, 32, 1), text


def both_ways(function, amount):
    return [function(PHOTO, amount, 128), function(PHOTO, -amount, 128)]


@pytest.mark.extended
def test_rand_augment_draws_each_of_its_ops_as_often_with_the_papers_strengths():
    image = tf.constant(PHOTO)
    expected = {  # at magnitude 15
        "autocontrast": [color.autocontrast(image)],
        "equalize": [color.equalize(image)],
        "invert": [color.invert(image)],
        "rotate": both_ways(affine.rotate, 45.0),
        "posterize": [color.posterize(image, 6)],
        "solarize": [color.solarize(image, 128)],
        "color": [color.saturation(image, 2.8)],
        "contrast": [color.contrast(image, 2.8)],
        "brightness": [color.brightness(image, 2.8)],
        "sharpness": [color.sharpness(image, 2.8)],
        "shear_x": both_ways(affine.shear_x, 0.45),
        "shear_y": both_ways(affine.shear_y, 0.45),
        "translate_x": both_ways(affine.translate_x, 12),
        "translate_y": both_ways(affine.translate_y, 12),
        "solarize_add": [color.solarize_add(image, 165)],
    }
    names = {np.asarray(x).tobytes(): (name, i) for name, results in expected.items() for i, x in enumerate(results)}
    assert len(names) == 20
    results = draws("rand_augment(1, 15, translate=8, cut=4)", 1600)
    matches = [names.get(x.tobytes(), ("cutout", 0)) for x in results]
    counts = collections.Counter(name for name, _ in matches)
    assert set(counts) == {*expected, "cutout"} and all(65 < count < 135 for count in counts.values()), counts
    ways = collections.Counter(matches)
    assert all(0.3 < ways[name, 0] / counts[name] < 0.7 for name, results in expected.items() if len(results) == 2)
    squares = [x for x, (name, _) in zip(results, matches) if name == "cutout"]
    for x in squares:
        gray = (x == 128).all(-1) & (x != PHOTO).any(-1)
        ys, xs = np.flatnonzero(gray.any(1)), np.flatnonzero(gray.any(0))
        assert len(ys) <= 12 and len(xs) <= 12
        np.testing.assert_array_equal(x[~gray], PHOTO[~gray])
        assert (x[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1] == 128).all()
    assert max(np.count_nonzero((x == 128).all(-1)) for x in squares) >= 144


@pytest.mark.extended
def test_auto_augment_applies_one_of_the_25_pairs_with_their_probabilities():
    pairs = policies.POLICIES["v0"]
    assert len(pairs) == 25 and pairs[0] == (("equalize", 0.8, 1), ("shear_y", 0.8, 4))

    def outcomes(images, name, level):
        value = float(policies.auto_value(name, level, 250, 100))
        return [policies.AUTO_OPS[name](x, value, [d, 0, 0], 128) for x in images for d in (0.0, 1.0)]

    photo = [tf.constant(PHOTO)]
    possible = list(photo)
    for (first, _, a), (second, _, b) in pairs:
        done = outcomes(photo, first, a)
        possible += done + outcomes(photo, second, b) + outcomes(done, second, b)
    possible = {np.asarray(x).tobytes() for x in possible}
    results = [x.tobytes() for x in draws("auto_augment('v0')", 400)]
    assert set(results) <= possible and len(set(results)) > 40
    untouched = np.mean([x == PHOTO.tobytes() for x in results])
    none = np.mean([(1 - p) * (1 - q) for (_, p, _), (_, q, _) in pairs])
    assert abs(untouched - none) < 0.06


@pytest.mark.extended
def test_trivial_augment_has_the_wide_ranges():
    image = tf.constant(PHOTO)

    def at(level):
        values = {name: float(policies.trivial_value(name, level)) for name in policies.TRIVIAL_OPS}
        return {name: np.asarray(op(image, values[name], [0.9, 0, 0], 0)) for name, op in policies.TRIVIAL_OPS.items()}

    least, most = at(0), at(30)
    np.testing.assert_array_equal(most["rotate"], affine.rotate(image, 135.0, 0))
    np.testing.assert_array_equal(most["shear_x"], affine.shear_x(image, 0.99, 0))
    np.testing.assert_array_equal(most["translate_y"], np.zeros_like(PHOTO))  # 32 pixels of 24
    np.testing.assert_array_equal(most["brightness"], color.brightness(image, 1.99))
    np.testing.assert_array_equal(most["posterize"], color.posterize(image, 2))
    np.testing.assert_array_equal(most["solarize"], color.invert(image))
    for name in set(least) - {"autocontrast", "equalize"}:
        np.testing.assert_array_equal(least[name], PHOTO)
    same = np.mean([(x == PHOTO).all() for x in draws("trivial_augment", 300)])
    assert 1 / 14 - 0.04 < same < 0.25 and len(least) == 14


@pytest.mark.extended
def test_color_jitter_changes_in_either_order_and_leaves_some():
    image = tf.constant(PHOTO)
    a, b = color.contrast(color.brightness(image, 1.5), 0.5), color.brightness(color.contrast(image, 0.5), 1.5)
    text = "color_jitter(brightness=(1.5, 1.5), contrast=(0.5, 0.5), probability=0.7)"
    counts = collections.Counter(x.tobytes() for x in draws(text, 200))
    a, b, same = (counts.pop(np.asarray(x).tobytes()) for x in (a, b, image))
    assert not counts and 50 < a < 90 and 50 < b < 90 and 40 < same < 80
    np.testing.assert_array_equal(draws("color_jitter()", 3), np.stack([PHOTO] * 3))


@pytest.mark.extended
def test_color_jitter_draws_factors_evenly_within_its_range():
    gray = np.full((4, 4, 3), 100, "uint8")
    factors = draws("color_jitter(0.4)", 400, gray)[:, 0, 0, 0] / 100
    assert 0.59 <= factors.min() < 0.63 and 1.37 < factors.max() <= 1.4 and abs(factors.mean() - 1) < 0.04
    dark = draws("color_jitter(brightness=3)", 200, gray)[:, 0, 0, 0]  # from [0, 4], not from [-2, 4]
    assert (dark == 0).mean() < 0.03 and (dark == 255).mean() > 0.25
    turned = draws("color_jitter(hue=0.5)", 100, np.full((1, 1, 3), (200, 50, 50), "uint8"))
    assert turned.max() == 200 and turned.min() == 50 and len({x.argmax() for x in turned}) == 3


@pytest.mark.extended
@pytest.mark.parametrize("text", ["solarize(.3)", "random_erasing(.3)"])
def test_a_probability_is_the_share_of_images_that_change(text):
    changed = np.mean([(x != PHOTO).any() for x in draws(text, 400)])
    assert 0.23 < changed < 0.37


@pytest.mark.extended
def test_three_augment_is_one_of_three():
    image = tf.constant(PHOTO)
    known = {np.asarray(f(image)).tobytes(): f.__name__ for f in (color.grayscale, color.solarize)}
    counts = collections.Counter(known.get(x.tobytes(), "blur") for x in draws("three_augment(sigma=(0.5, 2))", 300))
    assert all(75 < counts[name] < 125 for name in ("grayscale", "solarize", "blur"))
    blurred = color.gaussian_blur(image, 1.5, 4)
    np.testing.assert_array_equal(draws("gaussian_blur(1, sigma=(1.5, 1.5))", 2)[1], blurred)


@pytest.mark.parametrize("mode", ["pixel", "rand", "const"])
def test_random_erasing_fills_one_rectangle_of_the_size_it_says(mode):
    image = np.full((60, 80, 3), 1, "uint8")
    shares, ratios, inside = [], [], []
    for x in draws(f"random_erasing(1.0, scale=(0.1, 0.3), ratio=(0.5, 2.0), mode='{mode}')", 60, image):
        erased = (x != 1).any(-1)
        ys, xs = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
        height, width = ys[-1] - ys[0] + 1, xs[-1] - xs[0] + 1
        shares.append(height * width / (60 * 80))
        ratios.append(height / width)
        inside.append(x[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1].reshape(-1, 3))
        assert erased.sum() >= height * width * 0.99
    assert 0.09 < min(shares) < 0.15 and 0.25 < max(shares) < 0.31
    assert 0.45 < min(ratios) < 0.8 and 1.25 < max(ratios) < 2.1
    assert abs(np.corrcoef(shares, ratios)[0, 1]) < 0.4
    one_colour = [len(np.unique(pixels, axis=0)) == 1 for pixels in inside]
    assert all(one_colour) if mode != "pixel" else not any(one_colour)
    values = np.concatenate(inside) if mode == "pixel" else np.stack([pixels[0] for pixels in inside])
    if mode == "const":
        assert (values == [124, 116, 104]).all()
    else:
        off = 1 if mode == "pixel" else 25
        np.testing.assert_allclose(values.mean(0), [123.7, 116.3, 103.5], atol=off + 2)  # clipped at 0 and 255
        np.testing.assert_allclose(values.std(0), [58, 57, 57], atol=off + 4)


def test_random_erasing_leaves_what_has_no_room():
    thin = np.full((1, 40, 3), 9, "uint8")
    np.testing.assert_array_equal(draws("random_erasing(1.0)", 3, thin), np.stack([thin] * 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rand_augment(0, 15)", "at least 1, got layers=0"),
        ("rand_augment(2, 31)", "from 0 to 30, got magnitude=31"),
        ("auto_augment('v9')", "expected one of v0, got policy='v9'"),
        ("color_jitter(hue=.6)", "numbers from -0.5 to 0.5"),
        ("gaussian_blur(.5, sigma=(0, 1))", "0 < low <= high"),
        ("random_erasing(mode='noise')", "expected one of pixel, rand, const"),
        ("check(3, 1)", "low <= high"),
        ("one_hot(0)", "at least 1, got classes=0"),
        ("decode|keep('image', 'label')", "`select` chooses the values in a batch"),
        ("decode|value_range(-1, 1)", "the model normalises them"),
    ],
)
def test_mistakes_are_clear_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.extended
def test_check_refuses_pixels_that_are_out_of_range_or_not_finite():
    good = tf.constant(PHOTO, tf.float32)
    np.testing.assert_array_equal(OPS["check"].factory()(good), good)
    for bad in (-1.0, 256.0, np.nan, np.inf):
        image = np.array(good)
        image[3, 4, 1] = bad
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"check\(0, 255\): expected finite pixels from 0 to 255"
        ):
            parse("check()").image(tf.constant(image))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"check\(0, 255\)"):
        next(iter(tf.data.Dataset.from_tensors(image).map(parse("check|central_crop(2)").image)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"check\(0, 200\)"):
        parse("check(0, 200)").image(tf.constant(PHOTO))


@pytest.mark.extended
def test_one_hot_makes_rows_of_labels_in_training():
    source = from_arrays(np.zeros((8, 4, 4, 3), "uint8"), np.arange(8) % 3)
    images, rows = next(iter(training_batches(source, "one_hot(3)|random_flip", 8)))
    labels = [source.labels[key] for _, key in source.shuffled_keys(0).take(8)]
    np.testing.assert_array_equal(rows, np.eye(3)[labels])
    smoothed = parse("one_hot(4, on=0.9, off=0.1)")
    rows = [smoothed({"image": PHOTO, "label": label})["label"] for label in labels]
    np.testing.assert_allclose(rows, 0.1 + 0.8 * np.eye(4)[labels], rtol=1e-6)
    with pytest.raises(ValueError, match="remove one_hot from"):
        evaluation_batches(source, "one_hot(3)", 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"one_hot\(2\): expected a label from 0 to 1, got"):
        parse("one_hot(2)")({"image": tf.constant(PHOTO), "label": tf.constant(2)})
