"""Overlaps of masks and their average precision, against pycocotools and hand-made cases.

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
"""

import pathlib

import numpy as np
import pytest
from random_masks import SIZE, random_data

from keras_vit.evaluation import AveragePrecision
from keras_vit.evaluation.matched_masks import mask_overlaps

PUBLISHED = np.loadtxt(pathlib.Path(__file__).with_name("pycocotools_masks.csv"), delimiter=",")  # -1 where undefined
MEASURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar1", "ar10", "ar100")
SEGMENTS = np.array([[[1, 1], [2, 1], [2, 2], [0, 0]]])  # two objects of two pixels, one of them shared


def mask(*columns):
    return np.isin(np.arange(4), columns)[None]


def figures(seed):
    classes, images = random_data(seed)
    collected = AveragePrecision(list(map(str, range(classes))))
    for segments, _, labels, crowd, area, masks, scores, guesses in images:
        objects = np.column_stack([np.zeros((len(labels), 4)), labels, crowd, area])
        collected.add(SIZE, objects, None, scores, guesses, *mask_overlaps(masks, segments, crowd))
    measures, details = collected.result()
    found = [measures.get(name) for name in MEASURES]
    found += [details["sizes"][size]["ar"] for size in ("small", "medium", "large")]
    return [-1 if value is None else value for value in found]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_figures_equal_pycocotools(first):
    for seed in range(first, first + 50):
        np.testing.assert_allclose(figures(seed), PUBLISHED[seed], rtol=0, atol=1e-9, err_msg=f"seed {seed}")


def test_objects_below_others_count_where_they_are_hidden():
    iou, areas = mask_overlaps([mask(0, 1), mask(1, 2, 3), mask(3), mask()], SEGMENTS, np.zeros(2, bool))
    np.testing.assert_allclose(iou, [[1, 1 / 3], [1 / 4, 2 / 3], [0, 0], [0, 0]])
    assert areas.tolist() == [2, 3, 1, 0]


def test_a_crowd_is_found_by_the_share_inside_it():
    iou, _ = mask_overlaps([mask(1), mask(1, 2, 3)], SEGMENTS, np.array([True, False]))
    np.testing.assert_allclose(iou, [[1, 1 / 2], [1 / 3, 2 / 3]])


def test_nothing_found_or_nothing_true_has_no_overlaps():
    assert mask_overlaps([], SEGMENTS, np.zeros(2, bool))[0].shape == (0, 2)
    assert mask_overlaps([mask(1)], 0 * SEGMENTS, np.zeros(0, bool))[0].shape == (1, 0)


def test_other_sizes_and_numbers_are_refused():
    with pytest.raises(ValueError, match=r"has \(4, 1\) pixels, and the true segments \(1, 4\)"):
        mask_overlaps([mask().T], SEGMENTS, np.zeros(2, bool))
    with pytest.raises(ValueError, match=r"have the number 2, but there are 1 objects"):
        mask_overlaps([], SEGMENTS, np.zeros(1, bool))
    with pytest.raises(ValueError, match=r"Expected overlaps \(1, 2\), \(d, m\), got \(2, 1\)"):
        objects = np.zeros((2, 7))
        AveragePrecision(["cat"]).add(SIZE, objects, None, [0.5], [0], np.zeros((2, 1)), [1])
