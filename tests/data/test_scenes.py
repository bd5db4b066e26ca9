"""Ops for scenes with masks of classes, against NumPy: scales, crops that limit a class, padding with void, colours."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import parse
from keras_vit.data.ops.op_registry import OPS

RNG = np.random.default_rng(0)
VOID = 255


def scene(height=12, width=20, seed=0):
    """An image whose red channel is its mask times 10: half class 1, the rest classes 2 to 4 and void."""
    rng = np.random.default_rng(seed)
    mask = np.ones((height, width, 1), "uint8")
    mask[:, width // 2 :] = rng.choice([2, 3, 4, VOID], (height, width - width // 2, 1))
    image = rng.integers(0, 256, (height, width, 3)).astype("uint8")
    image[..., 0] = np.minimum(10.0 * mask[..., 0], 255)
    return {"image": image, "mask": mask, "void": np.uint8(VOID)}


def both_ways(text, example, seeds=(0,)):
    """Results of a text for each seed, eagerly; tf.data's are the same."""
    ops = parse(text)
    tensors = {key: tf.convert_to_tensor(value) for key, value in example.items()}
    found = [ops(tensors, [seed, 7]) for seed in seeds]
    mapped = tf.data.Dataset.from_tensor_slices(list(seeds)).map(lambda seed: ops(tensors, tf.stack([seed, 7])))
    for ours, theirs in zip(found, mapped.as_numpy_iterator()):
        assert ours.keys() == theirs.keys() == example.keys()
        for key in ours:
            np.testing.assert_array_equal(ours[key], theirs[key])
    return [{key: value.numpy() for key, value in result.items()} for result in found]


def own(seed, number=0):
    """The seed that an op gets at a place of a text."""
    return tf.random.experimental.stateless_fold_in(tf.constant([seed, 7]), number)


