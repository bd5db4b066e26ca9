"""Overlaps of masks and of their boundaries, and average precision by them, against other libraries and by hand.

pycocotools_masks.csv has the twelve numbers that pycocotools 2.0.11 prints for the masks of each of 200 random data
sets. In this folder:

    import numpy as np
    from pycocotools import mask as coco_masks
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
    from random_masks import SIZE, random_data

    def annotation(image, mask, label, **facts):
        code = coco_masks.encode(np.asfortranarray(mask.astype("uint8")))
        return {"image_id": image, "category_id": int(label), "iscrowd": 0, "segmentation": code, **facts}

    def loaded(classes, images, annotations):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i, "height": SIZE[0], "width": SIZE[1]} for i in range(len(images))],
            "categories": [{"id": i} for i in range(classes)],
            "annotations": [{**facts, "id": i} for i, facts in enumerate(annotations, 1)],
        }
        coco.createIndex()
        return coco

    def stats(classes, images):
        truth, found = [], []
        for i, (_, masks, labels, crowd, area, guesses, scores, guessed) in enumerate(images):
            for mask, label, crowded, pixels in zip(masks, labels, crowd, area):
                truth.append(annotation(i, mask, label, iscrowd=int(crowded), area=float(pixels)))
            for mask, score, label in zip(guesses, scores, guessed):
                found.append(annotation(i, mask, label, score=float(score), area=float(mask.sum())))
        evaluation = COCOeval(loaded(classes, images, truth), loaded(classes, images, found), "segm")
        evaluation.evaluate(), evaluation.accumulate(), evaluation.summarize()
        return evaluation.stats

    np.savetxt("pycocotools_masks.csv", [stats(*random_data(seed)) for seed in range(200)], "%.11g", ",")

boundary_masks.csv has the same of faster-coco-eval 1.8.0: with its COCO, COCOeval_faster and "boundary" for "segm".
"""

import pathlib

import numpy as np
import pytest
from random_masks import SIZE, random_data

from keras_vit.evaluation import AveragePrecision
from keras_vit.evaluation.mask_boundaries import BoundaryOverlaps, boundary, thickness
from keras_vit.evaluation.matched_masks import MaskOverlaps

HERE = pathlib.Path(__file__).parent
PUBLISHED, OF_BOUNDARIES = (  # -1 where undefined
    np.loadtxt(HERE / name, delimiter=",") for name in ("pycocotools_masks.csv", "boundary_masks.csv")
)
MEASURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar1", "ar10", "ar100")
SEGMENTS = np.array([[[1, 1], [2, 1], [2, 2], [0, 0]]])  # two objects of two pixels, one of them shared


def mask(*columns):
    return np.isin(np.arange(4), columns)[None]


def mask_overlaps(masks, segments, crowd):
    """(IoU, areas, what Boundary AP compares) of masks (h, w), by their smallest parts."""
    overlaps, edges = MaskOverlaps(segments, crowd), BoundaryOverlaps(segments, crowd)
    for each in masks:
        overlaps.add(*part(each))
        edges.add(*part(each))
    iou, areas = overlaps.result()
    return iou, areas, edges.combined(iou)


