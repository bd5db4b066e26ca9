"""Average precision against pycocotools, and VOC's, the confusion matrix and the threshold against hand-made cases.

pycocotools.csv has the twelve numbers that pycocotools 2.0.11 prints for each of 200 random data sets. In this folder:

    import numpy as np
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
    from random_detections import random_data

    def annotation(image, box, label, **facts):
        top, left, bottom, right = map(float, box)
        corner = {"bbox": [256 * left, 256 * top, 256 * (right - left), 256 * (bottom - top)]}
        return {"image_id": image, "category_id": int(label), "iscrowd": 0, **corner, **facts}

    def loaded(names, images, annotations):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(len(images))],
            "categories": [{"id": i} for i in range(len(names))],
            "annotations": [{**facts, "id": i} for i, facts in enumerate(annotations, 1)],
        }
        coco.createIndex()
        return coco

    def stats(names, images):
        truth, found = [], []
        for i, (_, objects, boxes, scores, labels) in enumerate(images):
            for row in objects.tolist():
                truth.append(annotation(i, row[:4], row[4], iscrowd=int(row[5]), area=row[6]))
            for box, score, label in zip(boxes, scores.tolist(), labels):
                one = annotation(i, box, label, score=score)
                found.append({**one, "area": one["bbox"][2] * one["bbox"][3]})
        evaluation = COCOeval(loaded(names, images, truth), loaded(names, images, found), "bbox")
        evaluation.evaluate(), evaluation.accumulate(), evaluation.summarize()
        return evaluation.stats

    np.savetxt("pycocotools.csv", [stats(*random_data(seed)) for seed in range(200)], "%.9g", ",")
"""

import pathlib

import numpy as np
import pytest
from random_detections import random_data

from keras_vit.evaluation.average_precision import AveragePrecision, best_threshold

PUBLISHED = np.loadtxt(pathlib.Path(__file__).with_name("pycocotools.csv"), delimiter=",")  # -1 where undefined
MEASURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar1", "ar10", "ar100")
A, B, C = (0, 0, 0.2, 0.2), (0.4, 0.4, 0.6, 0.6), (0.7, 0.7, 0.9, 0.9)  # apart
NOWHERE = (0.2, 0.8, 0.3, 0.9)


def measured(images, names=("cat", "dog"), **options):
    """The result for images of 100 x 100 pixels: (objects (box, label, crowd), detections (box, label, score)) each."""
    collected = AveragePrecision(names)
    for objects, detections in images:
        rows = [(*box, label, crowd, 1e4 * (box[2] - box[0]) * (box[3] - box[1])) for box, label, crowd in objects]
        boxes, labels, scores = zip(*detections) if detections else ((), (), ())
        collected.add((100, 100), np.array(rows), np.array(boxes), np.array(scores), np.array(labels, int))
    return collected.result(**options)


@pytest.mark.extended
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_figures_equal_pycocotools(first):
    for seed in range(first, first + 50):
        names, images = random_data(seed)
        collected = AveragePrecision(names)
        for image in images:
            collected.add(*image)
        measures, details = collected.result()
        found = [measures.get(name) for name in MEASURES]
        found += [details["sizes"][size]["ar"] for size in ("small", "medium", "large")]
        found = [-1 if value is None else value for value in found]
        np.testing.assert_allclose(found, PUBLISHED[seed], rtol=0, atol=1e-6, err_msg=f"seed {seed}")


def test_padding_changes_nothing():
    names, images = random_data(0)
    plain, padded = AveragePrecision(names), AveragePrecision(names)
    for size, objects, boxes, scores, labels in images:
        plain.add(size, objects, boxes, scores, labels)
        rows = np.pad(objects, ((0, 3), (0, 0)))
        rows[len(objects) :, 4] = -1
        more = np.pad(boxes, ((0, 2), (0, 0))), np.pad(scores, (0, 2)), np.pad(labels, (0, 2), constant_values=-1)
        padded.add(size, rows.astype("float64"), *more)
    assert plain.result() == padded.result()


def test_voc_measures_the_area_under_the_curve():
    objects = [(A, 0, 0), (B, 0, 0), (C, 0, 0)]
    detections = [(A, 0, 0.9), (NOWHERE, 0, 0.8), (B, 0, 0.7), (A, 0, 0.6)]  # right, wrong, right, found before
    measures, details = measured([(objects, detections)], names=["cat"])
    assert measures["voc_ap50"] == pytest.approx(1 / 3 + 1 / 3 * 2 / 3)
    assert details["voc07_ap50"] == pytest.approx((4 + 3 * 2 / 3) / 11)  # recalls 0 to .3, .4 to .6


def test_difficult_objects_and_their_detections_do_not_count():
    objects = [(A, 0, 0), (B, 0, 2)]
    detections = [(B, 0, 0.9), (B, 0, 0.8), (A, 0, 0.7)]
    measures, details = measured([(objects, detections)])
    assert [measures[name] for name in ("ap", "voc_ap50", "f1")] == pytest.approx([1, 1, 1])
    assert details["per_class"][0]["objects"] == 1
    assert np.sum(details["confusion"]) == 1


def test_confusion_prefers_the_own_class_and_counts_misses_and_false_alarms():
    near_a = (0.0, 0.0, 0.2, 0.19)
    first = [(A, 0, 0), (near_a, 1, 0), (B, 0, 0)], [(A, 1, 0.9), (near_a, 0, 0.8), (NOWHERE, 1, 0.7)]
    second = [(C, 1, 0)], [(C, 0, 0.6), (C, 1, 0.3)]
    _, details = measured([first, second], threshold=0.5)
    assert details["confusion"] == [[1, 0, 1], [1, 1, 0], [0, 1, 0]]
    _, details = measured([first, second], threshold=0.75)
    assert details["confusion"] == [[1, 0, 1], [0, 1, 1], [0, 0, 0]]


def test_precision_and_recall_of_classes_at_the_threshold():
    objects, detections = [(A, 0, 0), (B, 0, 0)], [(A, 0, 0.9), (NOWHERE, 0, 0.6), (B, 0, 0.3)]
    _, details = measured([(objects, detections)], threshold=0.5)
    cat, dog = details["per_class"]
    assert (cat["precision"], cat["recall"], cat["objects"]) == (0.5, 0.5, 2)
    shares = dict.fromkeys(("ap", "ap50", "precision", "recall", "best_threshold"))
    assert dog == {"name": "dog", "objects": 0, **shares}
    assert list(details["curves"]) == ["cat"] and len(details["curves"]["cat"]) == 101


def test_the_threshold_has_the_highest_f1_and_keeps_all_equal_scores():
    scores, parts = np.array([0.4, 0.9, 0.6, 0.6, 0.2]), np.array([1, 1, 1, 0, 0])
    assert best_threshold(scores, parts, 3) == (0.4, pytest.approx(6 / 7))
    assert best_threshold(scores[1:], parts[1:], 3) == (0.6, pytest.approx(2 / 3))
    assert best_threshold(scores, 0 * parts, 3) == (1.0, 0.0)


def test_measures_without_objects_are_left_out():
    measures, details = measured([([], [(A, 0, 0.5)])])
    assert measures == {"f1": 0.0, "threshold": 1.0}
    assert details["sizes"]["all"] == {"ap": None, "ar": None, "objects": 0}
    assert AveragePrecision(["cat"]).result()[0] == measures


def test_a_label_without_a_class_is_refused():
    with pytest.raises(ValueError, match=r"detections contain the label 2, expected at most 1: there are 2 classes"):
        measured([([], [(A, 2, 0.5)])])