@pytest.mark.extended
def test_random_scale_takes_one_factor_for_both_sides():
    example, seeds = {**scene(), "boxes": np.array([[0.25, 0.5, 1.0, 0.75]], "float32")}, range(6)
    sizes = set()
    for seed, result in zip(seeds, both_ways("random_scale(0.5, 2.0)", example, seeds)):
        factor = float(tf.random.stateless_uniform((), own(seed), 0.5, 2.0))
        size = (round(12 * factor), round(20 * factor))
        assert result["image"].shape == (*size, 3) and result["mask"].shape == (*size, 1)
        ys, xs = (np.floor((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(size, (12, 20)))
        np.testing.assert_array_equal(result["mask"], example["mask"][ys][:, xs])
        np.testing.assert_array_equal(result["boxes"], example["boxes"])
        sizes.add(size)
    assert len(sizes) > 3
    for wrong in ("random_scale(0, 1)", "random_scale(2, 1)"):
        with pytest.raises(ValueError, match="expected 0 < low <= high"):
            parse(wrong)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 33554432 pixels"):
        parse("random_scale(900, 900)")(scene(), [0, 0])


def test_pad_to_pads_below_and_on_the_right_with_void():
    example = {**scene(), "boxes": np.array([[0.0, 0.5, 1.0, 1.0]], "float32")}
    [result] = both_ways("pad_to(16, 25)", example)
    np.testing.assert_array_equal(result["image"], np.pad(example["image"], [(0, 4), (0, 5), (0, 0)]))
    expected = np.pad(example["mask"], [(0, 4), (0, 5), (0, 0)], constant_values=VOID)
    np.testing.assert_array_equal(result["mask"], expected)
    np.testing.assert_allclose(result["boxes"], [[0, 10 / 25, 12 / 16, 20 / 25]], rtol=1e-6)
    assert parse("pad_to(30)")(example)["mask"].shape == (30, 30, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected an image of at most that size"):
        parse("pad_to(12, 19)")(example)


PADDING = ["central_crop(16, 26)", "random_crop(12, 20, padding=5)", "random_shift(6)", "pad_to(16, 26)"]
PADDING += ["letterbox(30, 26)", "expand(1.5, 3, probability=1)", "scene_crop(16, 26)"]


@pytest.mark.extended
@pytest.mark.parametrize(("text", "dtype"), [*((text, "uint8") for text in PADDING), (PADDING[-1], "int32")])
def test_what_padding_brings_in_is_void_where_there_is_void_and_0_elsewhere(text, dtype):
    example, void = scene(), VOID if dtype == "uint8" else 65535
    mask = np.full(example["mask"].shape, 7, dtype)
    image = np.full(example["image"].shape, 9, "uint8")
    [with_void] = both_ways(text, {"image": image, "mask": mask, "void": np.array(void, dtype)})
    [without] = both_ways(text, {"image": image, "mask": mask})
    inside = with_void["image"][..., :1] == 9
    assert 0 < inside.sum() < inside.size and with_void["mask"].dtype == without["mask"].dtype == dtype
    np.testing.assert_array_equal(with_void["image"], without["image"])
    np.testing.assert_array_equal(with_void["mask"], np.where(inside, 7, void))
    np.testing.assert_array_equal(without["mask"], np.where(inside, 7, 0))


def test_every_op_that_brings_in_pixels_around_a_mask_reads_void():
    assert {text.partition("(")[0] for text in PADDING} == {name for name, op in OPS.items() if "void" in op.reads}


def mixed(mask, limit):
    """mmsegmentation's condition on a crop, RandomCrop.crop_bbox: two classes or more, none with the limit or more."""
    labels, counts = np.unique(mask, return_counts=True)
    counts = counts[labels != VOID]
    return len(counts) > 1 and counts.max() / counts.sum() < limit


def windows(seed, shape, size):
    """The 11 windows of scene_crop, as (top, left)."""
    samples = tf.random.stateless_uniform((11, 2), own(seed)).numpy()
    margins = np.array(shape) - size
    return np.minimum((samples * (margins + 1).astype("float32")).astype(int), margins)


@pytest.mark.extended
@pytest.mark.parametrize("limit", [0.75, 0.5, 0.3, 1])
def test_scene_crop_takes_the_first_window_that_is_mixed(limit):
    example, seeds, places = scene(), range(12), []
    for seed, result in zip(seeds, both_ways(f"scene_crop(6, 7, max_share={limit})", example, seeds)):
        corners = windows(seed, (12, 20), (6, 7))
        cut = [example["mask"][top : top + 6, left : left + 7] for top, left in corners]
        suits = [i for i in range(10) if mixed(cut[i], limit)] if limit < 1 else [0]
        places.append(suits[0] if suits else 10)
        top, left = corners[places[-1]]
        np.testing.assert_array_equal(result["mask"], cut[places[-1]])
        np.testing.assert_array_equal(result["image"], example["image"][top : top + 6, left : left + 7])
    assert {0.75: 0 < max(places) < 10, 0.3: 10 in places, 1: not any(places)}.get(limit, True)


def test_scene_crop_without_a_mask_has_the_first_window_and_moves_boxes():
    boxes = np.array([[0.0, 0.0, 1.0, 1.0]], "float32")
    for seed in range(3):
        top, left = windows(seed, (12, 20), (6, 7))[0]
        [result] = both_ways("scene_crop(6, 7)", {"image": scene()["image"], "boxes": boxes}, [seed])
        np.testing.assert_array_equal(result["image"], scene()["image"][top : top + 6, left : left + 7])
        np.testing.assert_allclose(result["boxes"], [[0, 0, 1, 1]])
    with pytest.raises(ValueError, match="a share above 0 and at most 1, got max_share=75"):
        parse("scene_crop(6, max_share=75)")


def test_scene_crop_pads_what_is_smaller():
    [result] = both_ways("scene_crop(16, 8, max_share=1)", scene())
    _, left = windows(0, (16, 20), (16, 8))[0]
    np.testing.assert_array_equal(result["mask"][:12], scene()["mask"][:, left : left + 8])
    assert (result["mask"][12:] == VOID).all() and not result["image"][12:].any()


def by_numpy(image, samples):
    """mmsegmentation's PhotoMetricDistortion with these samples, its hue and saturation in floats."""
    chosen, amounts = samples[:5] < 0.5, samples[5:]

    def convert(pixels, alpha=1.0, beta=0.0):
        return np.floor(np.clip(pixels * alpha + beta, 0, 255))

    pixels = image.astype("float32")
    if chosen[0]:
        pixels = convert(pixels, beta=-32 + 64 * amounts[0])
    if chosen[1] and chosen[4]:
        pixels = convert(pixels, alpha=0.5 + amounts[1])
    if chosen[2] or chosen[3]:
        factor = 0.5 + amounts[2] if chosen[2] else 1.0
        turn = np.floor(-18 + 36 * amounts[3]) / 180 if chosen[3] else 0.0
        for place in np.ndindex(image.shape[:2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[place] / 255))
            pixels[place] = np.round(
                np.multiply(255, colorsys.hsv_to_rgb((hue + turn) % 1, min(saturation * factor, 1), value))
            )
    if chosen[1] and not chosen[4]:
        pixels = convert(pixels, alpha=0.5 + amounts[1])
    return pixels


@pytest.mark.extended
def test_photometric_distortion_is_mmsegmentations():
    image, seen = RNG.integers(0, 256, (5, 6, 3)).astype("uint8"), set()
    example = {**scene(), "image": image, "mask": np.ones((5, 6, 1), "uint8")}
    seeds = range(24)
    for seed, result in zip(seeds, both_ways("photometric_distortion", example, seeds)):
        samples = tf.random.stateless_uniform((9,), own(seed)).numpy()
        np.testing.assert_allclose(result["image"], by_numpy(image, samples), atol=1)
        np.testing.assert_array_equal(result["mask"], example["mask"])
        seen.add(tuple(samples[:5] < 0.5))
    assert len(seen) > 12
    grey = parse("photometric_distortion")({"image": image[..., :1]}, [1, 7])["image"]
    assert grey.shape == (5, 6, 1)


@pytest.mark.parametrize(
    "text",
    ["photometric_distortion(hue=0.1)", "photometric_distortion(300)", "photometric_distortion(contrast=(2, 1))"],
)
def test_wrong_ranges_are_refused(text):
    with pytest.raises(ValueError, match="photometric_distortion: "):
        parse(text)
