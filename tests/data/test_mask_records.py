"""Masks in tables, TFRecords, memory and arrays; tables of classes."""

import json

import numpy as np
import pytest
import tensorflow as tf
from mask_files import COLORS, NAMES, ROOMS, TABLE, opened, painted, palette, photo, png, read, rooms, write

from keras_vit.data import from_arrays, open_source
from keras_vit.data.ops.op_registry import parse
from keras_vit.data.records.write import write_records
from keras_vit.data.source_names import with_kind
from keras_vit.data.sources.mask_tables import cityscapes, read_table, voc
from keras_vit.data.sources.selection import read_labels

pytestmark = pytest.mark.usefixtures("own_cache")


ROWS = [
    ("images/0.jpg", "masks/0.png"),
    ("images/1.jpg", ""),
    ("images/2.jpg", "masks/2.png"),
    ("images/2.jpg", "x.png"),
]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_may_name_masks(kind, tmp_path, told):
    if kind == "csv":
        table = "image;mask\n" + "".join(f"{image};{mask}\n" for image, mask in ROWS)
    else:
        table = "".join(json.dumps({"image": image, "mask": mask or None}) + "\n" for image, mask in ROWS)
    write(tmp_path, rooms(names="", **{f"table.{kind}": table, "names.txt": "road\ntree\n"}))
    source = open_source(f"{kind}:{tmp_path}/table.{kind}?ignore=0&classes=names.txt", "train")
    assert (source.size, source.class_names, source.void) == (2, ("road", "tree"), 255)
    np.testing.assert_array_equal(read(source), np.uint8(ROOMS - 1))
    assert any("ignored 1 row of 3 with missing files, such as" in text and "x.png" in text for text in told())
    assert any(text.endswith("void 33.3% (stored as 0); ignored: 1 image without a mask.") for text in told())


def test_a_table_has_masks_or_labels(tmp_path):
    write(
        tmp_path,
        rooms(**{"a.csv": "image,label,mask\nimages/0.jpg,cat,masks/0.png\n", "b.csv": "image,mask\nimages/0.jpg,\n"}),
    )
    assert open_source(f"csv:{tmp_path}/a.csv", "train").class_names == ("cat",)
    assert open_source(f"csv:{tmp_path}/a.csv?mask=mask", "train").class_names == ("sky", "road", "tree")
    for options, message in {
        "a.csv?mask=mask&label=label": "label=label is for labels, but mask= selects masks",
        "a.csv?ignore=0": "ignore=0 needs a column of masks",
        "b.csv": "no row has a mask",
    }.items():
        with pytest.raises(ValueError, match=message):
            open_source(f"csv:{tmp_path}/{options}", "train")


@pytest.fixture(scope="module")
def records(own_cache, tmp_path_factory):
    """(the source, its records' folder, the report of writing them): four masks of colours, one all void."""
    folder = tmp_path_factory.mktemp("rooms")
    files = rooms(png(np.zeros((*ROOMS.shape, 3), "uint8")), others=painted(), names="", count=4)
    write(folder, files | {"class_dict.csv": TABLE + "void,0,0,0\n"})
    source = opened(folder)
    return source, folder / "records", write_records(source, str(folder / "records"), "rooms", "train", 2)


@pytest.mark.extended
def test_records_hold_masks_of_classes(records):
    source, folder, report = records
    assert report["examples"] == 3
    ((name, why),) = report["skipped"].items()
    assert name.endswith("images/0.jpg") and why.startswith("The mask is all void")
    copy = open_source(with_kind(str(folder)), "train")
    assert (copy.class_names, copy.void, copy.colors) == (source.class_names, 255, tuple(COLORS.values()))
    for example in copy.ordered().as_numpy_iterator():
        assert set(example) == {"image", "mask", "void"} and example["void"] == 255
        np.testing.assert_array_equal(example["mask"][..., 0], ROOMS)
    description = json.loads((folder / "dataset.json").read_text())
    assert description["features"] == {"image": "image/encoded", "mask": "image/segmentation/class/encoded"}
    for text in ("read_labels", "class_counts"):
        with pytest.raises(ValueError, match="has no labels"):
            read_labels(copy) if text == "read_labels" else copy.class_counts()


