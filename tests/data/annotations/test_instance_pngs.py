"""PNGs of instances, written by the tests: COCO panoptic, Cityscapes, VOC, and a PNG for each object."""

import numpy as np
import pytest
import tensorflow as tf
from annotation_files import SIZE, annotation, coco_content, picture, text
from PIL import Image

from keras_vit.data.errors import why
from keras_vit.data.open import open_source

NUMBERS = np.zeros(SIZE, int)
NUMBERS[1:4, 2:5], NUMBERS[2, 3], NUMBERS[5:, :] = 1, 2, 3
ONE, TWO, THREE = (NUMBERS == number for number in (1, 2, 3))
BOXES = np.array([[1, 2, 4, 5], [2, 3, 3, 4], [5, 0, 8, 10]])


def png(path, values, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.asarray(values)
    if mode == "P":
        image = Image.fromarray(values.astype("uint8"), "P")
        image.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype("uint8").tobytes())
    elif mode == "16":
        image = Image.fromarray(values.astype("uint16"))
    else:
        image = Image.fromarray(values.astype("uint8"))
    image.save(path)


def read(folder, options="", split="train"):
    source = open_source(f"instances:{folder}{options}", split)
    assert source.size == 1
    example = {key: np.asarray(value) for key, value in source.read(tf.constant(0, tf.int64)).items()}
    assert set(example) == {"image", "boxes", "labels", "crowd", "area", "size", "segments"}
    assert source.outlined and example["segments"].dtype == np.int32 and example["size"].tolist() == list(SIZE)
    return source, example


def check(example, *masks):
    """The example's objects have these masks, and their boxes and areas."""
    assert len(example["boxes"]) == len(masks)
    for number, mask in enumerate(masks, 1):
        np.testing.assert_array_equal((example["segments"] == number).any(-1), mask)
        ys, xs = np.nonzero(mask)
        box = example["boxes"][number - 1] * [8, 10, 8, 10]
        np.testing.assert_allclose(box, [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1], atol=1e-5)
        assert example["area"][number - 1] == mask.sum()


