"""Every preprocessing op on values, eagerly and inside tf.data."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.ops.op_registry import OPS, parse

RAMP = np.arange(6 * 8 * 3, dtype="uint8").reshape(6, 8, 3)
SEED = tf.constant([1, 2], tf.int64)


def run(text, image=RAMP, seed=SEED):
    """The result eagerly, after checking that tf.data gives the same."""
    ops = parse(text)
    eager = np.asarray(ops.image(tf.constant(image), seed))
    inside = next(iter(tf.data.Dataset.from_tensors(image).map(lambda x: ops.image(x, seed))))
    np.testing.assert_array_equal(eager, inside)
    assert eager.dtype == np.uint8
    return eager


def over_seeds(text, n, image=RAMP):
    """The results for the seeds (0, 0) to (n - 1, 0), (n, h, w, c)."""
    ops = parse(text)
    dataset = tf.data.Dataset.range(n).map(lambda i: ops.image(image, tf.stack([i, tf.constant(0, tf.int64)])))
    return np.stack(list(dataset.as_numpy_iterator()))


def test_every_op_has_a_test():
    text = "".join(path.read_text() for path in pathlib.Path(__file__).parent.glob("test_*.py"))
    assert all(f'"{name}' in text or f"|{name}" in text for name in OPS)


@pytest.mark.extended
def test_decode_matches_channels():
    gray = RAMP[..., :1]
    assert run("decode(1)", tf.io.encode_png(RAMP).numpy()).shape == (6, 8, 1)
    np.testing.assert_array_equal(run("decode", gray), np.repeat(gray, 3, -1))
    assert run("decode(1)").shape == (6, 8, 1)
    with pytest.raises(ValueError, match="got an array of 2 channels"):
        run("decode", RAMP[..., :2])


@pytest.mark.extended
def test_resize_keeps_the_aspect_with_one_number_only():
    assert run("resize(3)").shape == (3, 4, 3)
    assert run("resize(12)").shape == (12, 16, 3)
    # torchvision.transforms.functional.resize of 500x375 to 256: 341, not 341.33 rounded up; of 333x500 to 256: 384.
    assert run("resize(256)", np.zeros((375, 500, 3), "uint8")).shape == (256, 341, 3)
    assert run("resize(256)", np.zeros((500, 333, 3), "uint8")).shape == (384, 256, 3)
    assert run("resize(4, 5)").shape == (4, 5, 3)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_resize_equals_pillow_within_rounding(method):
    image_module = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype="uint8")
    expected = np.asarray(
        image_module.fromarray(image).resize((24, 16), getattr(image_module.Resampling, method.upper()))
    )
    result = run(f"resize(16, 24, method='{method}')", image)
    assert np.abs(result.astype(int) - expected).max() <= 2


@pytest.mark.extended
def test_central_crop_is_the_middle_and_pads_what_is_small():
    np.testing.assert_array_equal(run("central_crop(2, 4)"), RAMP[2:4, 2:6])
    padded = run("central_crop(10)")
    assert padded.shape == (10, 10, 3)
    np.testing.assert_array_equal(padded[2:8, 1:9], RAMP)
    # Of two middles the even offset, as torchvision's round() has it: (6 - 3) / 2 is 2, (8 - 3) / 2 is 2, (8 - 7) / 2
    # is 0.
    np.testing.assert_array_equal(run("central_crop(3)"), RAMP[2:5, 2:5])
    np.testing.assert_array_equal(run("central_crop(5, 7)"), RAMP[0:5, 0:7])


def test_random_crop_is_a_window_and_moves_with_the_seed():
    windows = {window.tobytes() for window in over_seeds("random_crop(3, 4)", 20)}
    every = {RAMP[i : i + 3, j : j + 4].tobytes() for i in range(4) for j in range(5)}
    assert len(windows) > 5 and windows <= every and run("random_crop(3, 4)").tobytes() in every
    assert run("random_crop(6, 8, padding=1)").shape == (6, 8, 3)


def test_random_resized_crop_stays_within_the_values():
    y = run("random_resized_crop(5, scale=(0.3, 1.0))")
    assert y.shape == (5, 5, 3) and y.max() <= RAMP.max()
    constant = np.full((9, 9, 3), 77, "uint8")
    np.testing.assert_array_equal(run("random_resized_crop(5)", constant), np.full((5, 5, 3), 77))


def test_random_flip_flips_half():
    flipped = [(image == RAMP[:, ::-1]).all() for image in over_seeds("random_flip", 40)]
    assert (run("random_flip") == RAMP).all() or (run("random_flip") == RAMP[:, ::-1]).all()
    assert 10 < sum(flipped) < 30


def test_random_shift_moves_by_whole_pixels_and_fills_with_black():
    padded, shifts = np.pad(RAMP, ((1, 1), (1, 1), (0, 0))), set()
    for image in [run("random_shift(1)"), *over_seeds("random_shift(1)", 60)]:
        matches = {(a, b) for a in range(3) for b in range(3) if (padded[a : a + 6, b : b + 8] == image).all()}
        assert len(matches) == 1
        shifts |= matches
    assert len(shifts) == 9


def test_multiply_scales_pixels_of_another_range():
    zeros_and_ones = (RAMP % 2).astype("uint8")
    np.testing.assert_array_equal(run("decode|multiply(255)", zeros_and_ones), 255 * zeros_and_ones)
    with pytest.raises(ValueError, match="multiply: expected a positive number, got factor=0"):
        parse("multiply(0)")


def test_noise_has_the_deviation_it_says():
    y = run("noise(10)", np.full((64, 64, 3), 128, "uint8")).astype(float)
    assert abs(y.std() - 10) < 0.5 and abs(y.mean() - 128) < 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("decode|resise(3)", 'Unknown preprocessing op "resise". Did you mean "resize"'),
        ("resize", r"missing a required argument: 'height'. The op is resize\(height"),
        ("resize(3, colour=1)", "unexpected keyword argument 'colour'"),
        ("resize(-3)", "positive integers"),
        ("resize(__import__('os'))", "Cannot read"),
        ("resize(3", "Cannot read"),
        (
            None,
            "should be text, got None. model.preprocessing is None for a model without one. Write it out, for a model"
            " of 224 px",
        ),
    ],
)
def test_mistakes_are_clear_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_random_ops_are_marked():
    random = {name for name, op in OPS.items() if op.random}
    assert random >= {"random_crop", "random_resized_crop", "random_flip", "random_shift", "noise", "rand_augment"}
    assert not random & {"decode", "resize", "central_crop", "check", "multiply", "one_hot"}
    assert parse("decode|resize(3)").random is False
