"""ImageNet ReaL: from given logits, the original labels against real.json, and a folder of images with validation
names.
"""

import importlib.util
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.evaluation import Setting, make_evaluator, real_accuracy
from keras_vit.evaluation.imagenet.real import read_real, validation_number


@pytest.fixture(scope="module")
def real_json(shared_data):
    return shared_data / "imagenet_labels" / "real.json"


def test_real_of_given_logits_is_a_plain_count():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 10))
    real = [rng.choice(10, rng.integers(0, 4), replace=False).tolist() for _ in range(300)]
    right = counted = 0
    for row, labels in zip(logits, real):
        if labels:
            counted += 1
            right += int(np.argmax(row)) in labels
    assert real_accuracy(logits, real) == right / counted < 1
    assert real_accuracy(logits.argmax(-1), real) == right / counted
    with pytest.raises(ValueError, match=r"Expected logits \(300, classes\)"):
        real_accuracy(logits[:7], real)
    with pytest.raises(ValueError, match="None of the 2 images"):
        real_accuracy([1, 2], [[], []])


def test_the_original_labels_score_what_the_authors_say(real_json):
    """90.02%. tensorflow-datasets has the original labels of the validation images, in the order of their numbers."""
    folder = pathlib.Path(importlib.util.find_spec("tensorflow_datasets").origin).parent / "datasets" / "imagenet2012"
    synsets = (folder / "labels.txt").read_text().split()
    original = [synsets.index(synset) for synset in (folder / "validation_labels.txt").read_text().split()]
    assert real_accuracy(original, read_real(real_json)) == pytest.approx(0.90023, abs=5e-6)


def always(guess):
    """A model that takes any image for class `guess` of 1000."""
    image = keras.Input((4, 4, 3))
    bias = keras.initializers.Constant(np.eye(1000)[guess])
    dense = keras.layers.Dense(1000, kernel_initializer="zeros", bias_initializer=bias)
    model = keras_vit.Model(image, dense(keras.layers.Flatten()(image)))
    model.jit_compile = False
    return model


@pytest.fixture
def validation(tmp_path):
    """A folder of the first six validation images' names in two classes of the thousand, and a table of them."""
    for number in range(1, 7):
        path = tmp_path / "val" / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_jpeg(np.full((4, 4, 3), 40 * number, "uint8")).numpy())
    rows = [
        f"val/ILSVRC2012_val_{number:08d}.JPEG,{label}"
        for number, label in zip(range(1, 7), (65, 970, 230, 809, 516, 57))
    ]
    (tmp_path / "table.csv").write_text("\n".join(["image,label", *rows]))
    return f"csv:{tmp_path / 'table.csv'}?classes=1000"


def measured(model, **options):
    return make_evaluator("real", {"split": "train", "preprocess": "decode|resize(4, 4)", **options}).prepare(
        Setting(model, batch_size=4)
    )()


@pytest.mark.extended
def test_images_are_known_by_their_names_and_those_without_labels_do_not_count(validation, real_json):
    """real.json begins with [], [970, 795], [230, 231], [809], [516, 850], [57]."""
    model = always(0)
    options = {"labels": str(real_json), "source": validation, "split": "train", "preprocess": "decode|resize(4, 4)"}
    evaluate = make_evaluator("real", options).prepare(Setting(model, batch_size=4))
    for guess, real, top1 in ((795, 1 / 5, 0), (970, 1 / 5, 1 / 6), (65, 0, 1 / 6)):
        model.layers[-1].bias.assign(np.eye(1000)[guess])
        evaluation = evaluate()
        assert evaluation.measures == {"real": pytest.approx(real), "top1": pytest.approx(top1), "examples": 5}
        assert evaluation.details["images"] == 6


def test_numbers_of_names():
    assert int(validation_number(tf.constant("/a/b/ILSVRC2012_val_00050000.JPEG"))) == 50_000
    assert int(validation_number(tf.constant("ILSVRC2012_val_00000012.jpg"))) == 12
    for name in ("ILSVRC2012_val_00050001.JPEG", "n01440764_tench.JPEG", "ILSVRC2012_test_00000001.JPEG"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            validation_number(tf.constant(name))


def test_mistakes_are_refused(tmp_path, tiny, validation, real_json):
    with pytest.raises(ValueError, match="got one with 5"):
        measured(tiny(), labels=str(real_json), source=validation)
    with pytest.raises(ValueError, match="no file names"):
        measured(always(0), labels=str(real_json), source="digits")
    for text, message in (("[[1]]", "a list of 1. Expected"), ("{}", "contains a dict"), ("[", "is not JSON")):
        (tmp_path / "real.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_real(tmp_path / "real.json")
    (tmp_path / "real.json").write_text(json.dumps([[1000], *[[]] * 49_999]))
    with pytest.raises(ValueError, match="has the label 1000"):
        read_real(tmp_path / "real.json")
