"""inference.predict_masks: a mask for every image, as the model itself segments; an interrupted job resumes."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small_models import NAMED, every_weight, segmenting, write_pngs

from keras_vit.data import ExampleErrors, from_arrays, open_source
from keras_vit.data.whole_images import whole_images
from keras_vit.inference import image_files, mask_prediction, predict, predict_masks
from keras_vit.io.mask_pictures import mask_png
from keras_vit.prediction.images import Reader


@pytest.fixture(scope="module")
def model():
    return segmenting()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Five images in a and b, and a/broken.png, which is cut short."""
    return open_source(f"images:{write_pngs(tmp_path_factory.mktemp('photos'), 5)}", "train")


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


@pytest.fixture(scope="module")
def whole(model, source, tmp_path_factory):
    """(the folder of all masks, the report)."""
    out = tmp_path_factory.mktemp("masks")
    return out, predict_masks(model, source, out, window="slide", flips=True)


@pytest.mark.extended
def test_a_mask_has_the_name_and_size_of_its_image(whole, source):
    out, report = whole
    assert list(written(out)) == [f"train/{name}.png" for name in ("a/0", "a/2", "a/4", "b/1", "b/3")]
    assert report.rows == 5 and report.files == (5, 0, 6)
    [broken] = report.broken
    assert broken.endswith("a/broken.png")
    assert Image.open(out / "train" / "a" / "0.png").size == (30, 20)


@pytest.mark.extended
def test_a_mask_is_what_segment_returns(whole, model, source):
    path = next(name for name in image_files.names_at(source, range(6)) if name.endswith("a/0.png"))
    found = model.segment(path, window="slide", flips=True)
    mask = Image.open(whole[0] / "train" / "a" / "0.png")
    np.testing.assert_array_equal(np.asarray(mask), found.classes)
    assert mask.getpalette()[:9] == [0, 0, 200, 90, 90, 90, 200, 0, 0]


@pytest.mark.extended
def test_a_table_names_the_classes(whole):
    with open(whole[0] / "classes.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list(NAMED)
    assert rows[1] == {"class": "1", "name": "dog", "red": "90", "green": "90", "blue": "90"}


@pytest.mark.extended
def test_a_job_in_parts_that_was_stopped_ends_as_one_that_was_not(whole, model, source, tmp_path, monkeypatch):
    options = {"window": "slide", "flips": True}
    assert predict_masks(model, source, tmp_path, part=(1, 2), **options).files == (2, 0, 6)  # one is broken
    write, done = image_files.write_bytes, []

    def stop(path, data):
        if str(path).endswith(".png"):
            if done:
                raise KeyboardInterrupt
            done.append(path)
        write(path, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(image_files, "write_bytes", stop)
        predict_masks(model, source, tmp_path, **options)
    assert predict_masks(model, source, tmp_path, **options).files == (2, 3, 6)
    assert written(tmp_path) == written(whole[0])


@pytest.mark.extended
def test_another_job_in_the_folder_is_refused(whole, model, source):
    with pytest.raises(ValueError, match=r"contains rows of another job: window \['slide'"):
        predict_masks(model, source, whole[0])


@pytest.mark.extended
def test_other_files_are_not_overwritten(model, source, tmp_path):
    (tmp_path / "train" / "b").mkdir(parents=True)
    (tmp_path / "train" / "b" / "1.png").write_bytes(b"mine")
    with pytest.raises(ValueError, match="contains 1 of the files to write"):
        predict_masks(model, source, tmp_path)


@pytest.mark.extended
def test_too_many_unreadable_images_stop_the_job(model, source, tmp_path):
    with pytest.raises(ValueError, match=r"More than 0 examples cannot be used"):
        predict_masks(model, source, tmp_path, broken_limit=0)


@pytest.mark.extended
@pytest.mark.parametrize("count", [8, 254, 255, 300])
def test_masks_open_with_the_classes_of_the_model(count, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    names = ("unknown", "background", 'a "b", c', *(f"c{i}" for i in range(3, count)))
    model = SimpleNamespace(class_names=names, classes=count, colors=None)
    _, colors = mask_prediction.names_and_colors(model)
    expected = np.array([[0, 2, count - 1], [count - 2, 2, 0]])
    for name in ("a.jpg", "a.png"):
        for folder, pixels in (("photos", np.zeros((2, 3, 3), "uint8")), ("found/train", None)):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            if pixels is not None:
                Image.fromarray(pixels).save(tmp_path / folder / name)
    paths = [str(tmp_path / "photos" / name) for name in ("a.jpg", "a.png")]
    for name in image_files.file_names(paths):
        (tmp_path / "found" / "train" / name).write_bytes(mask_png(expected, colors))
    (tmp_path / "found" / mask_prediction.CLASSES).write_bytes(mask_prediction.class_table(model))
    source = open_source(f"masks:{tmp_path}/photos?images={tmp_path}/photos&masks={tmp_path}/found/train", "train")
    assert source.class_names == names and source.size == 2
    for i in range(2):
        np.testing.assert_array_equal(source.read(tf.constant(i, tf.int64))["mask"][..., 0], expected)


def test_examples_without_files_are_numbered(model, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), "uint8")
    predict_masks(model, from_arrays(images, np.zeros(2, int), ("cat",)), tmp_path)
    assert list(written(tmp_path)) == ["train/00000000.png", "train/00000001.png"]


@pytest.mark.extended
def test_a_broken_mask_costs_no_prediction(model, tmp_path):
    for name in ("a", "b"):
        for folder, value in (("images", 90), ("masks", 1)):
            (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
            Image.new("L", (30, 20), value).save(tmp_path / "data" / folder / f"{name}.png")
    source = open_source(f"masks:{tmp_path}/data?classes=3", "train")
    (tmp_path / "data" / "masks" / "b.png").write_bytes(b"no image")
    report = predict_masks(model, source, tmp_path / "out")
    assert report.rows == 2 and not report.broken


def test_images_that_differ_in_their_ending_keep_it():
    assert image_files.file_names(["/p/x/1.jpg", "/p/y/1.png"]) == ["x/1.png", "y/1.png"]
    assert image_files.file_names(["/p/1.jpg", "/p/1.png"]) == ["1.jpg.png", "1.png.png"]
    assert image_files.file_names(["gs://b/p/1.jpg"]) == ["1.png"]
    assert image_files.file_names(["p/a/../../1.jpg", "p/b.jpg"]) == ["1.png", "p/b.png"]


def test_a_classifier_has_no_masks(source, tmp_path):
    with pytest.raises(ValueError, match="it does not give masks"):
        predict_masks(every_weight(), source, tmp_path)


@pytest.mark.extended
def test_rows_have_no_masks(model, source, tmp_path):
    with pytest.raises(ValueError, match="use predict_masks, or request only features"):
        predict(model, source, tmp_path)
    assert predict(model, source, tmp_path, ("features",)).rows == 6


@pytest.mark.extended
def test_a_large_jpeg_is_segmented_at_its_files_size(model, large_jpeg):
    source = open_source(f"images:{large_jpeg.parent}", "train")
    [(_, pixels, _)] = whole_images(source, 3, ExampleErrors(0))  # of predict_masks, and of evaluation at full size
    assert pixels.shape == Reader(model)(large_jpeg, "It").shape == (4400, 8000, 3)
