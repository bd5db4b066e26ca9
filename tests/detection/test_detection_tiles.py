"""Tiles cover an image, and the objects found in them are those of the image, each once."""

import dataclasses

import numpy as np
import pytest
from small_models import detecting
from small_scenes import drawn, seeing

from keras_vit.detection.detect import Finder
from keras_vit.detection.tiles import Tiling, cut_by_border, merged, over_windows
from keras_vit.instances.found import Instances

SIZE = (100, 160)  # of the image in the tests of merging
WHOLE, LEFT, RIGHT = (0, 0, 100, 160), (0, 0, 100, 100), (0, 60, 100, 160)


def kept(rows, **options):
    """The numbers kept, in order, of rows (box, score, window) or (box, score, window, label)."""
    boxes, scores, windows, labels = zip(*((*row, 0)[:4] for row in rows))
    return merged(*map(np.array, (boxes, scores, labels, windows)), SIZE, **options).tolist()


def test_tiles_cover_every_pixel_and_overlap_by_the_share_asked_for():
    rng = np.random.default_rng(0)
    for _ in range(200):
        height, width, down, across = rng.integers(1, 90, 4)
        overlap = rng.uniform(0, 0.9)
        whole, *tiles = Tiling((down, across), overlap).windows(height, width)
        assert whole == (0, 0, height, width)
        assert bool(tiles) == (down < height or across < width)
        seen = np.zeros((height, width), int)
        for top, left, bottom, right in tiles:
            assert 0 <= top and 0 <= left and bottom <= height and right <= width
            assert (bottom - top, right - left) == (min(down, height), min(across, width))
            seen[top:bottom, left:right] += 1
        assert (seen > 0).all() or not tiles
        for side, starts in ((min(down, height), [t[0] for t in tiles]), (min(across, width), [t[1] for t in tiles])):
            steps = np.diff(sorted(set(starts)))
            assert (steps <= max(1, side * (1 - overlap))).all()


def test_the_tiles_of_640_pixels_of_a_4000_x_3000_image():
    """Five of 640 with an overlap of 128 span 2,688 pixels and six 3,200: six rows; likewise eight columns."""
    windows = Tiling(640).windows(3000, 4000)
    assert len(windows) == 1 + 6 * 8
    assert windows[1] == (0, 0, 640, 640) and windows[-1] == (2360, 3360, 3000, 4000)


def test_tiles_and_overlaps_out_of_range_are_refused():
    for size in (0, -1, 2.5, True, "640", (40, 0), (40,), (1, 2, 3)):
        with pytest.raises(ValueError, match="tiles must be a"):
            Tiling(size)
    for overlap in (1, -0.1, float("nan"), "half"):
        with pytest.raises(ValueError, match="tile_overlap"):
            Tiling(640, overlap)
    with pytest.raises(ValueError, match=r"3000 x 4000 pixels has 187,500 tiles of 8 x 8 .* more than 10,000: pass"):
        Tiling(8, 0.0).windows(3000, 4000)


def test_windows_of_several_images_are_computed_in_batches():
    images, sizes = [np.full((10, 10 * i, 3), i, "uint8") for i in (1, 2, 3)], []

    def find(windows):
        sizes.append(len(windows))
        return [(int(window[0, 0, 0]), window.shape[:2]) for window in windows]

    found = list(over_windows(iter(images), Tiling(10, 0.0), find, 3))
    assert sizes == [3, 3, 2]
    assert [[(number, shape) for _, (number, shape) in answers] for _, answers in found] == [
        [(1, (10, 10))],
        [(2, (10, 20)), (2, (10, 10)), (2, (10, 10))],
        [(3, (10, 30)), (3, (10, 10)), (3, (10, 10)), (3, (10, 10))],
    ]


def test_boxes_are_cut_by_the_borders_of_their_window_but_not_by_those_of_the_image():
    boxes = np.array([[0, 0, 100, 90], [40, 40, 60, 99], [40, 61, 60, 80], [40, 70, 60, 160], [0, 0, 100, 160]])
    windows = np.array([LEFT, LEFT, RIGHT, RIGHT, WHOLE])
    assert cut_by_border(boxes, windows, SIZE).tolist() == [False, True, True, False, False]


def test_an_object_whole_in_two_tiles_is_found_once_by_the_better_box():
    rows = [((40, 70, 60, 90), 0.6, LEFT), ((41, 71, 61, 91), 0.9, RIGHT), ((10, 70, 30, 90), 0.5, LEFT)]
    assert kept(rows) == [1, 2]
    assert kept(rows, iou=0.9) == [1, 0, 2]
    assert kept(rows, limit=1) == [1]


def test_objects_of_other_classes_stay_unless_classes_are_compared():
    rows = [((40, 70, 60, 90), 0.6, LEFT, 0), ((40, 70, 60, 90), 0.9, RIGHT, 1)]
    assert kept(rows) == [1, 0] and kept(rows, across_classes=True) == [1]


def test_fragments_of_an_object_that_is_whole_in_another_window_disappear():
    whole = ((20, 30, 80, 140), 0.5, WHOLE)
    rows = [((20, 30, 80, 100), 0.9, LEFT), ((20, 60, 80, 140), 0.8, RIGHT), whole]
    assert kept(rows) == [2]


