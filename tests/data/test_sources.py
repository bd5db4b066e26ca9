"""Sources: order, resuming, and what happens with odd folders."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import evaluation_batches, from_arrays, open_source, training_batches
from keras_vit.data.ops.op_registry import parse
from keras_vit.data.scan import scan
from keras_vit.data.source_names import with_kind
from keras_vit.data.sources.selection import example_names, read_names, without


def collect(dataset, count=None):
    return list((dataset if count is None else dataset.take(count)).as_numpy_iterator())


def same(a, b):
    a, b = tf.nest.flatten(a), tf.nest.flatten(b)
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


def numbers_of(examples):
    """The number of each of `numbered`'s examples."""
    return [int(example["image"][0, 0, 0]) for example in examples]


def numbered(n=10):
    """Images whose every pixel is their number."""
    images = np.broadcast_to(np.arange(n, dtype="uint8")[:, None, None, None], (n, 4, 4, 1)).copy()
    return from_arrays(images, np.arange(n) % 3)


def write_image(path, seed=0, encode=tf.io.encode_jpeg):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype="uint8")
    path.write_bytes(encode(pixels).numpy())


def test_digits_are_the_stratified_split_of_scikit_learn():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    _, expected, _, expected_labels = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    source = open_source("digits", "test")
    examples = collect(source.ordered())
    assert (source.size, open_source("digits", "train").size) == (360, 1437)
    np.testing.assert_array_equal([example["label"] for example in examples], expected_labels)
    np.testing.assert_allclose([example["image"].ravel() for example in examples], expected * 255 / 16, atol=0.5)
    with pytest.raises(ValueError, match="Valid: train, test"):
        open_source("digits", "validation")


def test_each_pass_holds_every_example_once_in_another_order():
    seen = numbers_of(example for _, example in collect(numbered().shuffled(seed=1), 30))
    passes = [seen[:10], seen[10:20], seen[20:]]
    assert all(sorted(p) == list(range(10)) for p in passes)
    assert passes[0] != passes[1] != passes[2]
    assert seen != numbers_of(example for _, example in collect(numbered().shuffled(seed=2), 30))


@pytest.mark.parametrize("start", [10, 23])
def test_a_stream_resumes_at_the_exact_example(start):
    source = numbered()
    assert same(collect(source.shuffled(1), 40)[start:], collect(source.shuffled(1, start), 40 - start))


TEXT = "decode(1)|resize(6, 6)|random_crop(4)|random_flip|random_shift(1)|noise(20)"


@pytest.mark.extended
def test_training_batches_are_a_function_of_seed_and_step():
    batches = training_batches(numbered(), TEXT, 4, seed=3)
    first = collect(batches, 12)
    assert same(first, collect(batches, 12))
    assert same(first[7:], collect(training_batches(numbered(), TEXT, 4, seed=3, start_step=7), 5))
    assert not same(first[:1], collect(training_batches(numbered(), TEXT, 4, seed=4), 1))
    assert first[0][0].dtype == np.uint8 and first[0][0].shape == (4, 4, 4, 1)
    assert len({image.tobytes() for images, _ in first for image in images}) == 48, "anew in each pass"
    with pytest.raises(ValueError, match="must not be random"):
        evaluation_batches(numbered(), TEXT, 4)


@pytest.mark.extended
def test_evaluation_counts_each_example_once():
    batches = collect(evaluation_batches(numbered(10), "decode(1)", 4))
    assert [images.shape for images, _, _ in batches] == [(4, 4, 4, 1)] * 3
    counted = np.concatenate([images[weights > 0, 0, 0, 0] for images, _, weights in batches])
    np.testing.assert_array_equal(counted, np.arange(10))
    assert batches[-1][2].tolist() == [1, 1, 0, 0]
    assert evaluation_batches(numbered(10), "decode(1)", 4).cardinality() == 3


@pytest.mark.extended
def test_nothing_waits_for_tuning_when_an_iterator_is_deleted():
    # Of 24 tuned iterators that had run for 13 s, five took 7 to 58 s to delete.
    source = numbered()
    made = (
        training_batches(source, "random_flip", 4),
        evaluation_batches(source, "", 4),
        source.ordered(),
        source.shuffled(0),
    )
    assert [dataset.options().autotune.enabled for dataset in made] == [False] * 4
    assert made[0].map(lambda images, labels: images).options().autotune.enabled is False  # nor a dataset made from it


