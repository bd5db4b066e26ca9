"""inference.predict_objects: rows of objects as `detect` finds them, COCO's results, resuming, and what is refused."""

import json

import numpy as np
import pyarrow.parquet
import pytest
from small_models import NAMED, detecting, every_weight, write_pngs

from keras_vit.data import open_source
from keras_vit.inference import by_row, object_prediction, predict_objects
from trainers import predict

FINDING = {"threshold": 0.05, "limit": 5}
CATEGORIES = dict(zip(NAMED, (3, 7, 90)))
IDS = {name: 100 + i for i, name in enumerate(("a/0.png", "a/2.png", "a/broken.png", "b/1.png", "b/3.png"))}


@pytest.fixture(scope="module")
def model():
    return detecting()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four images and a broken one, with COCO's annotations; one has a malformed box."""
    root = write_pngs(tmp_path_factory.mktemp("photos"), 4)
    images = [{"id": number, "file_name": name, "height": 20, "width": 30} for name, number in IDS.items()]
    boxes = [{"id": 1, "image_id": 100, "category_id": 7, "bbox": [1, 2, 3, 4]}]
    boxes.append({"id": 2, "image_id": 101, "category_id": 7, "bbox": [float("nan"), 2, 3, 4]})
    categories = [{"id": number, "name": name} for name, number in CATEGORIES.items()]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (root / "annotations.json").write_text(json.dumps(content))
    return root


@pytest.fixture(scope="module")
def source(folder):
    return open_source(f"boxes:{folder}", "train")


@pytest.fixture(scope="module")
def whole(model, source, tmp_path_factory):
    """(the folder of all objects, the report)."""
    out = tmp_path_factory.mktemp("found")
    return out, predict_objects(model, source, out, rows_per_file=2, **FINDING)


def rows_of(folder):
    return pyarrow.parquet.read_table(folder).to_pylist()


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".parquet", ".json")}


def results_of(folder):
    return json.loads((folder / "_train_coco.json").read_text())


@pytest.mark.extended
def test_rows_are_what_detect_finds_in_pixels(whole, model, folder):
    own = [row for row in rows_of(whole[0]) if row["name"].endswith("b/1.png")]
    found = model.detect(folder / "b" / "1.png", **FINDING)
    assert len(own) == len(found) == 4 and [row["class"] for row in own] == list(found.names)
    np.testing.assert_allclose([row["score"] for row in own], found.scores, atol=1e-6)
    sides = [[row[side] for side in ("top", "left", "bottom", "right")] for row in own]
    np.testing.assert_allclose(sides, found.boxes, atol=1e-4)
    assert {(row["height"], row["width"], row["image_id"], row["error"]) for row in own} == {(20, 30, 103, None)}


@pytest.mark.extended
def test_an_unreadable_image_has_a_row_and_broken_annotations_cost_none(whole):
    out, report = whole
    assert (report.files, report.rows, len(report.broken)) == ((3, 0, 3), 19, 1)
    [row] = [row for row in rows_of(out) if row["score"] is None]
    assert row["name"].endswith("broken.png") and row["image_id"] == 102 and row["class"] is row["height"] is None
    assert row["error"] and row["error"] == report.broken[row["name"]]


@pytest.mark.extended
def test_an_image_without_objects_has_one_row(model, source, tmp_path):
    assert predict_objects(model, source, tmp_path, threshold=1.0).rows == 0
    rows = rows_of(tmp_path)
    assert len(rows) == 5 and all(row["score"] is None for row in rows) and results_of(tmp_path) == []
    assert sum(row["error"] is None and row["width"] == 30 for row in rows) == 4


@pytest.mark.extended
def test_coco_results_have_the_ids_of_the_annotations(whole):
    rows = [row for row in rows_of(whole[0]) if row["score"] is not None]
    for row, result in zip(rows, results_of(whole[0]), strict=True):
        assert result["image_id"] == row["image_id"] and result["category_id"] == CATEGORIES[row["class"]]
        expected = [row["left"], row["top"], row["right"] - row["left"], row["bottom"] - row["top"]]
        assert result["bbox"] == pytest.approx(expected, abs=2e-3) and abs(result["score"] - row["score"]) < 1e-6


@pytest.mark.extended
def test_without_coco_ids_are_rows_and_classes_from_1(model, folder):
    ids = object_prediction.find_ids(open_source(f"images:{folder}", "train"), model)
    assert ids.images is None and ids.categories == (1, 2, 3)
    columns = {column.name: column.kind for column in ids.columns}
    assert columns["image_id"] == "integer"


