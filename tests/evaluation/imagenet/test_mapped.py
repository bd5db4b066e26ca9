"""Data sets that share some of ImageNet's classes: their class maps, and accuracy among the shared classes against
plain NumPy.
"""

import json
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.distribution import Strategy
from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.evaluation.imagenet import mapped
from keras_vit.evaluation.imagenet.class_map import class_map, objectnet
from keras_vit.io.class_names import synsets
from keras_vit.training import Model
from trainers import evaluate

LOGITS = np.random.default_rng(0).normal(size=(60, 1000)).astype("float32")


def measured(names, labels, class_names=None, **options):
    """The evaluation of a model whose image number i has the logits of row i, on data with these class names and
    labels.
    """
    image = keras.Input((1, 1, 1))
    rows = keras.layers.Embedding(*LOGITS.shape, weights=[LOGITS])
    model = Model(image, keras.layers.Flatten()(rows(keras.ops.cast(image[:, 0, 0, 0], "int32"))))
    source = from_arrays(np.arange(len(labels), dtype="uint8").reshape(-1, 1, 1, 1), labels, class_names=names)
    setting = Setting(model, batch_size=16, source=source, preprocess="decode(1)")
    return make_evaluator("mapped", options).prepare(setting)()


def test_synsets_are_the_shared_table(shared_data):
    assert list(synsets()) == (shared_data / "imagenet_labels" / "imagenet_synsets.txt").read_text().split()


@pytest.mark.extended
def test_accuracy_is_among_the_shared_classes_only():
    classes = np.arange(3, 1000, 100)  # ten
    names = [synsets()[c] for c in classes]
    labels = np.random.default_rng(1).integers(0, 10, 60)
    evaluation = measured(names, labels)
    best = np.argsort(-LOGITS[:60, classes], axis=-1)
    assert evaluation.measures["examples"] == 60 and evaluation.details["classes"] == 10
    assert evaluation.measures["top1"] == pytest.approx((best[:, 0] == labels).mean(), abs=1e-6)
    assert evaluation.measures["top5"] == pytest.approx((best[:, :5] == labels[:, None]).any(1).mean(), abs=1e-6)


@pytest.mark.extended
def test_several_classes_of_imagenet_count_as_one_and_others_are_left_out(tmp_path):
    (tmp_path / "map.json").write_text(json.dumps({"clock": [409, 530], "dog": "n02085620", "cat": 281}))
    names, labels = ["cat", "clock", "dog", "robot"], np.arange(60) % 4
    evaluation = measured(names, labels, mapping=str(tmp_path / "map.json"))
    grouped = np.stack([LOGITS[:60, 281], LOGITS[:60, [409, 530]].max(1), LOGITS[:60, synsets().index("n02085620")]], 1)
    kept = labels < 3
    assert evaluation.measures["examples"] == 45
    assert evaluation.measures["top1"] == pytest.approx((grouped.argmax(1) == labels)[kept].mean(), abs=1e-6)
    assert "top5" not in evaluation.measures


def test_numbers_and_the_models_own_names_say_their_class():
    assert class_map(["0", "10", "999"]) == ((0,), (10,), (999,))
    assert class_map(["b", "c"], ("a", "b", "c")) == ((1,), (2,))
    assert class_map(["n01440764", "n99999999"]) == ((0,), ())


@pytest.fixture
def mappings(tmp_path):
    """A folder as ObjectNet's, of three classes; ImageNet's lines are in another order than its classes."""
    folder = tmp_path / "mappings"
    folder.mkdir()
    (folder / "folder_to_objectnet_label.json").write_text(
        json.dumps({"alarm_clock": "Alarm clock", "desk_lamp": "Desk lamp", "spork": "Spork"})
    )
    (folder / "objectnet_to_imagenet_1k.json").write_text(
        json.dumps({"Alarm clock": "analog clock; digital clock", "Desk lamp": "table lamp"})
    )
    (folder / "imagenet_to_label_2012_v2").write_text("table lamp\nanalog clock\ndigital clock\n")
    (folder / "pytorch_to_imagenet_2012_id.json").write_text(json.dumps({"846": 0, "409": 1, "530": 2}))
    return folder