def test_images_without_a_fixed_size_are_refused(tmp_path):
    write_image(tmp_path / "class" / "a.jpg")
    with pytest.raises(ValueError, match="End it in a fixed size"):
        training_batches(open_source(f"folder:{tmp_path}", "train"), "decode|resize(6)", 4)


_FOUR = np.zeros((2, 4, 4, 1))
_FRACTIONS = np.linspace(0, 1, 32).reshape(2, 4, 4, 1)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4, 4)), [0, 1], r"expected images \(b, h, w, c\).*images\[..., None\]"),
        (np.zeros((2, 3, 8, 8)), [0, 1], "channels first"),
        ([np.zeros((4, 4, 3)), np.zeros((5, 4, 3))], [0, 1], "differ in shape"),
        (_FRACTIONS, [0, 1], "expected pixels 0..255, got 0 to 1: multiply them by 255"),
        (_FRACTIONS * 4 - 2, [0, 1], "got -2 to 2: undo their normalization"),
        (np.full((2, 4, 4, 1), np.nan), [0, 1], "got NaN or infinity"),
        (_FOUR.astype(bool), [0, 1], "expected pixels as numbers 0..255, got bool"),
        (_FOUR[:0], [], "arrays has no images"),
        (_FOUR, [0], "one label per image"),
        (_FOUR, [[1, 0], [0, 1]], r"one-hot rows use labels.argmax\(-1\)"),
        (_FOUR, [0, -1], "the labels range from -1"),
        (_FOUR, [0.0, 0.5], "expected integer labels, got 0.5"),
        (_FOUR, ["cat", "dog"], "pass names as class_names"),
    ],
)
def test_arrays_that_do_not_fit(images, labels, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(images, labels)


@pytest.mark.parametrize(
    ("class_names", "message"),
    [
        (["a", "b"], "range from 1 to 2, but class_names has 2 names. Subtract 1"),
        ("abc", "a list of names"),
        (["a", "b", "a"], "contains a name twice"),
    ],
)
def test_class_names_that_do_not_fit_the_labels(class_names, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(_FOUR, [1, 2], class_names=class_names)


def test_floats_that_are_pixels_are_taken():
    """Constants, zeros and ones, and whole numbers; integral labels of any type."""
    for value in (0.0, 1.0, 0.4, 254.7):
        images = np.full((2, 4, 4, 1), value)
        if value == 0.4:
            images[0, 0, 0] = 7
        source = from_arrays(images, np.array([1.0, 0.0]))
        assert [(int(e["image"][1, 1, 0]), int(e["label"])) for e in collect(source.ordered())] == [
            (round(value), 1),
            (round(value), 0),
        ]
    assert from_arrays(np.eye(4)[None, ..., None], [True]).labels.tolist() == [1]


def test_folder_reads_every_format_in_any_tree(tmp_path):
    for i, (name, encode) in enumerate([("a.jpg", tf.io.encode_jpeg), ("b.PNG", tf.io.encode_png)]):
        write_image(tmp_path / "animals" / "cat" / name, i, encode)
        write_image(tmp_path / "dog" / name, i, encode)
    pil = pytest.importorskip("PIL.Image")
    pixels = pil.fromarray(np.zeros((9, 9, 3), "uint8"))
    for extension in ("bmp", "gif", "webp"):
        pixels.save(tmp_path / "dog" / f"c.{extension}")
    source = open_source(f"folder:{tmp_path}", "train")
    assert source.class_names == ("animals/cat", "dog")
    assert source.class_counts().tolist() == [2, 5]
    decode = parse("decode|resize(8, 8)")
    assert {decode(source.read(tf.constant(i, tf.int64)))["image"].shape for i in range(7)} == {(8, 8, 3)}


def test_folders_named_as_splits_are_splits(tmp_path):
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        for i in range(count):
            write_image(tmp_path / split / f"class{i % 2}" / f"{i}.jpg", i)
    sizes = {split: open_source(f"folder:{tmp_path}", split).size for split in ("train", "val", "test")}
    assert sizes == {"train": 4, "val": 2, "test": 3}
    with pytest.raises(ValueError, match='no split "dev". Valid: '):
        open_source(f"folder:{tmp_path}", "dev")


def test_slices_of_a_folder_are_disjoint_and_whole(tmp_path):
    for i in range(10):
        write_image(tmp_path / f"class{i % 2}" / f"{i}.jpg", i)
    parts = [open_source(f"folder:{tmp_path}", split) for split in ("train[:80%]", "train[80%:]")]
    files = [{example["image"] for example in collect(part.ordered())} for part in parts]
    assert [len(f) for f in files] == [8, 2] and not files[0] & files[1]
    assert parts[0].class_names == parts[1].class_names


@pytest.mark.extended
def test_a_folder_opens_without_decoding_and_names_its_images(tmp_path):
    write_image(tmp_path / "cat" / "a.jpg")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "broken.jpg").write_text("not an image")
    source = open_source(f"folder:{tmp_path}", "train")
    assert sorted(example_names(source)) == [f"{tmp_path}/cat/a.jpg", f"{tmp_path}/dog/broken.jpg"]
    reasons = {name: reason for name, _, reason in scan(source, lambda example, pixels: (pixels,))}
    assert reasons[f"{tmp_path}/cat/a.jpg"] is None and reasons[f"{tmp_path}/dog/broken.jpg"]


def test_a_folder_may_be_below_data_dir_or_in_another_file_system(tmp_path):
    write_image(tmp_path / "photos" / "cat" / "a.jpg")
    encoded = (tmp_path / "photos" / "cat" / "a.jpg").read_bytes()
    assert collect(open_source("folder:photos", "train", str(tmp_path)).ordered()) == [{"image": encoded, "label": 0}]
    for split, name in (("train", "001.cat"), ("train", "dog"), ("validation", "dog")):
        tf.io.gfile.makedirs(f"ram://photos/{split}/{name}")
        tf.io.write_file(f"ram://photos/{split}/{name}/a.jpg", encoded)
    source = open_source("folder:ram://photos", "val")
    assert source.class_names == ("001.cat", "dog") and collect(source.ordered()) == [{"image": encoded, "label": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("folder:PATH", "is a placeholder: write folder: and the path of your folder"),
        ("{}/none", 'There is no folder "/'),
        ("cifar11", '^tensorflow-datasets has no "cifar11". Did you mean .*cifar10'),
    ],
)
def test_a_source_that_is_not_there_says_what_to_write(text, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        open_source(text.format(tmp_path), "train")
    assert len(str(caught.value)) < 300


def test_the_kind_of_a_path_follows_from_what_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (
        "pets/cat/a.jpg",
        "new photos/a.jpg",
        "records/x-train-00000-of-00001.tfrecord",
        "t.tsv",
        "rgb.d/x.JPG",
    ):
        write_image(tmp_path / path)
    for path in ("prepared/3.0.2", "prepared/rgb/1.0.0"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "dataset_info.json").touch()
    expected = {
        **{"pets": "folder:pets", "pets/": "folder:pets/", "new photos": "images:new photos"},
        **{"pets/cat": "images:pets/cat", f"{tmp_path}/none": f"folder:{tmp_path}/none", "./none": "folder:./none"},
        **{
            "records": "tfrecord:records",
            "t.tsv?label=breed": "csv:t.tsv?label=breed",
            "none.JSONL": "jsonl:none.JSONL",
        },
        **{"gs://bucket/pets": "folder:gs://bucket/pets", "gs://bucket/t.csv": "csv:gs://bucket/t.csv"},
        **{"x-*.tfrecord": "tfrecord:x-*.tfrecord", "x.tfrecord-00000-of-00002": "tfrecord:x.tfrecord-00000-of-00002"},
    }
    same = "digits", "cifar10", "cifar10:3.0.2", "eurosat/rgb", "prepared", "prepared/rgb", "folder:pets", "foldr:t.csv"
    assert {text: with_kind(text) for text in (*expected, *same)} == {**expected, **{text: text for text in same}}
    assert with_kind("cat", tmp_path / "pets") == "images:cat"
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "other"))
    (tmp_path / "other" / "pets").mkdir(parents=True)
    assert with_kind("pets") == "pets", "a dataset that is prepared keeps its name"