def panoptic(folder, *segments, flag=int):
    """The JSON and PNG of these (id, category, crowd, mask); `flag` makes values of isthing and iscrowd."""
    ids, infos = np.zeros(SIZE, int), []
    for number, category, crowd, mask in segments:
        ids[mask] = number
        ys, xs = np.nonzero(mask)
        box = [xs.min(), ys.min(), xs.max() + 1 - xs.min(), ys.max() + 1 - ys.min()]
        entry = {"id": number, "category_id": category, "iscrowd": flag(crowd), "area": mask.sum(), "bbox": box}
        infos.append({key: np.asarray(value).tolist() for key, value in entry.items()})
    content = coco_content([{"image_id": 1, "file_name": "a.png", "segments_info": infos}])
    for category, thing in zip(content["categories"], (1, 0)):
        category["isthing"] = flag(thing)
    picture(folder / "val2017" / "a.jpg")
    png(folder / "annotations" / "panoptic_val2017" / "a.png", np.stack([ids % 256, ids // 256 % 256, ids >> 16], -1))
    text(folder / "annotations" / "panoptic_val2017.json", content)


@pytest.mark.parametrize("flag", [int, str])
def test_panoptic_colours_are_numbers_of_segments(tmp_path, logged, flag):
    panoptic(tmp_path, (70000, 3, 0, THREE), (9, 1, 0, TWO), (300, 1, 1, ONE), flag=flag)
    source, example = read(tmp_path, split="val")
    check(example, THREE, TWO, ONE)
    assert example["labels"].tolist() == [1, 0, 0] and example["crowd"].tolist() == [0, 0, 1]
    assert (source.class_names, source.stuff, source.most_objects) == (("cat", "dog"), ("dog",), 3)
    assert source.coco_ids.categories == {"cat": 1, "dog": 3}
    assert "3 objects of 2 classes" in logged[0] and "1 crowd" in logged[0] and "stuff: dog" in logged[0]
    alone = read(tmp_path / "annotations" / "panoptic_val2017.json")[1]
    np.testing.assert_array_equal(alone["segments"], example["segments"])


def test_files_of_objects_come_before_panoptic_ones_unless_chosen(tmp_path):
    panoptic(tmp_path, (70000, 3, 0, THREE))
    text(tmp_path / "annotations" / "instances_val2017.json", coco_content([annotation()]))
    check(read(tmp_path, split="val")[1], ONE | TWO)
    check(read(tmp_path, "?format=panoptic", split="val")[1], THREE)
    with pytest.raises(ValueError, match="expected format=panoptic, or no format=, got format=coco"):
        read(tmp_path, "?format=coco", split="val")


@pytest.mark.extended
def test_graphs_read_the_same(tmp_path):
    panoptic(tmp_path / "colours", (70000, 3, 0, THREE), (9, 1, 0, TWO))
    picture(tmp_path / "each" / "val" / "images" / "a.jpg")
    png(tmp_path / "each" / "val" / "masks" / "a" / "1.png", 255 * ONE)
    png(tmp_path / "each" / "val" / "masks" / "a" / "2.png", 255 * TWO)
    for name in ("colours", "each"):
        source, example = read(tmp_path / name, split="val")
        [found] = source.ordered().as_numpy_iterator()
        assert source.ordered().element_spec["segments"].shape.as_list() == [None, None, 2]
        for key, value in example.items():
            np.testing.assert_array_equal(found[key], value)


def test_panoptic_files_without_pngs_or_with_wrong_segments_are_refused(tmp_path):
    panoptic(tmp_path, (1 << 24, 3, 0, THREE))
    with pytest.raises(ValueError, match="segment 16777216: expected an id from 1 to 16777215"):
        read(tmp_path, split="val")
    (tmp_path / "annotations" / "panoptic_val2017" / "a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"no PNGs of segments \(a.png\) found"):
        read(tmp_path, split="val")


def cityscapes(folder, numbers):
    picture(folder / "leftImg8bit" / "train" / "ulm" / "ulm_0_leftImg8bit.png")
    png(folder / "gtFine" / "train" / "ulm" / "ulm_0_gtFine_instanceIds.png", numbers, "16")
    return folder


def test_cityscapes_numbers_objects_by_class(tmp_path, logged):
    folder = cityscapes(tmp_path, 26002 * ONE + 24 * TWO + 7 * THREE)
    source, example = read(folder)
    assert source.class_names[:3] == ("person", "rider", "car") and len(source.class_names) == 8
    order = np.argsort(example["labels"])
    assert example["labels"][order].tolist() == [0, 2] and example["crowd"][order].tolist() == [1, 0]
    check(example, *[(TWO, ONE)[list(order).index(i)] for i in range(2)])
    assert "Cityscapes annotations" in logged[0] and "1 crowd" in logged[0]
    source, example = read(folder, "?stuff=keep")
    road = list(source.class_names).index("road")
    assert len(source.class_names) == 19 and len(source.stuff) == 11 and "road" in source.stuff
    assert road in example["labels"] and not example["crowd"][example["labels"] == road].any()


def voc(folder, classes, objects=NUMBERS):
    picture(folder / "JPEGImages" / "a.jpg")
    png(folder / "SegmentationObject" / "a.png", np.where(objects == 2, 255, objects), "P")
    png(folder / "SegmentationClass" / "a.png", classes, "P")
    return folder


def test_voc_has_classes_in_a_second_png(tmp_path):
    source, example = read(voc(tmp_path, 15 * ONE + 7 * THREE + 255 * TWO))
    check(example, ONE, THREE)
    assert [source.class_names[label] for label in example["labels"]] == ["person", "car"]


def test_voc_lists_and_names(tmp_path):
    folder = voc(tmp_path, 2 * ONE + 25 * THREE)
    text(folder / "ImageSets" / "Segmentation" / "val.txt", "a\n")
    with pytest.raises(ValueError, match="has the class number 25.*specify a file of the class names"):
        read(folder, split="val")
    text(folder / "names.txt", "\n".join(f"kind {i}" for i in range(30)))
    source, example = read(folder, "?classes=names.txt", "val")
    assert [source.class_names[label] for label in example["labels"]] == ["kind 1", "kind 24"]


def test_voc_folders_of_other_tools_need_names_and_numbers(tmp_path):
    folder = voc(tmp_path, 15 * ONE)
    border = np.where(NUMBERS == 1, 15, 0)
    border[1, 2] = 255
    png(folder / "SegmentationClass" / "a.png", border, "P")
    assert read(folder)[1]["labels"].tolist() == [14]
    png(folder / "SegmentationObject" / "a.png", np.stack([NUMBERS] * 3, -1))
    with pytest.raises(ValueError, match="Expected a mask as a grey or palette PNG"):
        read(folder)
    text(folder / "labelmap.txt", "background:0,0,0::\ncat:128,0,0::\n")
    with pytest.raises(ValueError, match=r"its own classes in labelmap.txt.*\?classes=FILE"):
        read(folder)


def test_a_png_for_each_object_beside_its_image(tmp_path, logged):
    """As in the Data Science Bowl of 2018: ID/images/ID.png and ID/masks/*.png. Overlaps are kept."""
    picture(tmp_path / "x" / "images" / "x.png")
    whole = ONE | TWO
    for name, mask in (("1", whole), ("2", TWO), ("3", THREE), ("4", np.zeros(SIZE))):
        png(tmp_path / "x" / "masks" / f"{name}.png", 255 * mask)
    source, example = read(tmp_path)
    check(example, whole, TWO, THREE)
    assert source.class_names == ("object",) and "3 objects of 1 class: object 3" in logged[-1]
    np.testing.assert_array_equal(example["segments"][2, 3], [2, 1])


def test_pngs_in_folders_of_classes(tmp_path):
    picture(tmp_path / "val" / "images" / "a.jpg")
    png(tmp_path / "val" / "masks" / "a" / "cell" / "1.png", np.stack([200 * ONE] * 3, -1))
    png(tmp_path / "val" / "masks" / "a" / "debris" / "1.png", TWO, "P")
    source, example = read(tmp_path, split="val")
    check(example, ONE, TWO)
    assert source.class_names == ("cell", "debris") and example["labels"].tolist() == [0, 1]


def test_damaged_and_unlike_pngs_fail_by_name(tmp_path):
    folder = cityscapes(tmp_path, 26002 * ONE)
    for name, content in (("b", b"none"), ("c", None)):
        picture(folder / "leftImg8bit" / "train" / "ulm" / f"{name}_leftImg8bit.png")
        path = folder / "gtFine" / "train" / "ulm" / f"{name}_gtFine_instanceIds.png"
        path.write_bytes(content) if content else png(path, 26002 * np.ones((4, 4)), "16")
    source = open_source(f"instances:{folder}", "train")
    reasons = [why(lambda i=i: source.read(tf.constant(i, tf.int64))) for i in range(3)]
    for expected in ("a second one succeeded", "Its annotations cannot be used", "another size"):
        assert sum(expected in reason for reason in reasons) == 1
