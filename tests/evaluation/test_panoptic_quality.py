"""Panoptic quality, against panopticapi and hand-made cases.

panopticapi.csv has the PQ, SQ and RQ of all classes, things and stuff (-1 where undefined), and the summed IoU, right,
wrong and missed segments of five classes, that panopticapi 0.1 (commit 7bb46555) gives for each of 200 random data
sets. In this folder:

    import tempfile
    import numpy as np
    from panopticapi.evaluation import pq_compute_single_core
    from PIL import Image
    from random_segments import random_data

    def saved(folder, i, segments):
        pixels = np.stack([segments, 0 * segments, 0 * segments], -1).astype("uint8")
        Image.fromarray(pixels).save(f"{folder}/{i}.png")
        return {"file_name": f"{i}.png", "image_id": i}

    def rows(segments, labels, crowd):
        areas = np.bincount(segments.ravel(), minlength=len(labels) + 1).tolist()
        return [{"id": i, "category_id": int(label), "iscrowd": int(crowded), "area": areas[i]}
                for i, (label, crowded) in enumerate(zip(labels, crowd), 1)]

    def figures(classes, stuff, images):
        pairs = []
        with tempfile.TemporaryDirectory() as true, tempfile.TemporaryDirectory() as found:
            for i, (truth, labels, crowd, guessed, guesses) in enumerate(images):
                pairs.append(({**saved(true, i, truth), "segments_info": rows(truth, labels, crowd)},
                              {**saved(found, i, guessed), "segments_info": rows(guessed, guesses, 0 * guesses)}))
            categories = {i: {"isthing": int(i >= stuff)} for i in range(classes)}
            counted = pq_compute_single_core(0, pairs, true, found, categories)
        result = []
        for isthing in (None, True, False):
            try:
                mean, _ = counted.pq_average(categories, isthing)
                result += [mean[name] for name in ("pq", "sq", "rq")]
            except ZeroDivisionError:
                result += [-1] * 3
        return result + [n for c in map(counted.__getitem__, range(5)) for n in (c.iou, c.tp, c.fp, c.fn)]

    np.savetxt("panopticapi.csv", [figures(*random_data(seed)) for seed in range(200)], "%.14g", ",")
"""

import pathlib

import numpy as np
import pytest
from random_segments import random_data

from keras_vit.evaluation import PanopticQuality

PUBLISHED = np.loadtxt(pathlib.Path(__file__).with_name("panopticapi.csv"), delimiter=",")
MEASURES = [name + group for group in ("", "_things", "_stuff") for name in ("pq", "sq", "rq")]


def quality(classes, stuff, images):
    names = list(map(str, range(classes)))
    collected = PanopticQuality(names, names[:stuff])
    for truth, labels, crowd, found, guesses in images:
        collected.add(truth, labels, found, guesses, crowd)
    return collected


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_figures_equal_panopticapi(first):
    for seed in range(first, first + 50):
        classes, stuff, images = random_data(seed)
        found = quality(classes, stuff, images)
        measures, _ = found.result()
        counts = np.stack([found.iou, found.matches, found.false_alarms, found.missed], -1)
        counts = np.pad(counts, ((0, 5 - classes), (0, 0)))
        both = [measures.get(name, -1) for name in MEASURES] + counts.reshape(-1).tolist()
        np.testing.assert_allclose(both, PUBLISHED[seed], rtol=1e-13, atol=0, err_msg=f"seed {seed}")


def test_details_have_the_scores_and_counts_of_each_class():
    truth = np.array([[1, 1, 1, 2, 2, 2]])
    found = np.array([[1, 1, 0, 2, 3, 3]])  # 2/3 of the cat; the sky's smaller part is a cat
    collected = PanopticQuality(["sky", "cat", "dog"], ["sky"])
    collected.add(truth, [1, 0], found, [1, 1, 0])
    measures, details = collected.result()
    counts = {"segments": 1, "matches": 1}
    sky, cat, dog = details["per_class"]
    assert sky == {"name": "sky", "stuff": True, "pq": 0.666667, "sq": 0.666667, "rq": 1.0} | counts | {
        "false_alarms": 0,
        "missed": 0,
    }
    assert (cat["pq"], cat["rq"], cat["false_alarms"]) == (0.444444, 0.666667, 1)
    assert dog["pq"] is None and dog["segments"] == 0
    assert measures["pq_stuff"] == pytest.approx(2 / 3) and measures["pq"] == pytest.approx((2 / 3 + 4 / 9) / 2)
    assert details["stuff"] == ["sky"]


def test_classes_that_are_not_scored_are_void_in_the_truth_and_nothing_where_found():
    truth, found = np.array([[1, 1, 2, 2]]), np.array([[1, 1, 1, 2]])
    collected, alone = PanopticQuality(["cat"]), PanopticQuality(["cat"])
    collected.add(truth, [0, -1], found, [0, -1])
    alone.add(np.where(truth == 2, 0, truth), [0], np.where(found == 2, 0, found), [0])
    assert collected.result() == alone.result()
    assert collected.result()[0]["pq"] == 1


def test_no_image_has_no_measures():
    assert PanopticQuality(["cat"]).result()[0] == {}


def test_wrong_numbers_are_refused():
    collected, pixels = PanopticQuality(["cat"]), np.array([[0, 2]])
    with pytest.raises(ValueError, match=r"found segments have numbers 0 to 2, expected 0 \(none\) to 1"):
        collected.add(0 * pixels, [], pixels, [0])
    with pytest.raises(ValueError, match="true segments have the label 1, expected at most 0: there are 1 classes"):
        collected.add(pixels, [0, 1], pixels, [0, 0])
    with pytest.raises(ValueError, match=r"true segments have \(1, 2\) pixels, the found ones \(2, 1\)"):
        collected.add(pixels, [0, 0], pixels.T, [0, 0])
    with pytest.raises(ValueError, match="'sky'.* is not among the classes"):
        PanopticQuality(["cat"], ["sky"])