def test_folders_without_images_are_clear_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        open_source(f"folder:{tmp_path}/none", "train")
    with pytest.raises(ValueError, match="no images in class folders; it contains nothing"):
        open_source(f"folder:{tmp_path}", "train")
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="it contains 1 .txt. Expected PATH/CLASS/IMAGE"):
        open_source(f"folder:{tmp_path}", "train")


@pytest.mark.extended
def test_cifar10_is_whole_and_resumes(shared_data):
    folder = str(shared_data / "tensorflow_datasets")
    source = open_source("cifar10", "train[:2%]", folder, buffer=300)
    assert source.size == 1000 and source.class_names[:2] == ("airplane", "automobile")
    text = "decode|random_crop(32, padding=4)|random_flip"
    whole = collect(training_batches(source, text, 100, seed=5), 13)
    assert same(whole[9:], collect(training_batches(source, text, 100, seed=5, start_step=9), 4))
    first = sorted(example["image"] for _, example in collect(source.shuffled(1), 1000))
    assert first == sorted(example["image"] for example in collect(source.ordered()))


def test_unprepared_datasets_say_how_to_prepare(tmp_path, shared_data):
    with pytest.raises(ValueError, match="tfds build mnist --data_dir"):
        open_source("mnist", "train", str(tmp_path))
    with pytest.raises(ValueError, match='has no "no_such_set"'):
        open_source("no_such_set", "train", str(tmp_path))
    with pytest.raises(ValueError, match='no split "validation". Valid: t'):
        open_source("cifar10", "validation", str(shared_data / "tensorflow_datasets"))


