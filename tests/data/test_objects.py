"""Objects as rows of one number: padding, boxes without area, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.objects import pack, pack_objects

EXAMPLE = {
    "boxes": np.array([[0, 0, 0.5, 0.5], [0.2, 0.2, 0.2, 0.4], [0.5, 0, 1, 1]], "float32"),
    "labels": np.array([2, 1, 0], "int32"),
    "crowd": np.array([0, 0, 2], "int32"),
    "area": np.array([7, 8, 9], "float32"),
}
ROWS = [[0, 0, 0.5, 0.5, 2, 0, 7], [0.5, 0, 1, 1, 0, 2, 9], [0, 0, 0, 0, -1, 0, 0]]
NONE = {key: values[:0] for key, values in EXAMPLE.items()}
LISTS = [[EXAMPLE[key], NONE[key]] for key in EXAMPLE]


def test_boxes_with_an_area_come_first():
    np.testing.assert_array_equal(pack(EXAMPLE, 3), ROWS)


def test_an_image_without_objects_is_padding():
    np.testing.assert_array_equal(pack(NONE, 2), ROWS[2:] * 2)


def test_packing_in_a_dataset_has_a_static_shape():
    dataset = tf.data.Dataset.from_tensors(EXAMPLE).map(lambda example: pack(example, 3))
    assert dataset.element_spec.shape == (3, 7)
    np.testing.assert_array_equal(next(iter(dataset)), ROWS)


def test_more_objects_than_rows_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)has.*2.*objects, more than the limit of.*1"):
        pack(EXAMPLE, 1)


def test_missing_keys_are_named():
    with pytest.raises(ValueError, match="no labels, area"):
        pack({"boxes": EXAMPLE["boxes"], "crowd": EXAMPLE["crowd"]}, 3)


def test_lists_give_the_same_rows():
    boxes, labels, crowd, area = LISTS
    packed = pack_objects(boxes, labels, crowd=crowd, area=area)
    np.testing.assert_array_equal(packed, [ROWS[:2], ROWS[2:] * 2])
    assert pack_objects(boxes, labels, 5).shape == (2, 5, 7)


@pytest.mark.parametrize(
    "boxes, labels, message",
    [
        ([[[0, 0, 1, 1]]], [[0], [1]], "got 1 and 2"),
        ([[[0, 0, 30, 20]]], [[0]], "divide pixels"),
        ([[[0, 0, 1]]], [[0]], r"expected boxes \(m, 4\), got \(1, 3\)"),
        ([[[0, 0, 1, 1]]], [[0, 1]], r"1 boxes need labels \(1,\), got \(2,\)"),
        ([[[0, 0, 1, 1]]], [[-1]], "the label -1; classes are numbered from 0"),
        ([[[0, 0, 1, 1]] * 3], [[0] * 3], "Image 0 has 3 objects, more than limit=2"),
    ],
)
def test_other_lists_are_refused(boxes, labels, message):
    with pytest.raises(ValueError, match=message):
        pack_objects(boxes, labels, 2)
