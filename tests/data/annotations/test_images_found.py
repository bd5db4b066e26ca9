"""Which image file an annotation names: never another data set's, and never one file for two names."""

import os

import pytest
from annotation_files import annotation, coco_content, labelme_content, picture, shape, text
from box_files import ROW, annotations, csv_folder, table, voc_object, voc_xml

BOX = {"bbox": [2, 1, 3, 3], "segmentation": []}


def coco_of(folder, *names, file="train.json"):
    rows = [annotation(i, i, **BOX) for i in range(1, len(names) + 1)]
    text(folder / file, coco_content(rows, images=names))
    return folder


def paths(folder, split="train"):
    return [os.path.relpath(path, folder) for path in table(folder, split)[0].paths]


def test_two_names_of_coco_are_not_one_file(tmp_path):
    picture(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match=r'"cam1/a.jpg" and "cam2/a.jpg" would both be ".*/a.jpg"'):
        table(coco_of(tmp_path, "cam1/a.jpg", "cam2/a.jpg"))


def test_two_spellings_of_one_path_are_not_two_images(tmp_path):
    picture(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match='"a.jpg" and "./a.jpg" would both be'):
        table(coco_of(tmp_path, "a.jpg", "./a.jpg"))


def test_two_names_in_a_table_are_not_one_file(tmp_path):
    row = ROW.removeprefix("a.jpg")
    with pytest.raises(ValueError, match='"cam1/a.jpg" and "cam2/a.jpg" would both be'):
        table(csv_folder(tmp_path, f"cam1/a.jpg{row}", f"cam2/a.jpg{row}"))


def test_names_keep_the_folders_that_tell_them_apart(tmp_path):
    for name in ("cam1/a.jpg", "cam2/a.jpg"):
        picture(tmp_path / "images" / name)
    assert paths(coco_of(tmp_path, "/home/me/cam1/a.jpg", "/home/me/cam2/a.jpg")) == [
        "images/cam1/a.jpg",
        "images/cam2/a.jpg",
    ]


@pytest.mark.parametrize(
    ("stated", "file"),
    [
        ("images\\a.jpg", "images/a.jpg"),
        ("..\\..\\media\\a.jpg", "a.jpg"),
        ("/data/local-files/?d=cats/a%20b.jpg", "cats/a b.jpg"),
        ("images/1f2e3d4c-a.jpg", "images/a.jpg"),
        ("images/a%20b.jpg", "images/a%20b.jpg"),
    ],
)
def test_names_of_label_studio_are_found(tmp_path, stated, file):
    picture(tmp_path / file)
    assert paths(coco_of(tmp_path, stated)) == [file]


def test_the_folder_with_the_most_images_is_that_of_the_annotations(tmp_path):
    picture(tmp_path / "a.jpg")
    for name in "abc":
        picture(tmp_path / "images" / f"{name}.jpg")
    assert paths(coco_of(tmp_path, "a.jpg", "b.jpg", "c.jpg")) == ["images/a.jpg", "images/b.jpg", "images/c.jpg"]


def one_voc(folder):
    text(folder / "a.xml", voc_xml(voc_object()))


def one_labelme(folder):
    text(folder / "a.json", labelme_content([shape()]))


@pytest.mark.parametrize("write", [lambda folder: coco_of(folder, "a.jpg"), one_voc, one_labelme])
@pytest.mark.parametrize("place", ["images", "setB"])
def test_images_outside_of_the_folder_belong_to_other_data(tmp_path, write, place):
    picture(tmp_path / place / "a.jpg")
    write(tmp_path / "setB")
    if place == "setB":
        assert paths(tmp_path / "setB") == ["a.jpg"]
        return
    try:
        assert not paths(tmp_path / "setB")
    except FileNotFoundError as error:
        assert "images=FOLDER" in str(error)


@pytest.mark.parametrize("place", ["", "day/one"])
def test_a_folder_of_annotations_has_its_images_beside_it(tmp_path, place):
    picture(tmp_path / "JPEGImages" / place / "a.jpg")
    one_voc(tmp_path / "Annotations" / place)
    assert paths(tmp_path) == [os.path.normpath(f"JPEGImages/{place}/a.jpg")]
    assert len(table(tmp_path / "Annotations")[0].paths) == 1


@pytest.mark.parametrize("stated", ["a.png", "a.jpg", "C:\\photos\\a.png"])
def test_the_name_in_a_voc_file_decides_between_two_images(tmp_path, stated):
    for name in ("a.jpg", "a.png"):
        picture(tmp_path / name)
    text(tmp_path / "a.xml", voc_xml(voc_object(), image=stated))
    assert paths(tmp_path) == [stated[-5:]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.xml", voc_xml(voc_object(), image="")),
        ("a.xml", voc_xml(voc_object(), image="b.jpg")),
        ("a.json", labelme_content([shape()], image="")),
    ],
)
def test_two_images_of_one_name_are_ambiguous(tmp_path, name, content):
    for image in ("a.jpg", "a.png"):
        picture(tmp_path / image)
    text(tmp_path / name, content)
    with pytest.raises(ValueError, match=f'{name}": its image could be any of a.jpg, a.png'):
        list(annotations(tmp_path).images)


def test_a_voc_file_that_names_another_image_is_reported(tmp_path):
    for image in ("a.jpg", "b.jpg"):
        picture(tmp_path / image)
    text(tmp_path / "a.xml", voc_xml(voc_object(), image="b.jpg"))
    found, reported = table(tmp_path)
    assert [os.path.basename(path) for path in found.paths] == ["a.jpg"]
    assert reported["that names another image, used for the image that shares its name"] == 1


def voc_set(root, *names, split="train"):
    """Files of VOC with one list of images, each of a cat."""
    for name in names:
        picture(root / f"JPEGImages/{name}.jpg")
        text(root / f"Annotations/{name}.xml", voc_xml(voc_object(), image=f"{name}.jpg"))
    text(root / f"ImageSets/Main/{split}.txt", "".join(f"{name}\n" for name in names))


def test_lists_of_voc_name_files_of_their_own_folder(tmp_path):
    voc_set(tmp_path / "VOC2007", "a")
    voc_set(tmp_path / "VOC2012", "a", "b", split="val")
    assert paths(tmp_path) == ["VOC2007/JPEGImages/a.jpg"]
    assert paths(tmp_path, "val") == ["VOC2012/JPEGImages/a.jpg", "VOC2012/JPEGImages/b.jpg"]


def test_names_with_folders_in_lists_of_voc_tell_files_apart(tmp_path):
    voc_set(tmp_path, "x/a", "y/a")
    assert paths(tmp_path) == ["JPEGImages/x/a.jpg", "JPEGImages/y/a.jpg"]
    text(tmp_path / "ImageSets/Main/train.txt", "a\n")
    with pytest.raises(ValueError, match='"a" in the ImageSets of ".*" could be .*x/a.xml, .*y/a.xml'):
        table(tmp_path)