def test_classes_that_the_annotations_lack_bring_a_warning(source, caplog):
    other = detecting(class_names=["cat", "dog", "zebra"])
    assert object_prediction.find_ids(source, other).categories == (1, 2, 3)
    assert "has no categories zebra" in caplog.text


@pytest.mark.extended
def test_a_job_in_parts_that_was_stopped_ends_as_one_that_was_not(whole, model, source, tmp_path, monkeypatch):
    options = {"rows_per_file": 2, **FINDING}
    assert predict_objects(model, source, tmp_path, part=(1, 2), **options).files == (1, 0, 3)
    assert not (tmp_path / "_train_coco.json").exists()
    read, done = by_row.whole_images, []

    def stop(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(arguments)
        return read(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(by_row, "whole_images", stop)
        predict_objects(model, source, tmp_path, **options)
    assert predict_objects(model, source, tmp_path, **options).files == (1, 2, 3)
    assert files_of(tmp_path) == files_of(whole[0])


@pytest.mark.extended
def test_another_threshold_in_the_folder_and_other_models_are_refused(whole, model, source, tmp_path):
    with pytest.raises(ValueError, match=r"contains rows of another job: finding .*0\.05.*, now .*0\.3"):
        predict_objects(model, source, whole[0], rows_per_file=2, limit=5)
    with pytest.raises(ValueError, match="finds no objects"):
        predict_objects(every_weight(), source, tmp_path)


@pytest.mark.extended
def test_a_job_with_tiles_resumes_and_refuses_others_in_its_folder(whole, model, source, folder, tmp_path):
    how = {"rows_per_file": 2, "tiles": 16, **FINDING, "limit": 40}
    assert predict_objects(model, source, tmp_path, part=(1, 2), **how).files == (1, 0, 3)
    assert predict_objects(model, source, tmp_path, **how).files == (2, 1, 3)
    own = [row["score"] for row in rows_of(tmp_path) if row["name"].endswith("b/1.png")]
    found = model.detect(folder / "b" / "1.png", tiles=16, threshold=0.05, limit=40)
    assert len(found) > 4
    np.testing.assert_allclose(own, found.scores, atol=1e-6)
    for other, words in (
        ({"tiles": 20}, r"tiles.*16, 16.*now.*20, 20"),
        ({"tile_overlap": 0.5}, r"tile_overlap.*0\.2.*0\.5"),
        ({"tiles": None}, "tiles"),
    ):
        with pytest.raises(ValueError, match=f"contains rows of another job: .*{words}"):
            predict_objects(model, source, tmp_path, **{**how, **other})
    with pytest.raises(ValueError, match="contains rows of another job"):
        predict_objects(model, source, whole[0], rows_per_file=2, tiles=16, **FINDING)


@pytest.mark.extended
def test_the_command_writes_objects_by_default(model, folder, tmp_path, binary):
    model.save(tmp_path / "cells.keras")
    given = {"model": str(tmp_path / "cells.keras"), "data": f"boxes:{folder}", "output": tmp_path / "found"}
    printed = binary(predict, **given, threshold=0.05, limit=5, tiles=32)  # no image is larger
    assert "train: wrote 19 objects in 1 file of 1" in printed and "1 image cannot be read" in printed
    assert printed.endswith("_train_coco.json\n")
    for options, message in (
        ({"format": "tfrecord"}, "--format would be ignored: it is not for --answers=objects"),
        ({"answers": "classes"}, "Valid for this model: objects, features"),
        ({"answers": "features", "soft": True}, "--soft would be ignored: it is not for --answers=features"),
        ({"answers": "features", "tiles": 32}, "--tiles would be ignored: it is not for --answers=features"),
    ):
        with pytest.raises(ValueError, match=message):
            binary(predict, **given, **options)


@pytest.mark.extended
def test_a_large_jpeg_is_answered_in_its_files_pixels(model, large_jpeg, tmp_path):
    expected, found = (model.detect(image, **FINDING) for image in (np.full((44, 80, 3), 128, "uint8"), large_jpeg))
    np.testing.assert_allclose(found.boxes, 100 * expected.boxes, rtol=1e-4)
    assert len(found) and found.image.shape == (4400, 8000, 3)
    predict_objects(model, open_source(f"images:{large_jpeg.parent}", "train"), tmp_path, **FINDING)
    rows = rows_of(tmp_path)
    assert {(row["height"], row["width"]) for row in rows} == {(4400, 8000)}
    boxes = [[row[side] for side in ("top", "left", "bottom", "right")] for row in rows]
    np.testing.assert_allclose(boxes, found.boxes, rtol=1e-4)
    np.testing.assert_allclose(results_of(tmp_path)[0]["bbox"][:2], found.boxes[0, 1::-1], atol=1e-3)
