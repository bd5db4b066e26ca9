"""Rows of objects with masks on a grid, and segments moved by the ops as each object's own mask is."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import pack_masks, parse
from keras_vit.data.instances import pack_instances
from keras_vit.data.ops.op_registry import OPS

H, W, OBJECTS = 24, 36, 4


def masks_of(segments, count):
    return np.stack([(segments == number).any(-1) for number in range(1, count + 1)])


def scene(seed=0):
    """Four ellipses of which some overlap, in an image."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[:H, :W]
    segments = np.zeros((H, W, 2), "int32")
    for number in range(1, OBJECTS + 1):
        y, x, tall, wide = rng.uniform(4, 20), rng.uniform(4, 32), rng.uniform(2, 7), rng.uniform(2, 9)
        inside = ((ys - y) / tall) ** 2 + ((xs - x) / wide) ** 2 < 1
        segments[inside, 0] = number
        segments[inside & (segments[..., 1] == 0), 1] = number
    masks = masks_of(segments, OBJECTS)
    boxes = [
        [rows.min() / H, columns.min() / W, (rows.max() + 1) / H, (columns.max() + 1) / W]
        for rows, columns in map(np.nonzero, masks)
    ]
    return {
        "image": rng.integers(0, 256, (H, W, 3)).astype("uint8"),
        "segments": segments,
        "boxes": np.array(boxes, "float32"),
        "labels": np.arange(OBJECTS, dtype="int32"),
        "crowd": np.zeros(OBJECTS, "int32"),
        "area": masks.sum((1, 2)).astype("float32"),
        "size": np.array([H, W], "int32"),
    }


TEXTS = [
    "resize(17, 47)",
    "central_crop(30, 20)",
    "crop_border(5)",
    "random_crop(20, 40, padding=9)",
    "random_resized_crop(20, 22, scale=(0.1, 1.0))",
    "random_flip",
    "random_shift(8)",
    "random_scale(0.6, 1.7)",
    "pad_to(30, 40)",
    "scene_crop(20, 30, max_share=1)",
    "letterbox(32, 30)",
    "scale_jitter(32, 24, 0.4, 2.0)",
    "box_crop(keep=0.0, probability=0.9)",
    "expand(1.0, 2.5, probability=0.9)",
    "decode|random_resized_crop(20, 22)|random_flip",
]


def test_all_ops_that_move_masks_move_segments():
    moving = {name for name, op in OPS.items() if "mask" in op.keys}
    assert all("segments" in OPS[name].keys for name in moving)
    assert moving == {call.partition("(")[0] for text in TEXTS for call in text.split("|")}
    assert all("segments" in op.refuses for op in OPS.values() if "mask" in op.refuses)


@pytest.mark.extended
@pytest.mark.parametrize("text", TEXTS)
def test_segments_move_as_each_objects_own_mask(text):
    ops, example = parse(text), scene()
    for seed in range(8):
        key = tf.constant([seed, 7])
        moved = ops(example, key)
        expected = [
            ops({**example, "mask": mask[..., None].astype("uint8"), "void": np.uint8(0)}, key)["mask"][..., 0]
            for mask in masks_of(example["segments"], OBJECTS)
        ]
        np.testing.assert_array_equal(masks_of(moved["segments"].numpy(), OBJECTS), np.array(expected) > 0)


def test_segments_of_a_jpeg_move_with_its_window():
    example = scene()
    encoded = {**example, "image": tf.io.encode_jpeg(example["image"])}
    text = "decode|random_resized_crop(20, 22, scale=(0.2, 1.0))"
    for seed in range(3):
        moved, expected = (parse(text)(given, [seed, 7])["segments"] for given in (encoded, example))
        np.testing.assert_array_equal(moved, expected)


def test_wrong_segments_are_refused():
    with pytest.raises(ValueError, match=r'Expected "segments" as int32 \(h, w, 2\), got float32'):
        parse("random_flip")({**scene(), "segments": np.zeros((H, W, 2), "float32")}, [0, 0])
    with pytest.raises(ValueError, match="rand_augment moves pixels but cannot move segments and boxes|segments"):
        parse("rand_augment")(scene(), [0, 0])


@pytest.mark.parametrize("grid", [(6, 9), (24, 36), (5, 7), (30, 50)])
def test_both_packers_give_the_shares_of_cells(grid):
    example = scene(1)
    masks = masks_of(example["segments"], OBJECTS)
    rows = pack_instances(example, 6, grid).numpy()
    assert rows.shape == (6, 7 + grid[0] * grid[1]) and rows[4:, 4].tolist() == [-1, -1] and not rows[4:, 7:].any()
    packed = pack_masks([masks], [np.arange(OBJECTS)], grid, limit=6)[0]
    np.testing.assert_allclose(rows, packed, atol=1e-6)
    if grid == (6, 9):
        exact = masks.reshape(OBJECTS, 6, 4, 9, 4).mean((2, 4))
        np.testing.assert_allclose(rows[:4, 7:].reshape(exact.shape), exact, atol=1e-6)


