"""Pictures of true and found objects with masks, and of segments."""

import numpy as np

from keras_vit.inspection import instance_comparison, segment_comparison
from keras_vit.inspection.box_comparison import FOUND, MISSED, OTHER_CLASS

SIDE = 320
IMAGE = np.full((SIDE, SIDE, 3), 200, "uint8")


def square(top, left):
    mask = np.zeros((SIDE, SIDE), bool)
    mask[top : top + 80, left : left + 80] = True
    return mask, [top / SIDE, left / SIDE, (top + 80) / SIDE, (left + 80) / SIDE]


def test_an_outline_follows_the_edge_inside_the_mask_but_not_the_images_edge():
    mask = np.zeros((8, 9), bool)
    mask[:5, 2:7] = True
    expected = mask.copy()
    expected[:4, 3:6] = False
    np.testing.assert_array_equal(instance_comparison.outline(mask, 1), expected)


def test_each_side_shows_its_objects_in_the_colours_of_what_became_of_them():
    (one, first), (two, second), (three, third) = square(20, 20), square(20, 200), square(200, 100)
    objects = np.array([[*first, 0, 0, 6400], [*second, 1, 0, 6400], [*third, 0, 0, 6400]])
    boxes, scores, labels = np.array([first, second]), np.array([0.9, 0.8]), np.array([0, 0])
    picture, kinds = instance_comparison.compared(
        IMAGE, [one, two, three], objects, [one, two], boxes, scores, labels, np.array([0, 1]), ["cat", "dog"]
    )
    assert kinds == {"found", "missed", "another class"}
    title = len(picture) - SIDE
    true, found = picture[title:, :SIDE], picture[title:, -SIDE:]
    for side, masks in ((true, {FOUND: one, OTHER_CLASS: two, MISSED: three}), (found, {FOUND: one, OTHER_CLASS: two})):
        for (color, _), mask in masks.items():
            rows = mask & (np.arange(SIDE) % 80 > 30)[:, None]  # without the labels
            assert (side[rows] == color).all(-1).any()
    assert (found[three] == 200).all()
    whole = instance_comparison.sheet([(picture, kinds)] * 2)
    assert whole.shape[1] == 2 * SIDE + 8 and len(whole) > 2 * len(picture)


def test_nothing_true_or_found_is_the_image_twice():
    nothing, none = np.zeros((0, 4)), np.zeros(0, int)
    picture, kinds = instance_comparison.compared(IMAGE, [], np.zeros((0, 7)), [], nothing, none, none, none, ["cat"])
    assert not kinds and (picture[-SIDE:, :SIDE] == 200).all()


def test_segments_show_their_classes_with_lines_between_objects():
    segments = np.zeros((SIDE, SIDE), int)
    segments[:, 100:200], segments[:, 200:300] = 1, 2
    classes = segment_comparison.classes_of(segments, np.array([1, 1]))
    assert classes[0, [0, 100, 200, 319]].tolist() == [-1, 1, 1, -1]
    example = IMAGE, segments, np.array([1, 1]), 0 * segments, np.array([], int)
    drawn = segment_comparison.example_rows([example], ["cat", "dog"])
    true = drawn[40, SIDE + 8 : 2 * SIDE + 8]
    assert np.flatnonzero((true == 255).all(-1)).tolist() == [100, 200, 300]
    assert (true[150] == true[250]).all() and (true[50] == 0).all()