def test_of_fragments_alone_the_larger_stays_unless_its_score_is_far_lower():
    small, large = (20, 70, 80, 100), (20, 60, 80, 159)
    for scores, expected in (((0.9, 0.5), [1]), ((0.5, 0.9), [1]), ((0.9, 0.1), [0, 1])):
        assert kept([(small, scores[0], LEFT), (large, scores[1], RIGHT)]) == expected


def test_objects_that_overlap_in_one_window_stay_though_another_window_sees_them_too():
    pair = ((40, 70, 60, 90), (40, 74, 60, 94))  # IoU 0.67
    scores = {LEFT: (0.9, 0.7), RIGHT: (0.8, 0.6)}
    rows = [(box, score, window) for window in scores for box, score in zip(pair, scores[window])]
    assert kept(rows) == [0, 1]


def test_neither_iou_nor_the_smaller_area_alone_finds_a_child_before_its_parent_and_a_fragment_once():
    parent, fragment, child = (10, 20, 90, 140), (10, 20, 90, 100), (30, 70, 50, 90)
    rows = [(parent, 0.8, WHOLE), (fragment, 0.9, LEFT), (child, 0.7, LEFT), (child, 0.6, RIGHT)]
    assert kept(rows) == [0, 2]

    def suppressed(measure):
        found = []
        for box, *_ in sorted(rows, key=lambda row: -row[1]):
            if all(measure(np.array(box), np.array(other)) <= 0.5 for other in found):
                found.append(box)
        return found

    def area(box):
        return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)

    def shared(a, b):
        return area(np.append(np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])))

    assert suppressed(lambda a, b: shared(a, b) / (area(a) + area(b) - shared(a, b))) == [fragment, child]
    assert suppressed(lambda a, b: shared(a, b) / min(area(a), area(b))) == [fragment]


def test_nothing_found_in_any_window_is_nothing():
    nothing = np.zeros((0, 4), "float32")
    assert merged(nothing, np.zeros(0), np.zeros(0, int), nothing, SIZE).tolist() == []


@pytest.fixture(scope="module")
def model():
    return seeing()


def detected(model, image, **how):
    return next(Finder.of(model, **how).of_pixels([image]))


OBJECTS = [((60, 90, 190, 240), 1, 0.6)]  # large, and small ones at borders of tiles, at corners and on the large one
OBJECTS += [((top, left, top + 9, left + 11), i % 2, 0.5 + 0.01 * i) for i, (top, left) in enumerate([
    (0, 0), (1, 60), (44, 45), (60, 5), (92, 250), (140, 141), (150, 191), (191, 289), (20, 130), (191, 92),
])]  # fmt: skip


def test_each_object_of_a_large_image_is_found_once_and_small_ones_exactly(model):
    image = drawn(OBJECTS, (200, 300))
    found = detected(model, image, tiles=64, tile_overlap=0.25)
    assert len(found) == len(OBJECTS)
    for box, label, score in OBJECTS[1:]:
        [i] = np.flatnonzero((found.boxes == box).all(-1))
        assert found.labels[i] == label and found.scores[i] == pytest.approx(score, abs=0.002)
    [i] = np.flatnonzero(found.boxes[:, 2] - found.boxes[:, 0] > 64)
    assert np.abs(found.boxes[i] - OBJECTS[0][0]).max() <= 5  # a pixel of the model is 4.7 wide
    assert (np.diff(found.scores) <= 0).all()
    assert len(detected(model, image)) == 1  # the large one


def test_images_that_a_tile_holds_are_seen_once(model, monkeypatch):
    seen, image = [], drawn(OBJECTS[1:2], (64, 60))
    real = type(model).detections
    monkeypatch.setattr(type(model), "detections", lambda self, x, **how: seen.append(len(x)) or real(self, x, **how))
    assert len(detected(model, image, tiles=64)) == 1 and seen == [1]


def test_the_limit_is_that_of_the_image(model):
    image = drawn(OBJECTS, (200, 300))
    found = detected(model, image, tiles=64, limit=3)
    assert found.scores == pytest.approx([0.6, 0.59, 0.58], abs=0.002)


@pytest.mark.extended
def test_detect_with_tiles_is_detect_for_images_that_a_tile_holds():
    model, rng = detecting(), np.random.default_rng(0)
    images = [rng.integers(0, 256, (30, 40, 3), "uint8"), rng.integers(0, 256, (20, 40, 3), "uint8")]
    for plain, tiled in zip(*(model.detect(images, 0.05, **how) for how in ({}, {"tiles": (30, 40)}))):
        assert len(plain)
        for name in ("boxes", "scores", "labels", "image"):
            np.testing.assert_array_equal(getattr(tiled, name), getattr(plain, name))
    with pytest.raises(ValueError, match="tiles must be a positive integer, got 0"):
        model.detect(images[0], tiles=0)


def test_the_mask_of_an_object_cut_by_its_tile_ends_with_the_tile():
    box, frame = np.float32([[0, 10, 40, 50]]), np.float32([[0, 0, 0.5, 0.25]])  # the tile has 40 x 50 pixels
    image, ones = np.zeros((80, 200, 3), "uint8"), np.ones((1, 4, 4), "float32")
    found = Instances(box, np.ones(1), np.zeros(1, int), ("cat",), image, ones, frame)
    mask = found.mask(0)
    assert mask[:40, 10:50].all() and not mask[40:].any() and not mask[:, 50:].any()
    assert not dataclasses.replace(found, grids=-ones).mask(0).any()