@pytest.mark.extended
def test_records_of_other_writers_have_a_key_of_masks(tmp_path):
    def features(values):
        return tf.train.Features(
            feature={key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for key, v in values.items()}
        )

    with tf.io.TFRecordWriter(str(tmp_path / "val-00000-of-00001.tfrecord")) as writer:
        for mask in (png(ROOMS), palette(ROOMS, [(9, 9, 9)] * 3)):
            writer.write(tf.train.Example(features=features({"img": photo(), "seg": mask})).SerializeToString())
    write(tmp_path, {"names.txt": "road\ntree\n"})
    source = open_source(f"tfrecord:{tmp_path}?image=img&mask=seg&classes=names.txt&ignore=0", "val")
    assert (source.class_names, source.size, source.void) == (("road", "tree"), 2, 255)
    for example in source.ordered().as_numpy_iterator():
        np.testing.assert_array_equal(example["mask"][..., 0], np.uint8(ROOMS - 1))
    with pytest.raises(ValueError, match="label=x is for labels, but mask= selects masks"):
        open_source(f"tfrecord:{tmp_path}?image=img&mask=seg&label=x", "val")


@pytest.mark.extended
def test_masks_in_records_shrink_with_their_images(tmp_path):
    large = np.kron(ROOMS, np.ones((10, 10), "uint8"))
    write(tmp_path, {"images/a.jpg": photo(large.shape), "masks/a.png": png(large), "classes.txt": NAMES})
    write_records(opened(tmp_path), str(tmp_path / "records"), "a", "train", 1, resize=6)
    (example,) = open_source(f"tfrecord:{tmp_path}/records", "train").ordered().as_numpy_iterator()
    np.testing.assert_array_equal(example["mask"][..., 0], np.kron(ROOMS, np.ones((2, 2))))
    assert tf.io.decode_jpeg(example["image"]).shape == (6, 8, 3)


@pytest.mark.extended
def test_records_of_masks_and_of_labels_are_kept_apart(records):
    labels = from_arrays(np.zeros((2, 4, 4, 3), "uint8"), [0, 1])
    with pytest.raises(ValueError, match="records of another form: its dataset.json says .*mask"):
        write_records(labels, str(records[1]), "rooms", "val", 1)


def test_masks_stay_encoded_in_memory(tmp_path):
    write(tmp_path, rooms())
    source = opened(tmp_path).cached()
    assert source.lookup(0)["mask"].numpy() in [path.read_bytes() for path in tmp_path.glob("masks/*")]
    np.testing.assert_array_equal(read(source), ROOMS)


@pytest.mark.parametrize("encoded", [False, True])
def test_arrays_may_be_masks_of_classes(encoded):
    values = np.where(ROOMS == 1, 255, ROOMS)
    masks = [png(values.astype("uint8"))] if encoded else values[None, ..., None].astype("int64")
    images = np.zeros((1, *ROOMS.shape, 3), "uint8")
    names, colors = ("sky", "road", "tree"), list(COLORS.values())
    source = from_arrays(images, None, names, features={"mask": masks}, colors=colors)
    assert (source.class_names, source.void, source.colors) == (names, 255, tuple(colors))
    example = source.read(tf.constant(0, tf.int64))
    assert example["mask"].dtype == example["void"].dtype == tf.uint8 and example["void"] == 255
    np.testing.assert_array_equal(example["mask"][..., 0], values)
    if not encoded:
        with pytest.raises(ValueError, match="a mask has the value 2; expected 0 to 1 for the 2 class_names, or 255"):
            from_arrays(images, None, names[:2], features={"mask": masks})


@pytest.mark.parametrize(
    ("values", "kind", "void"), [([3, 255], "uint8", 255), ([300, 0], "int32", 65535), ([254, 0], "uint16", 65535)]
)
def test_masks_without_names_are_padded_with_void(values, kind, void):
    mask = np.array(values, kind).reshape(1, 1, 2, 1)
    source = from_arrays(np.zeros((1, 1, 2, 3), "uint8"), features={"mask": mask})
    padded = parse("letterbox(2)")(source.read(tf.constant(0, tf.int64)), None)["mask"]
    assert padded[..., 0].numpy().tolist() == [values, [void, void]]


def test_tables_of_well_known_data_sets():
    table = cityscapes(train_ids=False)
    assert (len(table.names), table.values[:3], table.values[-1]) == (19, (7, 8, 11), 33)
    assert sorted(table.values + table.void) == list(range(34))
    table = voc()
    assert len(table.names) == 21 and table.colors[:3] == ((0, 0, 0), (128, 0, 0), (0, 128, 0))
    assert (table.names[15], table.colors[15], table.colors[20]) == ("person", (192, 128, 128), (0, 64, 128))


def test_tables_are_read(tmp_path):
    write(tmp_path, {"_classes.csv": "Pixel Value, Class\n0, background\n3, big cat\n"})
    table = read_table(str(tmp_path / "_classes.csv"))
    assert (table.names, table.values, table.colors) == (("background", "big cat"), (0, 3), None)
