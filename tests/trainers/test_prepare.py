"""trainers.prepare and its files: nothing lost, nothing changed, nothing half-written; trainers.deduplicate and its
files.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import duplicates, from_arrays, open_source
from keras_vit.data.duplicates import deduplicate
from keras_vit.data.ops.decode import decode_image
from keras_vit.data.records import write
from keras_vit.data.records.write import default_name, encoder, write_records
from keras_vit.data.sources.selection import example_names, read_names, subset, without


def contents(source):
    return sorted((example["image"], int(example["label"])) for example in source.ordered().as_numpy_iterator())


@pytest.fixture(scope="module")
def sample(shared_data):
    """The table of 100 ImageNet photos."""
    return open_source(f"csv:{shared_data}/imagenet_sample/labels.csv?classes=1000", "train")


@pytest.mark.extended
def test_a_prepared_sample_is_the_sample(sample, tmp_path):
    report = write_records(sample, str(tmp_path), "sample", "train", 3)
    source = open_source(f"tfrecord:{tmp_path}", "train")
    assert contents(source) == contents(sample) and source.class_names == sample.class_names
    assert source.counts == [34, 33, 33] and report["examples"] == 100 and report["skipped"] == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dataset.json",
        "prepare-train.json",
        *(f"sample-train-0000{i}-of-00003.tfrecord" for i in range(3)),
    ]
    record = next(iter(tf.data.TFRecordDataset(source.files[0][0]).as_numpy_iterator()))
    features = tf.train.Example.FromString(record).features.feature
    encoded, name = (
        features["image/encoded"].bytes_list.value[0],
        features["image/filename"].bytes_list.value[0].decode(),
    )
    with open(name, "rb") as file:
        assert file.read() == encoded
    size = [features[f"image/{side}"].int64_list.value[0] for side in ("height", "width")]
    assert (
        size == list(tf.io.decode_jpeg(encoded).shape[:2]) and features["image/format"].bytes_list.value[0] == b"JPEG"
    )


def noisy(n, side=8):
    """`n` images with labels 0, 1, 0, ..."""
    return from_arrays(np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype="uint8"), np.arange(n) % 2)


@pytest.mark.extended
def test_several_splits_share_a_folder_and_none_is_lost_by_mistake(tmp_path):
    source = noisy(10)
    write_records(source, str(tmp_path), "x", "train", 2, seed=1)
    write_records(noisy(4), str(tmp_path), "x", "test", 1)
    pixels = [
        tf.io.decode_png(image).numpy().tolist() for image, _ in contents(open_source(f"tfrecord:{tmp_path}", "train"))
    ]
    assert sorted(pixels) == sorted(example["image"].tolist() for example in source.ordered().as_numpy_iterator())
    assert open_source(f"tfrecord:{tmp_path}", "test").size == 4
    with pytest.raises(ValueError, match='already has the split "train", 10 examples'):
        write_records(source, str(tmp_path), "x", "train", 5)
    with pytest.raises(ValueError, match="has other classes"):
        write_records(from_arrays(np.zeros((2, 4, 4, 3)), [0, 2]), str(tmp_path), "x", "val", 1)
    with pytest.raises(ValueError, match="--shards=11 for 10 examples"):
        write_records(source, str(tmp_path / "other"), "x", "train", 11)
    write_records(source, str(tmp_path), "x", "train", 5, overwrite=True)
    assert open_source(f"tfrecord:{tmp_path}", "train").counts == [2] * 5 and len(list(tmp_path.glob("x-train-*"))) == 5


@pytest.mark.parametrize(("written", "asked"), [("validation", "validation"), ("valid", "val"), ("Train", "train[:2]")])
def test_a_split_is_read_by_any_of_its_names_and_written_once(tmp_path, written, asked):
    write_records(noisy(4), str(tmp_path), "x", written, 1)
    assert open_source(f"tfrecord:{tmp_path}", asked).size == (2 if "[" in asked else 4)
    other = {"validation": "val", "valid": "validation", "Train": "train"}[written]
    with pytest.raises(ValueError, match=f'already has the split "{written}", 4 examples'):
        write_records(noisy(4), str(tmp_path), "x", other, 1)
    write_records(noisy(6), str(tmp_path), "x", other, 1, overwrite=True)
    assert open_source(f"tfrecord:{tmp_path}", written).size == 6 and len(list(tmp_path.glob("x-*"))) == 1


def test_records_of_another_form_are_not_added_to(tmp_path):
    about = {
        "name": "x",
        "class_names": ["0", "1"],
        "features": {"image": "jpg", "label": "image/class/label"},
        "first_label": 1,
    }
    (tmp_path / "dataset.json").write_text(json.dumps(about))
    with pytest.raises(
        ValueError, match="records of another form: its dataset.json says {'image': 'jpg', 'first_label': 1}"
    ):
        write_records(noisy(4), str(tmp_path), "x", "train", 1)


def order(folder):
    source = open_source(f"tfrecord:{folder}", "train")
    return [example["image"] for example in source.ordered().as_numpy_iterator()]


@pytest.mark.extended
def test_the_order_is_the_seeds(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_records(noisy(20), str(tmp_path / name), "x", "train", 2, seed=seed)
    assert order(tmp_path / "a") == order(tmp_path / "b") != order(tmp_path / "c")
    files = [(tmp_path / name / "x-train-00000-of-00002.tfrecord").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.extended
def test_resizing_shrinks_only_what_is_larger(tmp_path):
    ramp = np.broadcast_to(np.linspace(0, 255, 120, dtype="uint8")[None, :, None], (60, 120, 3))
    images = [tf.io.encode_jpeg(ramp).numpy(), tf.io.encode_png(ramp).numpy(), tf.io.encode_png(ramp[:30]).numpy()]
    report = write_records(from_arrays(images, [0, 1, 2]), str(tmp_path), "x", "train", 1, resize=30)
    written = {label: image for image, label in contents(open_source(f"tfrecord:{tmp_path}", "train"))}
    assert written[2] == images[2] and report["shrunk"] == 2
    assert [tf.io.is_jpeg(written[label]).numpy() for label in (0, 1)] == [True, False]
    for label in (0, 1):
        small = decode_image(tf.constant(written[label])).numpy()
        assert small.shape == (30, 60, 3)
        np.testing.assert_allclose(small[:, 2:-2].astype(float), ramp[:30, 4:-4:2] + 1.0, atol=3)


@pytest.mark.extended
def test_uncompressed_images_become_pngs_of_the_same_pixels(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), dtype="uint8")
    for i, kind in enumerate(("BMP", "TIFF")):
        folder = tmp_path / "photos" / str(i)
        folder.mkdir(parents=True)
        pil.fromarray(images[i]).save(folder / f"a.{kind.lower()}")
    write_records(open_source(f"folder:{tmp_path}/photos", "train"), str(tmp_path / "out"), "x", "train", 1)
    records = open_source(f"tfrecord:{tmp_path}/out", "train").ordered().as_numpy_iterator()
    for example in records:
        assert example["image"].startswith(b"\x89PNG")
        np.testing.assert_array_equal(tf.io.decode_png(example["image"]), images[int(example["label"])])


@pytest.mark.extended
def test_images_that_do_not_decode_are_left_out_and_named(tmp_path):
    images = [tf.io.encode_png(np.full((4, 4, 3), i, "uint8")).numpy() for i in range(6)]
    images[2], images[5] = b"no image", images[5][:30]
    report = write_records(from_arrays(images, [0, 1] * 3), str(tmp_path), "x", "train", 2)
    assert set(report["skipped"]) == {"arrays, example 2", "arrays, example 5"} and all(report["skipped"].values())
    assert json.loads((tmp_path / "prepare-train.json").read_text()) == report
    source = open_source(f"tfrecord:{tmp_path}", "train")
    assert source.counts == [2, 2] and [image for image, _ in contents(source)] == sorted(
        images[i] for i in (0, 1, 3, 4)
    )
    with pytest.raises(ValueError, match="Of 2 images 2 do not decode"):
        write_records(from_arrays([b"x", b"y"], [0, 1]), str(tmp_path / "none"), "x", "train", 1)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("place", ["write", "close"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, place):
    write_records(noisy(6), str(tmp_path), "x", "train", 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.io.TFRecordWriter, place, full)
    with pytest.raises(OSError, match="No space left on device. Nothing was put in place"):
        write_records(noisy(8), str(tmp_path), "x", "train", 2, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_put_in_place_is_on_the_disk_first(tmp_path, monkeypatch):
    """After a power failure dataset.json must not list files whose content was never written."""
    done = []
    synced, renamed = os.fsync, tf.io.gfile.rename
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), synced(file)))
    monkeypatch.setattr(
        tf.io.gfile, "rename", lambda a, b, **options: (done.append(f"{b} in place"), renamed(a, b, **options))
    )
    write_records(noisy(8), str(tmp_path), "x", "train", 2)
    for i in range(2):
        name = f"x-train-0000{i}-of-00002.tfrecord"
        assert done.index(f"{tmp_path}/.partial-train/{name}") < done.index(f"{tmp_path}/{name} in place")
    assert any(name.endswith("dataset.json") for name in done)


@pytest.mark.release("data/records", "io", "trainers/prepare.py")
def test_a_killed_run_leaves_no_dataset_and_runs_again(tmp_path):
    script = (
        "import os, sys, numpy as np\n"
        "from keras_vit.data import from_arrays\nfrom keras_vit.data.records import write\n"
        "from keras_vit.data.records.write import write_records\n"
        "written = write.ShardWriter.write\n"
        "write.ShardWriter.write = lambda self, r: os._exit(9) if sum(self.counts) == 5 else written(self, r)\n"
        "write_records(from_arrays(np.zeros((8, 4, 4, 3)), [0] * 8), sys.argv[1], 'x', 'train', 2)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, env=os.environ, check=False, capture_output=True).returncode == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == [".partial-train", "lock.json"]
    with pytest.raises(FileNotFoundError, match="No file matches"):
        open_source(f"tfrecord:{tmp_path}", "train")
    write_records(noisy(8), str(tmp_path), "x", "train", 2)
    assert open_source(f"tfrecord:{tmp_path}", "train").size == 8 and not (tmp_path / ".partial-train").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("folder:/data/my photos/", "my_photos"),
        ("csv:/data/labels.csv?label=breed", "labels"),
        ("tfrecord:shards/*", "shards"),
        ("cifar10:3.0.2", "cifar10"),
        ("folder:.", "photos"),
        ("folder:../cats", "cats"),
        ("folder:~/.pets", "pets"),
        ("tfrecord:*", "data"),
    ],
)
def test_names_of_files(source, name):
    assert default_name(source, "/data/photos") == name


def test_hidden_files_are_not_written(tmp_path):
    with pytest.raises(ValueError, match='The name ".x" would make hidden files'):
        write_records(noisy(2), str(tmp_path), ".x", "train", 1)


@pytest.mark.extended
def test_prepare_and_deduplicate_warn_of_copies(tmp_path, caplog):
    logging.getLogger("absl").propagate = True
    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(tf.io.encode_png(np.full((8, 8, 3), 7, "uint8")).numpy())
    source = open_source(f"folder:{tmp_path}", "train")
    write_records(source, str(tmp_path / "records"), "x", "train", 1)
    deduplicate(source, source, str(tmp_path / "excluded.txt"), 0.9)
    assert sum(text.startswith("1 file with the same contents as another") for text in caplog.messages) == 2


@pytest.mark.extended
def test_images_without_labels_have_duplicates_too(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "_write_pictures", lambda *arguments: None)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype="uint8").repeat(16, 1).repeat(16, 2)
    for i, image in enumerate(pixels):
        (tmp_path / f"{i}.png").write_bytes(tf.io.encode_png(image).numpy())
    source = open_source(f"images:{tmp_path}", "train")
    for other in (source, from_arrays(pixels, [0, 1])):
        report = deduplicate(source, other, str(tmp_path / "excluded.txt"), 0.9)
        assert len(report["pairs"]) == 2 and all("same_label" not in pair for pair in report["pairs"])


@pytest.mark.extended
def test_duplicates_of_the_test_set_are_left_out(sample, tmp_path):
    """Five of twenty photos are in the test set too, compressed again at half the size."""
    sample = subset(sample, np.arange(20))
    copies, photos = [], list(sample.ordered().take(5))
    for example in photos:
        pixels = decode_image(example["image"])
        half = tf.image.resize(pixels, (pixels.shape[0] // 2, pixels.shape[1] // 2), antialias=True)
        copies.append(tf.image.encode_jpeg(tf.cast(half, tf.uint8), quality=40).numpy())
    test = from_arrays(copies, [int(example["label"]) for example in photos], sample.class_names, name="copies")
    report = deduplicate(sample, test, str(tmp_path / "excluded.txt"), 0.9)
    names = read_names(tmp_path / "excluded.txt")
    assert sorted(names) == sorted(example_names(sample)[:5])
    assert all(pair["same_label"] and not pair["flipped"] for pair in report["pairs"])
    assert without(sample, names).size == 15
    assert json.loads((tmp_path / "excluded.json").read_text()) == report
    if "matplotlib" in sys.modules:
        assert tf.io.decode_png((tmp_path / "excluded.png").read_bytes()).shape[-1] == 4


def test_a_record_of_a_large_jpeg_has_its_files_size(large_jpeg):
    decoded = tf.zeros((2200, 4000, 3), "uint8")  # at half of its sides
    example = {"image": tf.constant(large_jpeg.read_bytes()), "label": tf.constant(0)}
    assert [int(side) for side in encoder()(example, decoded)[1:3]] == [4400, 8000]
    resized = encoder(resize=100)(example, decoded)
    assert [int(side) for side in resized[1:3]] == [100, 182]
    mask = tf.tile(tf.constant([[[0], [1]]], tf.uint8), [4400, 4000, 1])
    target = encoder()({"image": example["image"], "mask": mask, "void": 255}, decoded)[5]
    assert tf.io.decode_png(target).shape == (4400, 8000, 1)


def test_two_writers_at_once_leave_both_splits(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def after_another(folder):
        monkeypatch.undo()
        write_records(noisy(4), str(tmp_path), "x", "val", 1)
        with write.owned(folder) as lock:
            yield lock

    monkeypatch.setattr(write, "owned", after_another)
    write_records(noisy(10), str(tmp_path), "x", "train", 2)
    assert {split: open_source(f"tfrecord:{tmp_path}", split).size for split in ("train", "val")} == {
        "train": 10,
        "val": 4,
    }


def test_images_with_several_rows_are_named_where_slices_of_records_would_share_them(tmp_path, caplog):
    (tmp_path / "a.png").write_bytes(tf.io.encode_png(np.zeros((4, 4, 3), "uint8")).numpy())
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    for rows, told in ("a.png,x\n", False), ("a.png,x\n./a.png,x\nb.png,x\n", True):
        caplog.clear()
        (tmp_path / "t.csv").write_text(f"image,label\n{rows}")
        write.warn_of_repeated(open_source(f"csv:{tmp_path / 't.csv'}", "train"))
        assert ("2 rows with the image of another row. Slices of the records" in caplog.text) == told
