"""Sources of annotated images: formats of images, slices, the cache, reports, options, and broken annotations."""

import os

import numpy as np
import pytest
import tensorflow as tf
from annotation_files import (
    SIZE,
    SQUARE,
    annotation,
    coco_content,
    coco_folder,
    expected,
    fractions,
    masks,
    opened,
    picture,
    text,
    yolo_folder,
)
from PIL import Image

from keras_vit.data.errors import why
from keras_vit.data.source_names import with_kind
from keras_vit.data.splits import MissingSplit


@pytest.mark.extended
def test_the_report_has_the_share_of_each_class(tmp_path, logged, shares):
    opened(coco_folder(tmp_path, [annotation()]))
    assert "share of pixels in 1 mask: background 88.8%, cat 11.2%, dog 0.0%; void 0.0%" in logged[0]


def test_a_turned_jpeg_has_a_mask_of_the_upright_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    coco_folder(tmp_path, [annotation()])
    picture(tmp_path / "a.jpg", SIZE[::-1], exif=exif)
    np.testing.assert_array_equal(masks(opened(tmp_path))["a.jpg"], expected((1, 2, 4, 5, 1)))


def test_annotations_of_stored_pixels_are_turned_with_their_image(tmp_path):
    """Orientation 6: the camera's pixels lie on their left side, and are shown turned clockwise."""
    exif = Image.Exif()
    exif[0x0112] = 6
    coco_folder(tmp_path, [annotation()])
    picture(tmp_path / "a.jpg", SIZE, exif=exif)
    np.testing.assert_array_equal(masks(opened(tmp_path))["a.jpg"], np.rot90(expected((1, 2, 4, 5, 1)), -1))


@pytest.mark.parametrize("end", ["png", "bmp", "gif", "webp", "tiff"])
def test_images_of_other_formats_have_masks_of_their_size(tmp_path, end):
    picture(tmp_path / f"a.{end}")
    text(tmp_path / "_annotations.coco.json", coco_content([annotation()], images=(f"a.{end}",)))
    np.testing.assert_array_equal(masks(opened(tmp_path))[f"a.{end}"], expected((1, 2, 4, 5, 1)))


def test_other_yaml_files_are_not_read(tmp_path):
    coco_folder(tmp_path, [annotation()])
    text(tmp_path / "environment.yaml", "name: x: y: [")
    assert opened(tmp_path).size == 1


@pytest.mark.extended
def test_slices_are_disjoint_and_masks_stay_with_their_images(tmp_path):
    names = [f"{i}.png" for i in range(10)]
    for name in names:
        picture(tmp_path / name)
    regions = [annotation(i, i, segmentation=([0, 0, i, 0, i, 8, 0, 8],)) for i in range(1, 11)]
    text(tmp_path / "_annotations.coco.json", coco_content(regions, images=names))
    parts = [masks(opened(tmp_path, split)) for split in ("train[:70%]", "train[70%:]")]
    assert [len(part) for part in parts] == [7, 3]
    found = {name: int(mask.sum()) for part in parts for name, mask in part.items()}
    assert found == {f"{i}.png": 8 * (i + 1) for i in range(10)}


@pytest.mark.extended
def test_a_cached_source_holds_its_masks(tmp_path):
    source = opened(yolo_folder(tmp_path, f"0 {fractions(SQUARE)}")).cached()
    picture(tmp_path / "train" / "images" / "a.jpg", (20, 20))  # no longer read
    np.testing.assert_array_equal(masks(source)["a.jpg"], expected((1, 2, 4, 5, 1)))


@pytest.mark.extended
def test_masks_are_drawn_without_python_as_a_data_service_needs(tmp_path):
    source = opened(
        coco_folder(tmp_path, [annotation(), annotation(2, segmentation={"size": [8, 10], "counts": [80]})])
    )
    draw = tf.function(lambda i: source.parse({"image": tf.io.read_file(source.names(i)), "number": i})["mask"])
    traced = draw.get_concrete_function(tf.TensorSpec((), tf.int64))
    np.testing.assert_array_equal(traced(tf.constant(0, tf.int64))[..., 0], expected((1, 2, 4, 5, 1)))
    graph = traced.graph.as_graph_def()
    kinds = {
        node.op for part in (graph, *graph.library.function) for node in getattr(part, "node_def", None) or part.node
    }
    assert "ScatterNd" in kinds and not any("PyFunc" in kind for kind in kinds)


def test_a_path_with_annotations_needs_no_kind(tmp_path):
    for folder in (coco_folder(tmp_path / "coco", []), yolo_folder(tmp_path / "yolo", "")):
        assert with_kind(str(folder)) == f"masks:{folder}"


def test_an_image_with_broken_annotations_fails_by_name(tmp_path, logged):
    coco_folder(tmp_path, [annotation(segmentation=(SQUARE[:7],)), annotation(2, 2)], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    source = opened(tmp_path)
    assert any("the annotations of 1 image of 2 cannot be used" in line for line in logged)
    number = {os.path.basename(source.example_name(i)): tf.constant(i, tf.int64) for i in range(2)}
    assert source.read(number["b.jpg"])["mask"].numpy().sum() == 9
    found = why(lambda: source.read(number["a.jpg"]))
    assert found.startswith("Its annotations cannot be used: annotation 1: expected a polygon as pairs")


def test_images_of_another_size_than_stated_fail_by_name(tmp_path):
    coco_folder(tmp_path, [annotation()], size=(16, 20))
    with pytest.raises(tf.errors.InvalidArgumentError, match="another size"):
        opened(tmp_path).read(tf.constant(0, tf.int64))


def test_splits_and_options_that_do_not_exist_are_refused(tmp_path):
    folder = coco_folder(tmp_path, [annotation()])
    with pytest.raises(MissingSplit, match="annotations. Valid: train"):
        opened(folder, "val")
    with pytest.raises(ValueError, match="expected background=void, got background=black"):
        opened(folder, options="?background=black")
    text(folder / "labels.txt", "dog\ncat\n")
    with pytest.raises(ValueError, match="already names the classes"):
        opened(folder, options="?classes=labels.txt")
    with pytest.raises(ValueError, match='cta is not a class.*Did you mean "cat"'):
        opened(folder, options="?ignore=cta")


def test_a_single_class_needs_the_background(tmp_path):
    folder = coco_folder(tmp_path, [annotation()], categories=((1, "cat"),))
    assert opened(folder).class_names == ("background", "cat")
    with pytest.raises(ValueError, match="Expected at least 2 classes"):
        opened(folder, options="?background=void")