@pytest.mark.extended
def test_objectnets_folder_says_its_classes(mappings, monkeypatch):
    assert objectnet(str(mappings)) == {"alarm_clock": [409, 530], "desk_lamp": [846]}
    names, labels = ["alarm_clock", "desk_lamp", "spork"], np.arange(60) % 3
    with pytest.raises(ValueError, match="objectnet shares 113 classes with ImageNet.* 2"):
        measured(names, labels, dataset="objectnet", mapping=str(mappings), preprocess="decode(1)")
    monkeypatch.setitem(mapped.DATASETS, "objectnet", mapped.Row(2, border=2))
    with pytest.raises(ValueError, match=r"crop_border\(2\): nothing is left"):  # of images of one pixel
        measured(names, labels, dataset="objectnet", mapping=str(mappings))
    evaluation = measured(names, labels, dataset="objectnet", mapping=str(mappings), preprocess="decode(1)")
    assert evaluation.measures["examples"] == 40
    (mappings / "objectnet_to_imagenet_1k.json").write_text(json.dumps({"Desk lamp": "floor lamp"}))
    with pytest.raises(ValueError, match='"floor lamp" is in one file but not in the others'):
        objectnet(str(mappings))


@pytest.mark.extended
def test_of_data_that_names_all_classes_those_with_examples_are_taken(monkeypatch):
    monkeypatch.setitem(mapped.DATASETS, "imagenet_a", mapped.Row(3))
    labels = np.tile([5, 70, 900], 20)
    evaluation = measured(list(synsets()), labels, dataset="imagenet_a")
    best = np.array([5, 70, 900])[LOGITS[:60, [5, 70, 900]].argmax(1)]
    assert evaluation.details["classes"] == 3
    assert evaluation.measures["top1"] == pytest.approx((best == labels).mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["cat", "dog"], {}, "neither synsets"),
        (
            [str(i) for i in range(1, 201)],
            {},
            "numbers from 1 to 200, .* add &classes=1000 to the table's first_label=1",
        ),
        (["n01440764", "n99999999"], {}, "shares 1 of its classes"),
        (["n01440764", "n01443537"], {"dataset": "imagenet_r"}, "imagenet_r shares 200 classes"),
        (["n01440764", "n01443537"], {"dataset": "imagenet_z"}, 'unknown dataset "imagenet_z"'),
        (["a", "b"], {"dataset": "objectnet"}, "needs mapping=PATH"),
    ],
)
def test_mistakes_are_refused(names, options, message):
    with pytest.raises(ValueError, match=message):
        measured(names, [0, 1], **options)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": 1, "c": 2}, 'maps "c", which is not a class of the data'),
        ({"a": 1, "b": 1}, "Several classes of the data map to ImageNet's class 1 "),
        ({"a": 1000}, "1000 is neither a class"),
        ({"a": "n00000000"}, "'n00000000' is neither a class"),
        ([1], "expected an object"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path, table, message):
    (tmp_path / "map.json").write_text(json.dumps(table))
    with pytest.raises(ValueError, match=message):
        class_map(["a", "b"], path="map.json", data_dir=str(tmp_path))


@pytest.mark.extended
def test_the_binary_takes_data_of_other_classes_for_it(tiny, tmp_path, photos, capsys):
    """The task's own evaluator refuses them, of whose classes the model has none."""
    for name, synset in (("dark", synsets()[3]), ("light", synsets()[7])):
        (photos / name).rename(photos / synset)
    keras_vit.save(tiny(classes=1000), tmp_path / "m.keras")
    common = {"data": f"folder:{photos}", "split": "train", "data_dir": None, "preprocess": "decode|resize(8, 12)"}
    values = types.SimpleNamespace(**common, evals="mapped()", batch_size=8, broken_limit=0, engines=False)
    found = evaluate.evaluate(values, str(tmp_path / "m.keras"), Strategy(), None)
    assert found["mapped"][1]["examples"] == 20 and "mapped: {" in capsys.readouterr().out
    values.evals = None
    with pytest.raises(ValueError, match="1000 classes"):
        evaluate.evaluate(values, str(tmp_path / "m.keras"), Strategy(), None)