def test_boxes_are_cut_to_their_pixels_and_objects_without_pixels_removed():
    segments = np.zeros((4, 4, 2), "int32")
    segments[1, 1:3] = 1
    segments[3, 3] = 3  # object 2 has no pixel
    example = {
        "segments": segments,
        "boxes": np.array([[0, 0.3, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]], "float32"),
        "labels": np.array([5, 6, 7, 8]),
        "crowd": np.array([0, 0, 1, 0]),
        "area": np.array([2.5, 1, 1, 1]),
    }
    rows = pack_instances(example, 3, (2, 2)).numpy()
    np.testing.assert_allclose(rows[0], [0.25, 0.3, 0.5, 0.75, 5, 0, 2.5, 0.25, 0.25, 0, 0])
    np.testing.assert_allclose(rows[1], [0.75, 0.75, 1, 1, 7, 1, 1, 0, 0, 0, 0.25])
    assert rows[2].tolist() == [0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than the limit"):
        pack_instances(example, 1, (2, 2))
    with pytest.raises(ValueError, match="need segments; the example has"):
        pack_instances({"boxes": example["boxes"]}, 1, (2, 2))


def test_no_object_gives_padding():
    none = np.zeros(0, "int32")
    example = {"boxes": np.zeros((0, 4), "float32"), "labels": none, "crowd": none, "area": none}
    rows = pack_instances({**example, "segments": np.zeros((8, 8, 2), "int32")}, 2, (2, 2)).numpy()
    assert rows[:, 4].tolist() == [-1, -1] and not rows[:, 7:].any()
    np.testing.assert_array_equal(pack_masks([np.zeros((0, 8, 8))], [[]], (2, 2), limit=2)[0], rows)


def test_a_box_lost_by_an_op_takes_its_mask_with_it():
    example = scene()
    small = parse("drop_small_boxes(8)")(example)
    kept = [i for i in range(OBJECTS) if small["boxes"].numpy()[i].any()]
    assert 0 < len(kept) < OBJECTS
    rows = pack_instances(small, OBJECTS, (6, 9)).numpy()
    assert rows[:, 4].tolist() == [*kept, *[-1] * (OBJECTS - len(kept))]
    whole = pack_instances(example, OBJECTS, (6, 9)).numpy()
    np.testing.assert_array_equal(rows[: len(kept), 7:], whole[kept, 7:])


def test_an_object_lost_by_a_crop_is_removed():
    example = scene()
    cut = parse("central_crop(8, 12)")(example)
    left = [i for i, mask in enumerate(masks_of(cut["segments"].numpy(), OBJECTS)) if mask.any()]
    assert 0 < len(left) < OBJECTS
    rows = pack_instances(cut, OBJECTS, (4, 4)).numpy()
    assert [int(label) for label in rows[:, 4] if label >= 0] == left


def test_a_thousand_objects_pack_in_a_graph():
    segments = np.arange(1, 1025, dtype="int32").reshape(32, 32).repeat(2, 0).repeat(2, 1)
    example = {"segments": np.stack([segments, segments], -1), "boxes": np.tile(np.float32([[0, 0, 1, 1]]), (1024, 1))}
    example |= {key: np.zeros(1024, "int32") for key in ("labels", "crowd", "area")}
    dataset = tf.data.Dataset.from_tensors(example).map(lambda example: pack_instances(example, 1024, (32, 32)))
    assert dataset.element_spec.shape == (1024, 7 + 1024)
    [rows] = dataset.as_numpy_iterator()
    np.testing.assert_array_equal(rows[:, 7:], np.eye(1024))
    np.testing.assert_allclose(rows[33, :4] * 32, [1, 1, 2, 2])


def test_wrong_masks_are_refused():
    with pytest.raises(ValueError, match=r"Image 0: expected masks \(m, h, w\), one per object, got \(8, 8\)"):
        pack_masks([np.ones((8, 8))], [[0]], (2, 2))
    with pytest.raises(ValueError, match="of 0 and 1, got 0 to 2. For a map of object numbers pass map == number"):
        pack_masks([np.arange(3).reshape(1, 1, 3)], [[0]], (1, 1))
    with pytest.raises(ValueError, match="masks and labels of the same images, got 1 and 2"):
        pack_masks([np.ones((1, 8, 8))], [[0], [1]], (2, 2))
    with pytest.raises(ValueError, match=r"1 masks need labels \(1,\), got \(2,\)"):
        pack_masks([np.ones((1, 8, 8))], [[0, 1]], (2, 2))