def test_tensorflow_datasets_by_version_and_feature(shared_data):
    folder = str(shared_data / "tensorflow_datasets")
    images = [
        collect(open_source(name, "test[:5]", folder).ordered())
        for name in ("cifar10", "cifar10:3.0.2", "cifar10:3.*.*")
    ]
    assert images[0] == images[1] == images[2] and len(images[0]) == 5
    with pytest.raises(ValueError, match="only: 3.0.2"):
        open_source("cifar10:2.0.0", "test", folder)
    with pytest.raises(
        ValueError, match='"id" to be one ClassLabel per example, got Text. Write "cifar10[?]label=label"'
    ):
        open_source("cifar10?label=id", "test", folder)
    with pytest.raises(ValueError, match='has the option "labl=id". Valid: image=, label='):
        open_source("cifar10?labl=id", "test", folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "foldr:photos",
            'unknown kind of source "foldr". Did you mean "folder:"[?] Valid: a path, "digits", "folder:PATH"',
        ),
        ("zip:photos.zip", 'unknown kind of source "zip". Valid: '),
        ("folder:", 'has no path. Write "folder:PATH"'),
    ],
)
def test_unknown_kinds_list_the_valid_ones(text, message):
    with pytest.raises(ValueError, match=message):
        open_source(text, "train")


def test_arrays_may_be_encoded():
    images = [tf.io.encode_png(np.full((4, 4, 3), i, "uint8")).numpy() for i in range(3)]
    source = from_arrays(images, [0, 1, 1])
    assert collect(source.ordered()) == [{"image": image, "label": label} for image, label in zip(images, [0, 1, 1])]
    with pytest.raises(ValueError, match="one label per image"):
        from_arrays(images, [0])


@pytest.mark.parametrize("start", [0, 4])
def test_excluded_examples_are_gone_from_every_pass(start):
    source = without(numbered(6), ["arrays, example 1", "arrays, example 4", "another"])
    assert source.size == 4 and source.class_counts().tolist() == [2, 0, 2]
    assert numbers_of(collect(source.ordered())) == [0, 2, 3, 5]
    assert sorted(numbers_of(example for _, example in collect(source.shuffled(1, start), 4))) == [0, 2, 3, 5]
    assert example_names(source) == [f"arrays, example {i}" for i in (0, 2, 3, 5)]
    assert example_names(without(source, ["arrays, example 3"])) == [f"arrays, example {i}" for i in (0, 2, 5)]


def test_excluded_names_that_match_no_example(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("# a comment\ncat/a.jpg\n\n")
    assert read_names(path) == ["cat/a.jpg"]
    with pytest.raises(
        ValueError,
        match="None of the 1 names to exclude, such as 'cat/a.jpg', matches an example of arrays, such as 'arr",
    ):
        without(numbered(3), read_names(path))
    with pytest.raises(ValueError, match="exclude all 2 examples"):
        without(numbered(2), ["arrays, example 0", "arrays, example 1"])
    assert without(numbered(2), []).size == 2
