"""Examples with more than an image and a label, from a source to batches: features, `select`, weights."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import ExampleErrors, evaluation_batches, from_arrays, open_source, training_batches
from keras_vit.data.batches import example_spec
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.selection import read_labels, subset, without

N = 10
IMAGES = np.broadcast_to(np.arange(N, dtype="uint8")[:, None, None, None], (N, 4, 6, 3)).copy()
BOXES = [np.full((i % 3, 4), i / N, "float32") for i in range(N)]
FEATURES = {
    "mask": IMAGES[..., :1].astype("int32"),
    "boxes": BOXES,
    "labels": [[i] * (i % 3) for i in range(N)],
    "id": [f"n{i}" for i in range(N)],
}


def segmentation(example):
    return example["image"], {"mask": example["mask"], "place": tf.reduce_mean(tf.cast(example["mask"], tf.float32))}


def weighted(example):
    """Pixels of mask 3 do not count, those of 4 count twice."""
    mask = example["mask"][..., 0]
    return example["image"], mask, tf.where(mask == 3, 0, tf.where(mask == 4, 2, 1))


def collect(dataset, count=None):
    return list((dataset if count is None else dataset.take(count)).as_numpy_iterator())


@pytest.mark.extended
def test_a_source_gives_all_features_of_an_example():
    source = from_arrays(IMAGES, features=FEATURES)
    assert source.size == N and source.class_names == () and source.labels is None
    for i, example in enumerate(collect(source.ordered())):
        assert set(example) == {"image", "mask", "boxes", "labels", "id", "void"} and example["id"].decode() == f"n{i}"
        assert (example["image"] == i).all() and (example["mask"] == i).all()
        np.testing.assert_array_equal(example["boxes"], BOXES[i])
        assert (
            example["boxes"].shape == (i % 3, 4)
            and example["labels"].tolist() == [i] * (i % 3)
            and example["labels"].dtype == np.int64
        )
    numbers = sorted(int(example["id"][1:]) for _, example in collect(source.shuffled(3), N))
    assert numbers == list(range(N))
    assert [e["id"] for e in collect(subset(source, [1, 4]).ordered())] == [b"n1", b"n4"]
    kept = without(source, [f"arrays, example {i}" for i in range(8)])
    assert kept.size == 2 and [e["id"] for e in collect(kept.ordered())] == [b"n8", b"n9"]


@pytest.mark.extended
def test_what_becomes_of_an_example_is_traced_once_for_all_batches_of_a_source():
    traced, source = [], from_arrays(IMAGES, np.arange(N), features=FEATURES)

    def select(example):
        traced.append(example)
        return segmentation(example)

    for batch_size in (2, 5):
        batches = evaluation_batches(source, "decode", batch_size, select=select)
        assert collect(batches)[1][1]["place"][0] == batch_size
        assert example_spec(source, "decode", select, training=False)[0].shape == (4, 6, 3)
    assert len(traced) == 1
    other = from_arrays(IMAGES, np.arange(N), features=FEATURES)
    for made_of in ((source, "decode"), (source, "noise(0)"), (other, "decode")):
        example_spec(*made_of, select, seed=1)
    assert len(traced) == 4  # another seed, another text, another source


@pytest.mark.extended
def test_evaluations_of_a_run_share_their_batches():
    source, errors = from_arrays(IMAGES, np.arange(N)), ExampleErrors()
    first, again, larger, other = (
        evaluation_batches(source, "decode", size, errors=counted)
        for size, counted in ((2, errors), (2, errors), (5, errors), (2, ExampleErrors()))
    )
    assert again is first and len({id(batches) for batches in (first, larger, other)}) == 3
    assert [y.tolist() for _, y, _ in collect(first)] == [y.tolist() for _, y, _ in collect(first)]


@pytest.mark.extended
def test_training_batches_hold_what_select_takes():
    source = from_arrays(IMAGES, np.arange(N), features=FEATURES)
    batches = training_batches(source, "random_crop(3)|noise(0)", 4, seed=1, select=segmentation)
    assert batches.element_spec[1]["mask"].shape == (4, 3, 3, 1)
    for images, targets in collect(batches, 4):
        np.testing.assert_array_equal(images[..., :1], targets["mask"])
        np.testing.assert_array_equal(targets["place"], images[:, 0, 0, 0])


def seeds(example):
    return example["image"], example["seed"]


@pytest.mark.extended
def test_every_example_has_a_seed_of_its_own():
    source = from_arrays(IMAGES, np.arange(N))
    whole = np.concatenate(
        [y for _, y in collect(training_batches(source, "random_crop(3)", 4, seed=1, select=seeds), 5)]
    )
    assert whole.shape == (20, 2) and whole.dtype == np.int64 and len(np.unique(whole, axis=0)) == 20
    [(_, second)] = collect(training_batches(source, "noise(1)", 4, 1, 0, (1, 2), select=seeds), 1)
    np.testing.assert_array_equal(second, whole[2:4])
    evaluated = [
        np.concatenate([y for _, y, _ in collect(evaluation_batches(source, "", n, select=seeds))])[:N] for n in (4, 5)
    ]
    np.testing.assert_array_equal(*evaluated)
    assert len(np.unique(evaluated[0], axis=0)) == N


@pytest.mark.extended
def test_evaluation_masks_the_weights_that_select_gives():
    encoded = [tf.io.encode_png(image).numpy() for image in IMAGES]
    encoded[5] = b"damaged"
    masks, errors = [tf.io.encode_png(image[..., :1]).numpy() for image in IMAGES], ExampleErrors()
    source = from_arrays(encoded, features={"mask": masks})
    batches = evaluation_batches(source, "decode|central_crop(4, 6)", 4, errors=errors, select=weighted)
    images, masks, weights = (np.concatenate(part) for part in zip(*collect(batches)))
    assert images.shape == (12, 4, 6, 3) and masks.shape == weights.shape == (12, 4, 6) and weights.dtype == np.float32
    expected = [1, 1, 1, 0, 2, 0, 1, 1, 1, 1, 0, 0]
    np.testing.assert_array_equal(weights, np.broadcast_to(np.reshape(expected, (12, 1, 1)), (12, 4, 6)))
    assert masks[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 6, 7, 8, 9, 0, 0] and set(errors.names) == {
        "arrays, example 5"
    }


def test_what_a_batch_cannot_hold_is_refused():
    source = from_arrays(IMAGES, features=FEATURES)
    with pytest.raises(ValueError, match='The examples have no "label", only image, mask.*: pass select='):
        training_batches(source, "", 4)
    with pytest.raises(ValueError, match=r"select= to return targets of fixed shape, got \(None, 4\): pad"):
        training_batches(source, "", 4, select=lambda example: (example["image"], example["boxes"]))
    with pytest.raises(ValueError, match=r"select= to return \(x, y\) or \(x, y, weights\), got dict"):
        evaluation_batches(source, "", 4, select=lambda example: {"x": example["image"]})
    with pytest.raises(ValueError, match="arrays has no labels"):
        read_labels(source)
    with pytest.raises(ValueError, match="arrays has no labels to count"):
        source.class_counts()
    with pytest.raises(ValueError, match="as count"):
        RandomAccess("x", (), None, lambda i: {})


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"mask": IMAGES[:2, ..., :1]}, r'features\["mask"\]: expected one value per image, 10, got 2'),
        ({"mask": IMAGES}, r"expected integer masks \(b, h, w, 1\)"),
        ({"mask": IMAGES[:, :2, :, :1]}, r"masks of the images' size, \(4, 6\), got \(2, 6\) pixels"),
        ({"boxes": [np.full((1, 4), 30.0)] * N}, "boxes as fractions of the image's height and width"),
        ({"boxes": [np.zeros((2, 3))] * N}, r"expected boxes \(b, m, 4\), got \(10, 2, 3\)"),
        ({"labels": [[0.5]] * N}, "expected integers .*, one per object, got float64"),
        ({"label": np.arange(N)}, "pass images and labels as the first two arguments"),
        ({"x": [np.zeros((2, i)) for i in range(N)]}, "differ only in the first axis"),
    ],
)
def test_features_that_do_not_fit(features, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(IMAGES, features=features)


def test_arrays_without_labels_have_no_class_names():
    with pytest.raises(ValueError, match="class_names needs labels"):
        from_arrays(IMAGES, class_names=["a"])


@pytest.mark.extended
def test_a_cached_source_keeps_the_other_features():
    encoded = [tf.io.encode_png(image).numpy() for image in IMAGES]
    source = from_arrays(encoded, np.arange(N), features={"boxes": BOXES, "id": FEATURES["id"]})
    for a, b in zip(collect(source.ordered()), collect(source.cached().ordered())):
        assert a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def test_records_hold_no_more_than_an_image_and_a_label(tmp_path):
    from keras_vit.data.records.write import write_records

    with pytest.raises(
        ValueError, match="image and a label.*; these have: image, .*mask.*. Nothing is left out silently"
    ):
        write_records(from_arrays(IMAGES, np.arange(N), features=FEATURES), str(tmp_path / "a"), "x", "train", 1)
    with pytest.raises(ValueError, match="image and a label.*; these have: image. "):
        write_records(from_arrays(IMAGES), str(tmp_path / "b"), "x", "train", 1)
    assert open_source("digits", "test").size == 360  # which has both
