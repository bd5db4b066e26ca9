"""Instances in TFRecords, as run lengths: the round trip is exact."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import open_source
from keras_vit.data.annotations import run_lengths
from keras_vit.data.annotations.rasterise import text_spans
from keras_vit.data.records.object_records import ORDER
from keras_vit.data.records.write import write_records
from keras_vit.data.sources.base import RandomAccess

H, W, COUNTS = 24, 30, (0, 1, 9, 40)


def scene(number):
    """Rectangles in a random order of drawing, some hidden, and a name of the same number of objects."""
    rng, count = np.random.default_rng(number), COUNTS[number]
    segments = np.zeros((H, W, 2), "int32")
    for place in rng.permutation(count) + 1:
        top, left = rng.integers(0, H - 1), rng.integers(0, W - 1)
        part = segments[top : top + rng.integers(1, 9), left : left + rng.integers(1, 9)]
        part[..., 0] = place
        part[..., 1] = np.where(part[..., 1] == 0, place, part[..., 1])
    low = rng.uniform(0, 0.5, (count, 2))
    return {
        "image": tf.io.encode_png(rng.integers(0, 256, (H, W, 3)).astype("uint8")).numpy(),
        "boxes": np.concatenate([low, low + 0.25], 1).astype("float32"),
        "labels": rng.integers(0, 2, count).astype("int32"),
        "crowd": rng.integers(0, 3, count).astype("int32"),
        "area": rng.uniform(1, 9, count).astype("float32"),
        "size": np.array([H, W], "int32"),
        "segments": segments,
    }


@pytest.fixture(scope="module")
def source():
    scenes = [scene(i) for i in range(len(COUNTS))]
    ragged = {key: tf.ragged.stack([value[key] for value in scenes]) for key in ("boxes", "labels", "crowd", "area")}
    columns = {key: tf.constant(np.stack([value[key] for value in scenes])) for key in ("image", "size", "segments")}

    def lookup(i):
        rows = {key: values[i] for key, values in ragged.items()}
        rows["boxes"] = tf.ensure_shape(rows["boxes"].to_tensor(shape=(None, 4)), (None, 4))
        return {**rows, **{key: values[i] for key, values in columns.items()}}

    objects = {"most_objects": max(COUNTS), "outlined": True, "stuff": ("sky",)}
    return RandomAccess("scenes", ("car", "sky"), None, lookup, count=len(scenes), **objects)


def examples(source):
    return sorted(source.ordered().as_numpy_iterator(), key=lambda example: len(example["labels"]))


@pytest.mark.extended
def test_records_give_the_same_segments(source, tmp_path, own_cache):
    write_records(source, str(tmp_path), "scenes", "train", 1)
    copy = open_source(f"tfrecord:{tmp_path}", "train")
    assert (copy.class_names, copy.most_objects, copy.outlined, copy.stuff) == (("car", "sky"), 40, True, ("sky",))
    for before, after in zip(examples(source), examples(copy)):
        assert set(after) == set(before)
        for key, value in before.items():
            np.testing.assert_array_equal(after[key], value)
            assert key == "image" or after[key].dtype == value.dtype
    [record, *_] = tf.data.TFRecordDataset(str(tmp_path / "scenes-train-00000-of-00001.tfrecord")).as_numpy_iterator()
    features = tf.train.Example.FromString(record).features.feature
    texts = features["image/object/mask"].bytes_list.value
    assert len(texts) == len(features[ORDER].int64_list.value)
    assert all(sum(run_lengths.decoded(text.decode())) == H * W for text in texts)
    with pytest.raises(ValueError, match="records of another form"):
        boxes = RandomAccess("boxes", ("car", "sky"), None, source.lookup, count=source.size, most_objects=40)
        write_records(boxes, str(tmp_path), "scenes", "val", 1)


@pytest.mark.extended
def test_smaller_images_have_smaller_segments(source, tmp_path, own_cache):
    write_records(source, str(tmp_path), "scenes", "train", 1, resize=12)
    for before, after in zip(examples(source), examples(open_source(f"tfrecord:{tmp_path}", "train"))):
        np.testing.assert_array_equal(after["segments"], before["segments"][1::2, 1::2])
        assert after["size"].tolist() == [H, W]


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_run_lengths_are_decoded_in_graphs(seed):
    rng = np.random.default_rng(seed)
    masks = rng.random((6, 40, 50)).repeat(3, 1) < np.array([0, 0.01, 0.3, 0.9, 0.999, 1])[:, None, None]
    counts = [run_lengths.of_mask(mask) for mask in masks]
    counts[2] = counts[2][:-1] if counts[2][-1] == 0 else counts[2]  # an odd number, as pycocotools may write
    texts = tf.constant([run_lengths.encoded(found) for found in counts])
    region, start, end = tf.function(text_spans)(texts)
    found = np.zeros((6, 50 * 120), bool)
    for row, first, last in zip(region.numpy(), start.numpy(), end.numpy()):
        found[row, first:last] = True
    np.testing.assert_array_equal(found.reshape(6, 50, 120).transpose(0, 2, 1), masks)
    assert [len(part) for part in text_spans(tf.zeros([0], tf.string))] == [0, 0, 0]
