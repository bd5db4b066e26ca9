"""Ops for images with boxes, against NumPy: letterbox, jitter, crops that keep objects, zooming out; and the way back.

That boxes move as the pixels do is tested for every op in test_geometry.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import parse
from keras_vit.data.ops import box_ops
from keras_vit.data.ops.frame import frame, to_original, with_frame

H, W = 12, 20
IMAGE = np.random.default_rng(0).integers(1, 256, (H, W, 3)).astype("uint8")
BOXES = np.array([[0, 0, 0.5, 0.5], [0.25, 0.4, 1, 0.9], [0.5, 0.5, 0.5, 0.5]], "float32")


def results(text, example, seeds=range(60)):
    """A text's results for each seed, in a graph."""
    ops = parse(text)
    mapped = tf.data.Dataset.from_tensor_slices(list(seeds)).map(lambda seed: ops(example, tf.stack([seed, 7])))
    return list(mapped.as_numpy_iterator())


def areas(boxes):
    return np.prod(boxes[:, 2:] - boxes[:, :2], 1)


def test_letterbox_resizes_to_fit_and_pads():
    small = parse("resize(16, 26)").image(IMAGE)
    for text, above in [("letterbox(30, 26)", 7), ("letterbox(30, 26, place='corner')", 0)]:
        result = parse(text)({"image": IMAGE, "boxes": BOXES})
        np.testing.assert_array_equal(result["image"], np.pad(small, [(above, 14 - above), (0, 0), (0, 0)]))
        expected = (BOXES * [16, 26, 16, 26] + [above, 0, above, 0]) / [30, 26, 30, 26]
        np.testing.assert_allclose(result["boxes"], expected, atol=1e-6)
    assert parse("letterbox(9)").image(IMAGE[:1]).shape == (9, 9, 3)
    with pytest.raises(ValueError, match="letterbox: expected one of centre, corner, got place='top'"):
        parse("letterbox(9, place='top')")


@pytest.mark.extended
def test_large_scale_jitter_is_a_composition():
    sizes = {result["image"].shape for result in results("scale_jitter(24, low=0.5)", {"image": IMAGE})}
    assert all(abs(h / w - H / W) < 1 / w for h, w, _ in sizes) and len(sizes) > 20
    assert min(sizes)[1] >= 12 and 40 < max(sizes)[1] <= 48
    [cut] = results("scale_jitter(24)|scene_crop(24)", {"image": IMAGE, "boxes": BOXES}, [0])
    assert cut["image"].shape == (24, 24, 3)
    with pytest.raises(ValueError, match="scale_jitter: expected 0 < low <= high"):
        parse("scale_jitter(24, low=2, high=1)")


@pytest.mark.extended
def test_box_crop_keeps_a_share_of_a_box_and_drops_slivers():
    least, keep = 0.6, 0.5
    example = {"image": IMAGE, "boxes": BOXES}
    text = "box_crop({}, {}, probability=1, scale=(0.05, 0.9))"
    cut, whole = (results(text.format(least, number), example) for number in (keep, 0))
    dropped = 0
    for one, other in zip(cut, whole):
        np.testing.assert_array_equal(one["image"], other["image"])
        shares = areas(other["boxes"][:2]) * np.prod(one["image"].shape[:2]) / (areas(BOXES[:2]) * H * W)
        assert shares.max() > least - 0.15  # TensorFlow rounds boxes to pixels
        kept = shares >= keep
        np.testing.assert_array_equal(one["boxes"][:2], np.where(kept[:, None], other["boxes"][:2], 0))
        dropped += ((shares > 0) & ~kept).sum()
    assert dropped > 5 and len({one["image"].shape for one in cut}) > 20


