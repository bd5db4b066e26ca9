"""The label verb: its labels are model.classify's; threshold, balance, what is left out; and what it writes trains."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import detecting, segmenting

import keras_vit
from keras_vit.data import from_arrays, open_source
from keras_vit.data.sources.selection import example_names, read_labels
from keras_vit.data.sources.written_table import names_for_table
from keras_vit.evaluation import confident
from keras_vit.evaluation.labelling import check_teacher, write_labels
from keras_vit.tasks import find_task
from trainers import config_files
from trainers import label as label_program

NAMES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def teacher():
    """A model of three classes with random weights, sharp enough that confidences differ."""
    keras.utils.set_random_seed(0)
    small = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    model = keras_vit.ViT(
        "Ti/4", image_size=8, classes=3, class_names=NAMES, preprocessing="decode|resize(8, 8)", **small
    )
    model.get_layer("head").kernel.assign(np.random.default_rng(2).normal(size=(16, 3)))
    return model


def write(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    pixels = rng.normal(rng.uniform(30, 220, 3), 60, (10, 12, 3)).clip(0, 255)
    path.write_bytes(tf.io.encode_png(pixels.astype("uint8")).numpy())


@pytest.fixture
def photos(tmp_path):
    """MORE: 16 images, one of them in a folder, and a broken one; PHOTOS: four of each class."""
    for i in range(15):
        write(tmp_path / "more" / f"{i:02d}.png", i)
    write(tmp_path / "more" / "deep" / "15.png", 15)
    whole = (tmp_path / "more" / "00.png").read_bytes()
    (tmp_path / "more" / "broken.png").write_bytes(whole[:60])
    for i in range(12):
        write(tmp_path / "photos" / NAMES[i % 3] / f"{i}.png", 100 + i)
    return tmp_path


def rows(folder):
    return [json.loads(line) for line in (folder / "table.jsonl").read_text().splitlines()]


@pytest.mark.extended
def test_the_labels_are_those_of_classify_and_without_a_confident_one_nothing_is_written(teacher, photos):
    more = open_source(f"images:{photos}/more", "train")
    report = write_labels(teacher, more, str(photos / "out"), lowest=0, batch_size=4)
    found = rows(photos / "out")
    assert len(found) == report["labelled"] == report["images"] == 16 and os.listdir(photos / "out").count("label.json")
    best = [guess[0] for guess in teacher.classify([row["image"] for row in found], verbose=0)]
    assert [row["label"] for row in found] == [guess.name for guess in best]
    np.testing.assert_allclose([row["confidence"] for row in found], [guess.probability for guess in best], atol=2e-6)
    [(name, why)] = report["broken"].items()
    assert name == f"{photos}/more/broken.png" and why
    source = open_source(f"jsonl:{photos}/out/table.jsonl", "train")
    assert source.class_names == NAMES and source.size == 16
    by_file = {row["image"]: NAMES.index(row["label"]) for row in found}
    assert [by_file[name] for name in example_names(source)] == read_labels(source).tolist()
    with pytest.raises(ValueError, match=r"with a confidence of 1 or more: the highest confidence is 0\.\d"):
        write_labels(teacher, more, str(photos / "none"), lowest=1)
    assert not (photos / "none").exists()


def test_balance_by_hand():
    labels, confidence = np.array([0, 2, 0, 0, 2, 0]), np.array([0.5, 0.9, 0.8, 0.2, 0.4, 0.8])
    assert confident(labels, confidence, 3).tolist() == [0, 1, 2, 4, 5]
    assert confident(labels, confidence, 3, per_class=2).tolist() == [2, 5, 1, 4]
    assert confident(labels, confidence, 3, per_class=5).tolist() == [2, 5, 0, 2, 5, 1, 4, 1, 4, 1]
    assert confident(labels, confidence, 3, lowest=0.85, per_class=2).tolist() == [1, 1]


@pytest.fixture
def run_label(photos, teacher, binary):
    """A function: runs the binary with flags, in this process; returns what it printed."""
    keras_vit.save(teacher, photos / "teacher.keras")

    def run(**options):
        given = {"model": str(photos / "teacher.keras"), "data": f"images:{photos}/more", "batch_size": 8}
        return binary(label_program, **{**given, "output": str(photos / "out"), "confidence": "0.3", **options})

    return run


@pytest.mark.extended
def test_with_known_labels_a_student_can_learn_from_both(run_label, photos):
    again = photos / "more" / "again.png"
    again.symlink_to(photos / "photos" / "bee" / "1.png")
    printed = run_label(labelled=f"folder:{photos}/photos", train="train[:8]", test="train[8:]", per_class=5)
    found = rows(photos / "out")
    assert (
        f"--config=noisy_student --data=jsonl:{photos}/out/table.jsonl\n" in printed and "The table has" not in printed
    )
    known, labelled = [row for row in found if "confidence" not in row], [row for row in found if "confidence" in row]
    assert sum(row["split"] == "train" for row in known) == 8 and sum(row["split"] == "test" for row in known) == 4
    assert all(row["image"].split("/")[-2] == row["label"] for row in known)
    counts = [sum(row["label"] == name for row in labelled) for name in NAMES]
    assert set(counts) <= {0, 5} and not any(row["image"] == str(again) for row in labelled)
    assert "broken.png: " in printed
    assert "12 more have known labels; 1 among these not labelled again; 1 cannot be read" in printed
    empty = [name for name, count in zip(NAMES, counts) if not count]
    assert all(name in printed.partition("No image was labelled as")[2] for name in empty)

    config = config_files.load_config("noisy_student")
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16, variant="Ti/4", image_size=8)
    student = find_task(config.task)(config).build(open_source(f"jsonl:{photos}/out/table.jsonl", "train"))
    assert student.class_names == NAMES


@pytest.mark.extended
def test_a_class_without_images_is_named(run_label, photos, teacher):
    bias = teacher.get_layer("head").bias
    before = bias.numpy()
    bias.assign([50.0, 0.0, 0.0])
    try:
        keras_vit.save(teacher, photos / "ants.keras")
    finally:
        bias.assign(before)
    printed = run_label(model=str(photos / "ants.keras"), per_class=20)
    assert 'No image was labelled as "bee", "cat".\n' in printed
    assert "Labelled 16 of 16 images, in 20 rows" in printed
    assert "--config.data.evaluation='train[90%:]'\nThe table has no split test" in printed


@pytest.mark.extended
def test_a_table_without_a_test_split_says_what_a_run_evaluates_on(run_label, photos):
    printed = run_label(confidence="0")
    command = f"keras-vit finetune --config=noisy_student --data=jsonl:{photos}/out/table.jsonl"
    assert f"To train on them: {command} --config.data.train='train[:90%]'" in printed
    assert "--config.data.evaluation='train[90%:]'\nThe table has no split test" in printed
    assert "--labelled=SOURCE --test" in printed
    assert json.loads((photos / "out" / "label.json").read_text())["splits"] == {"train": 16}
    with pytest.raises(ValueError, match='no split "test". Valid: train, and slices such as "train.80%:."'):
        open_source(f"jsonl:{photos}/out/table.jsonl", "test")


@pytest.mark.extended
def test_what_cannot_be_labelled_says_why(run_label, photos, teacher):
    with pytest.raises(ValueError, match="digits has no image files.*images:PATH"):
        run_label(data="digits")
    for confidence in ("1.5", "high", "nan"):
        with pytest.raises(ValueError, match=f"--confidence={confidence}: expected a probability"):
            run_label(confidence=confidence)
    (photos / "photos" / "cat").rename(photos / "photos" / "cow")
    with pytest.raises(ValueError, match="the 3 classes.*'cow'.*but the model has 3.*'cat'"):
        run_label(labelled=f"folder:{photos}/photos")
    (photos / "out").mkdir(exist_ok=True)
    (photos / "out" / "labels.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match='labels.txt" has different classes. Use another folder'):
        run_label()
    more = open_source(f"images:{photos}/more", "train")
    features = keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=None)
    with pytest.raises(ValueError, match="does not give classes"):
        write_labels(features, more, str(photos / "x"))
    untrained = keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=3)
    with pytest.raises(ValueError, match="head is all zeros"):
        write_labels(untrained, more, str(photos / "x"))
    with pytest.raises(ValueError, match="arrays has no image files"):
        write_labels(teacher, from_arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1]), str(photos / "x"))


def test_names_that_a_table_cannot_tell_apart_are_numbers():
    assert names_for_table(("crane", "bee")) == ("crane", "bee")
    assert names_for_table(("crane", "bee", "crane")) == names_for_table(("a", " b", "c")) == ("0", "1", "2")


def test_images_without_classes(photos):
    (photos / "more" / "notes.txt").write_text("no image")
    source = open_source(f"images:{photos}/more", "train")
    assert (
        source.size == 17 and source.class_names == () and set(example_names(source)) >= {f"{photos}/more/deep/15.png"}
    )
    parts = [open_source(f"images:{photos}/more", split) for split in ("train[:50%]", "train[50%:]")]
    assert [name for part in parts for name in example_names(part)] == example_names(source)
    example = next(iter(source.ordered().as_numpy_iterator()))
    assert example.keys() == {"image"}
    with pytest.raises(ValueError, match='has no split "test": everything is "train"'):
        open_source(f"images:{photos}/more", "test")
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        open_source(f"images:{photos}/nowhere", "train")
    (photos / "empty").mkdir()
    with pytest.raises(ValueError, match="has no images; it contains nothing"):
        open_source(f"images:{photos}/empty", "train")


@pytest.mark.parametrize(("make", "does"), [(detecting, "finds objects"), (segmenting, "gives every pixel")])
def test_a_detector_and_a_segmenter_label_no_images(make, does):
    with pytest.raises(ValueError, match=f"{does}.*keras-vit predict"):
        check_teacher(make())