def part(mask):
    """(rows, columns, the mask there)."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    rows, columns = (slice(found[0], found[-1] + 1) if len(found) else slice(0, 0) for found in (rows, columns))
    return rows, columns, mask[rows, columns]


def figures(seed):
    """The twelve numbers by masks, and by boundaries."""
    classes, images = random_data(seed)
    by_masks, by_boundaries = (AveragePrecision(list(map(str, range(classes)))) for _ in range(2))
    for segments, _, labels, crowd, area, masks, scores, guesses in images:
        objects = np.column_stack([np.zeros((len(labels), 4)), labels, crowd, area])
        iou, areas, lower = mask_overlaps(masks, segments, crowd)
        by_masks.add(SIZE, objects, None, scores, guesses, iou, areas)
        by_boundaries.add(SIZE, objects, None, scores, guesses, lower, areas)
    return [summary(*collected.result()) for collected in (by_masks, by_boundaries)]


def summary(measures, details):
    found = [measures.get(name) for name in MEASURES]
    found += [details["sizes"][size]["ar"] for size in ("small", "medium", "large")]
    return [-1 if value is None else value for value in found]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_figures_equal_those_of_other_libraries(first):
    for seed in range(first, first + 50):
        for found, expected in zip(figures(seed), (PUBLISHED[seed], OF_BOUNDARIES[seed])):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9, err_msg=f"seed {seed}")


def test_objects_below_others_count_where_they_are_hidden():
    iou, areas, _ = mask_overlaps([mask(0, 1), mask(1, 2, 3), mask(3), mask()], SEGMENTS, np.zeros(2, bool))
    np.testing.assert_allclose(iou, [[1, 1 / 3], [1 / 4, 2 / 3], [0, 0], [0, 0]])
    assert areas.tolist() == [2, 3, 1, 0]


def test_a_crowd_is_found_by_the_share_inside_it():
    iou, _, lower = mask_overlaps([mask(1), mask(1, 2, 3)], SEGMENTS, np.array([True, False]))
    np.testing.assert_allclose(iou, [[1, 1 / 2], [1 / 3, 2 / 3]])


def test_nothing_found_or_nothing_true_has_no_overlaps():
    assert mask_overlaps([], SEGMENTS, np.zeros(2, bool))[0].shape == (0, 2)
    assert mask_overlaps([mask(1)], 0 * SEGMENTS, np.zeros(0, bool))[0].shape == (1, 0)


@pytest.mark.parametrize(("size", "steps"), [((112, 144), 4), ((3000, 4000), 100), ((1, 1), 1), ((20, 30), 1)])
def test_boundaries_are_a_fiftieth_of_the_diagonal_thick(size, steps):
    assert thickness(size) == steps


def test_a_boundary_is_what_erosion_takes_away():
    mask = np.ones((9, 12), bool)
    mask[4, 3] = False
    once = mask & ~boundary(mask, 1)
    assert once.sum() == 7 * 10 - 9 and not once[3:6, 2:5].any()  # not at the border, and not around the hole
    twice = once & ~boundary(once, 1)
    assert (boundary(mask, 2) == mask & ~twice).all()
    assert (boundary(mask, 5) == mask).all() and not boundary(np.zeros((0, 0), bool), 3).any()


def test_masks_alike_but_at_their_edges_have_a_lower_boundary_iou():
    segments = np.zeros((100, 100, 2), "int32")  # boundaries of 3 pixels
    segments[10:90, 10:90] = 1
    found = np.zeros((100, 100), bool)
    found[11:89, 11:89] = True
    iou, _, lower = mask_overlaps([found], segments, np.zeros(1, bool))
    assert iou[0, 0] == 78**2 / 80**2
    common = 78**2 - 74**2  # two of three pixels
    assert lower[0, 0] == common / (80**2 - 74**2 + 78**2 - 72**2 - common)


def test_other_sizes_and_numbers_are_refused():
    with pytest.raises(ValueError, match=r"has \(4, 1\) pixels, and its part of the image \(1, 4\)"):
        MaskOverlaps(SEGMENTS, np.zeros(2, bool)).add(slice(0, 4), slice(0, 4), mask().T)
    with pytest.raises(ValueError, match=r"have the number 2, but there are 1 objects"):
        MaskOverlaps(SEGMENTS, np.zeros(1, bool))
    with pytest.raises(ValueError, match=r"Expected overlaps \(1, 2\), \(d, m\), got \(2, 1\)"):
        objects = np.zeros((2, 7))
        AveragePrecision(["cat"]).add(SIZE, objects, None, [0.5], [0], np.zeros((2, 1)), [1])
