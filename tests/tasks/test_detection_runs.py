"""Runs of a detector on bright squares: they learn, resume bit for bit, leave a model, a report and pictures."""

import csv
import dataclasses
import functools
import io

import numpy as np
import pytest
import short_runs
from PIL import Image

import keras_vit
from keras_vit.data import from_arrays, usual_splits
from keras_vit.data.splits import split_range
from keras_vit.evaluation.registry import Evaluation
from keras_vit.planning import dry_run
from keras_vit.runs import prepare
from keras_vit.tasks import find_task
from trainers import config_files, detect, evaluate

NAMES = ("bar", "square")
SIZE, COUNT = 32, 20


@functools.cache
def drawn():
    """Images (20, 32, 32, 3) with one or two objects, and their boxes, labels, crowds, areas and sizes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 40, (COUNT, SIZE, SIZE, 3))
    features = {"boxes": np.zeros((COUNT, 2, 4), "float32"), "labels": np.zeros((COUNT, 2), "int32")}
    for i in range(COUNT):
        for j in range(1 + i % 2):
            h, w = ((6, 20), (10, 10))[label := (i + j) % 2]
            top, left = rng.integers(0, SIZE - h), rng.integers(0, SIZE - w)
            images[i, top : top + h, left : left + w] = (250, 120)[label]
            features["boxes"][i, j] = np.array([top, left, top + h, left + w]) / SIZE
            features["labels"][i, j] = label
    sides = features["boxes"][..., 2:] - features["boxes"][..., :2]
    features["area"] = sides.prod(-1) * SIZE**2
    features["crowd"] = np.zeros((COUNT, 2), "int32")
    features["size"] = np.full((COUNT, 2), SIZE, "int32")
    return images.astype("uint8"), features


def in_memory(text, split, *_):
    """A slice of the images, instead of a folder."""
    images, features = drawn()
    part = slice(*split_range(split, COUNT))
    return from_arrays(images[part], None, NAMES, text, {name: values[part] for name, values in features.items()})


@pytest.fixture(scope="module", autouse=True)
def without_files():
    with pytest.MonkeyPatch.context() as patch:
        for module in (keras_vit.data, usual_splits, prepare):
            patch.setattr(module, "open_source", in_memory)
        yield


def small(row="dense", **options):
    """The recipe for a tiny model: checkpoints at 1 and 2, AP at 2."""
    config = config_files.load_config(f"detection:{row}")
    config.update(total="2 steps", evaluate="1 steps", checkpoint="1 steps", batch_size=8, keep_best=False)
    config.evals.detection.every = "2 steps"
    config.schedule.update(warmup="0 steps")
    config.optimizer.update(learning_rate=3e-3)
    config.model.update(variant="Ti/8", image_size=SIZE, depth=1, width=16, heads=2, mlp_dim=16)
    config.data.update(source="boxes:squares", train="train[:16]", evaluation="train[16:]")
    config.data.train_preprocess = "decode|resize(32, 32)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    if row == "dense":
        config.objective.head_options = {"width": 8, "convs": 1, "scales": (1,)}
    config.update_from_flattened_dict(options)
    return config


def task_of(config):
    return find_task("detection")(config)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    config = small()
    config.objective.mosaic = 0.5
    return short_runs.whole_and_resumed(config, tmp_path_factory.mktemp("runs"))


@pytest.mark.extended
def test_it_measures_as_it_trains(done):
    _, last = done.records
    assert np.isfinite([last["loss"], last["val_loss"]]).all()
    for name in ("ap", "ap50", "ar100"):
        assert done.measures[name] == pytest.approx(last[f"detection/{name}"], abs=1e-6), name
    assert done.measures["examples"] == 4


@pytest.mark.extended
def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(done):
    assert done.state == done.resumed


@pytest.mark.extended
def test_it_leaves_a_model_with_names_and_preprocessing(done):
    model = keras_vit.load(done.folder)
    assert type(model) is keras_vit.DetectionModel and model.class_names == NAMES
    assert model.preprocessing == done.config.data.eval_preprocess
    images = drawn()[0][:2]
    for ours, theirs in zip(model.detections(images), done.model.detections(images)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_the_model_keeps_the_threshold_that_its_evaluation_chose(done):
    task, model, image = task_of(done.config), keras_vit.load(done.folder), drawn()[0][0]
    best = float(np.asarray(model.detections(image[None])[1])[0, 2])
    task.settle(model, Evaluation({"f1": 0.5, "threshold": best}, {}))
    assert len(model.detect(image)) == 3 and model.clone().score_threshold == model.score_threshold < best
    task.settle(model, Evaluation({"f1": 0.0, "threshold": 1.0}, {}))
    assert len(model.detect(image)) == 3
    assert "score threshold of model.detect" in done.page


@pytest.mark.extended
def test_its_report_shows_curves_classes_and_sizes(done):
    for words in ("AP", "Learning curves", "Precision and recall", "AP by size", "Classes", "Confusion matrix"):
        assert words in done.page, words
    assert all(name in done.page for name in NAMES)


@pytest.mark.extended
def test_the_binaries_evaluate_it_and_draw_what_it_finds(done, binary, tmp_path):
    printed = binary(evaluate, model=str(done.folder), output=str(tmp_path / "out"), batch_size=8)
    assert f"AP {done.measures['ap']:.2%}" in printed and "4 examples" in printed
    Image.fromarray(drawn()[0][0].repeat(3, axis=1)).save(tmp_path / "wide.png")
    table = binary(detect, done.folder, tmp_path / "wide.png", output=tmp_path / "look", csv=True, threshold=0, limit=3)
    rows = list(csv.DictReader(io.StringIO(table)))
    found = keras_vit.load(done.folder).detect(tmp_path / "wide.png", threshold=0.0, limit=3)
    assert [row["class"] for row in rows] == list(found.names) and len(rows) == 3
    np.testing.assert_allclose([float(row["right"]) for row in rows], found.boxes[:, 3], atol=0.06)
    assert Image.open(tmp_path / "look" / "wide.png").size >= (96, 32)
    tiled = binary(detect, done.folder, tmp_path / "wide.png", csv=True, threshold=0, limit=9, tiles=32)
    found = keras_vit.load(done.folder).detect(tmp_path / "wide.png", threshold=0.0, limit=9, tiles=32)
    rights = [float(row["right"]) for row in csv.DictReader(io.StringIO(tiled))]
    np.testing.assert_allclose(rights, found.boxes[:, 3], atol=0.06)
    with pytest.raises(ValueError, match="has no classes and returns features|classifies whole images"):
        keras_vit.ViT("Ti/8", image_size=16, depth=1, width=8, heads=1, mlp_dim=8).save(tmp_path / "vit.keras")
        binary(detect, tmp_path / "vit.keras", tmp_path / "wide.png", output=tmp_path / "look")


@pytest.mark.extended
def test_a_detector_keeps_its_head_at_another_size_or_gets_a_new_one(done):
    config = done.config.copy_and_resolve_references()
    config.update(init=str(done.folder), head="keep")
    config.model.image_size = 64
    config.data.eval_preprocess = "decode|resize(64, 64)"
    source = in_memory("boxes:squares", "train")
    model, old = task_of(config).model(source), keras_vit.load(done.folder)
    assert model.image_size == (64, 64)
    assert all(np.array_equal(*pair) for pair in zip(model.head.get_weights(), old.head.get_weights()))
    config.head = "reset"
    fresh = task_of(config).model(source)
    assert not all(np.array_equal(*pair) for pair in zip(fresh.head.get_weights(), old.head.get_weights()))
    config.update(head="keep")
    more = task_of(config).model(dataclasses.replace(source, class_names=("bar", "square", "star")))
    kept = [np.array_equal(*pair) for pair in zip(more.head.get_weights(), old.head.get_weights())]
    assert more.classes == 3 and kept.count(False) == 2  # kernel and bias of the classes
    config.objective.head_options = {**old.head_options, "width": 24}  # those of a recipe
    own = f"--config.objective.head_options.width={old.head_options['width']}, or start with a new head"
    with pytest.raises(ValueError, match=f"Keep its own: {own}"):
        task_of(config).model(source)
    config.objective.head_options = {}
    config.objective.head = "yolos"
    with pytest.raises(ValueError, match="has the head dense, but the config has yolos"):
        task_of(config).model(source)


def test_a_held_out_slice_without_objects_is_refused_before_training():
    train = in_memory("boxes:squares", "train")
    with pytest.raises(ValueError, match="to evaluate on, have no objects.*--config.data.evaluation=SPLIT"):
        task_of(small()).check_data(train, dataclasses.replace(train, most_objects=0))


@pytest.mark.parametrize(("split", "part"), [(r"train\[:16\]", 0), ("to evaluate on", 1)])
def test_crowds_and_difficult_objects_alone_are_refused_before_training(split, part):
    images, features = drawn()
    others = {**features, "crowd": np.tile(np.int32([1, 2]), (COUNT, 1))}
    pair = [in_memory("boxes:squares", "train"), from_arrays(images, None, NAMES, "boxes:squares", others)]
    with pytest.raises(ValueError, match=f"{split}, ha(s|ve) no objects.*Crowds and difficult objects do not count"):
        task_of(small()).check_data(*(pair if part else pair[::-1]))


@pytest.mark.parametrize(
    ("options", "source", "message"),
    [
        ({"objective.head": "densee"}, {}, 'densee.*Did you mean "dense"'),
        ({"objective.head": "yolos"}, {}, 'head_options: The head "yolos": unknown option .*=detection:yolos has'),
        ({"objective.loss": {"assignment": "x"}}, {}, "config.objective.loss: .*assignment"),
        ({"objective.loss": {"top_k": 3}}, {}, "config.objective.loss: .*top_k"),
        ({"mixup": 0.2}, {}, "does not use some options of the config. Set --config.mixup=None"),
        ({"objective.mosaic": 0.5, "objective.mixup": 0.5}, {}, "a batch is mixed one way"),
        ({"objective.mosaic": 0.5, "batch_size": 3}, {}, "batch size that is a multiple of"),
        ({"objective.objects": 1}, {}, "objects=1: an image of boxes:squares has 2"),
        ({}, {"most_objects": None}, "has no boxes: give a folder of images"),
        ({}, {"most_objects": 0}, "has no objects: there is nothing to learn"),
        ({}, {"class_names": ("a", "b")}, "The classes of .* differ"),
    ],
)
def test_what_cannot_be_learned_is_refused(options, source, message):
    with pytest.raises(ValueError, match=message):
        task = task_of(small(**options))
        task.check_config()
        held_out = in_memory("boxes:squares", "train[16:]")
        task.check_data(dataclasses.replace(in_memory("boxes:squares", "train"), **source), held_out)


@pytest.mark.extended
def test_its_plan_counts_the_model():
    config = small()
    text = dry_run.plan(config, {})
    model = task_of(config).build(in_memory("boxes:squares", "train"))
    assert f"{model.count_params():,} parameters, all trained" in text and "DenseDetectionLoss" in text