@pytest.mark.extended
def test_box_crop_without_boxes_and_with_a_probability():
    for example in ({"image": IMAGE}, {"image": IMAGE, "boxes": np.zeros((0, 4), "float32")}):
        sizes = [result["image"].shape for result in results("box_crop(probability=0.5)", example)]
        assert 15 < sizes.count(IMAGE.shape) < 45
    for wrong in ("2", "()", "keep=-1", "scale=(0, 1)", "ratio=(2, 1)", "probability=2"):
        with pytest.raises(ValueError, match="box_crop: expected"):
            parse(f"box_crop({wrong})")


def test_expand_puts_the_image_on_a_canvas():
    places = set()
    for result in results("expand(1, 3, probability=0.8)", {"image": IMAGE}):
        ys, xs = (np.flatnonzero(result["image"].any((axis, 2))) for axis in (1, 0))
        np.testing.assert_array_equal(result["image"][ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1], IMAGE)
        places.add((*result["image"].shape, ys[0], xs[0]))
    assert len(places) > 30 and max(places)[0] > 30 and min(places)[:2] == (H, W)
    with pytest.raises(ValueError, match="expand: expected 1 <= low"):
        parse("expand(0.5)")


def test_expand_stays_below_the_largest_number_of_pixels(monkeypatch):
    monkeypatch.setattr(box_ops, "LARGE", 960)
    sizes = {result["image"].shape for result in results("expand(3, 4, probability=1)", {"image": IMAGE}, range(3))}
    assert sizes == {(24, 40, 3)}


def test_small_boxes_become_empty():
    boxes = np.array([[0, 0, 0.5, 0.5], [0, 0, 0.1, 1], [0.5, 0.5, 0.75, 0.75]], "float32")  # 6x10, 1.2x20, 3x5
    example = {"image": IMAGE, "boxes": boxes, "labels": np.arange(3)}
    for text, kept in [("drop_small_boxes(2)", [1, 0, 1]), ("drop_small_boxes(0, 0.08)", [1, 1, 0])]:
        result = parse(text)(example)
        np.testing.assert_array_equal(result["boxes"], boxes * np.array(kept)[:, None])
        assert result["labels"].tolist() == [0, 1, 2]
    assert set(parse("drop_small_boxes")({"image": IMAGE})) == {"image"}
    assert parse("drop_small_boxes").image(IMAGE).shape == IMAGE.shape
    with pytest.raises(ValueError, match="drop_small_boxes: expected a side of 0 pixels or more"):
        parse("drop_small_boxes(-1)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resize(32, 32)", [0, 0, 1, 1]),
        ("letterbox(30, 26)", [-7 / 16, 0, 23 / 16, 1]),
        ("letterbox(30, 26, place='corner')", [0, 0, 30 / 16, 1]),
        ("resize(24)|central_crop(20)", [2 / 24, 10 / 40, 22 / 24, 30 / 40]),
        ("crop_border(1)|pad_to(12, 20)|drop_small_boxes(3)", [1 / 12, 1 / 20, 13 / 12, 21 / 20]),
    ],
)
def test_boxes_in_a_preprocessed_image_go_back_to_the_original(text, expected):
    found = frame(text, H, W)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    inside = np.array([[0.3, 0.4, 0.6, 0.7]], "float32")
    moved = parse(text)({"image": IMAGE, "boxes": inside})["boxes"]
    for boxes in (moved, moved.numpy()):
        np.testing.assert_allclose(to_original(boxes, found), inside, atol=1e-5)


@pytest.mark.extended
def test_the_frame_of_an_encoded_image_comes_with_its_pixels():
    ops, encoded = parse("decode|letterbox(30, 26)"), tf.io.encode_png(IMAGE)
    pixels, found = tf.function(lambda image: with_frame(ops, image))(encoded)
    np.testing.assert_array_equal(pixels, parse("letterbox(30, 26)").image(IMAGE))
    np.testing.assert_allclose(found, frame("letterbox(30, 26)", H, W))
    with pytest.raises(ValueError, match="has random ops"):
        frame("random_crop(4)", H, W)
    with pytest.raises(tf.errors.InvalidArgumentError, match="keeps too little of the image"):
        frame("central_crop(1)", 2000, 2)
