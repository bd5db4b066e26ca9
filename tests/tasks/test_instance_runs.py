"""Runs on drawn scenes of objects with masks: they resume bit for bit, and what they leave answers everywhere alike."""

import csv
import io
import json

import instance_scenes
import numpy as np
import pytest
import short_runs
import tensorflow as tf
from PIL import Image
from small_models import eager

import keras_vit
from keras_vit.answers import bind
from keras_vit.answers.boxes_in_graph import objects_of_encoded
from keras_vit.data import open_source
from keras_vit.data.annotations.run_lengths import runs
from keras_vit.inference import predict_objects
from keras_vit.runs import run
from trainers import config_files, detect, segment

pytestmark = pytest.mark.extended
SIZE = 32


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder of 14 training scenes and 2 to evaluate on."""
    folder = tmp_path_factory.mktemp("scenes")
    instance_scenes.write(folder, 16, side=64)
    return folder


def small(scenes, name="instances"):
    """The recipe for a tiny model: checkpoints at 1 and 2, the evaluator at 2."""
    config = config_files.load_config(name)
    config.update(total="2 steps", evaluate="1 steps", checkpoint="1 steps", batch_size=4, keep_best=False)
    config.evals[config.task].every = "2 steps"
    config.schedule.update(warmup="0 steps")
    config.model.update(variant="Ti/8", image_size=SIZE, depth=1, width=16, heads=2, mlp_dim=16)
    config.objective.head_options = {"queries": 6, "blocks": 1}
    config.data.update(source=f"instances:{scenes}", train="train", evaluation="val")
    config.data.train_preprocess = f"decode|resize({SIZE}, {SIZE})|random_flip"
    config.data.eval_preprocess = f"decode|resize({SIZE}, {SIZE})"
    return config


@pytest.fixture(scope="module")
def done(scenes, tmp_path_factory):
    return short_runs.whole_and_resumed(small(scenes), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def model(done):
    model = keras_vit.load(done.folder)
    model.score_threshold = 0.0
    return model


@pytest.fixture(scope="module")
def image():
    """A picture (48, 80, 3), which the model sees stretched."""
    return np.random.default_rng(0).integers(0, 256, (6, 10, 3)).repeat(8, 0).repeat(8, 1).astype("uint8")


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def test_a_run_measures_resumes_and_leaves_its_model(done, model):
    _, last = done.records
    assert np.isfinite([last["loss"], last["val_loss"]]).all()
    assert done.measures["ap"] == pytest.approx(last["instances/ap"], abs=1e-6)
    assert done.state == done.resumed
    assert type(model) is keras_vit.InstanceModel and model.class_names == instance_scenes.CLASSES
    assert all(words in done.page for words in ("mask AP", "Precision and recall", "AP by size", "star"))


def test_a_panoptic_run_measures_pq(scenes, tmp_path):
    with eager():
        _, measures = run(small(scenes, "instances:panoptic"), tmp_path / "run")
    assert 0 <= measures["pq"] <= 1
    assert "PQ is SQ times RQ" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("text", [f"decode|resize({SIZE}, {SIZE})", f"decode|letterbox({SIZE}, {SIZE})"])
def test_exports_find_the_same_masks_at_the_image_size(model, image, text):
    model.preprocessing = text
    [answer] = bind(model)
    find = objects_of_encoded(model, lambda x: answer._best(model(x, training=False), 0.0), as_files=True)
    found, files = model.detect(image, threshold=0.0), find(tf.constant([png(image), b"no image"]))
    assert len(found) == (files["labels"][0] >= 0).numpy().sum() > 3
    assert files["status"].numpy()[0] == b"ok" and set(files["mask_bytes"].numpy()[1]) == {b""}
    np.testing.assert_allclose(files["scores"][0][: len(found)], found.scores, atol=1e-6)
    differ = 0
    for i, file in enumerate(files["mask_bytes"][0][: len(found)]):
        differ += np.count_nonzero((tf.io.decode_png(file)[..., 0] == 255) != found.mask(i))
    assert differ <= 3  # pixels whose logit is 0 but for rounding


def test_a_service_answers_run_lengths_at_the_image_size(model, image):
    model.preprocessing = f"decode|resize({SIZE}, {SIZE})"
    [answer] = bind(model)
    pixels = model.preprocess(image)[None].astype("float32")
    values = answer.chosen(answer.computed(model(pixels, training=False)))
    [row] = answer.rows({name: np.asarray(value) for name, value in values.items()})
    told = json.loads(json.dumps(answer.at_size(row, image.shape[:2], 0.0)))
    found = model.detect(image, threshold=0.0)
    assert told["size"] == [48, 80] and told["classes"] == list(found.names)
    assert told["masks"] == found.run_lengths()
    assert answer.at_size(row, image.shape[:2], 0.99)["masks"] == []


def test_rows_and_results_have_run_lengths(model, scenes, tmp_path):
    source = open_source(f"instances:{scenes}", "val")
    predict_objects(model, source, tmp_path, split="val", threshold=0.0, limit=5)
    results = json.loads((tmp_path / "_val_coco.json").read_text())
    content = json.loads((scenes / "instances_val.json").read_text())
    first = content["images"][0]
    own = [result for result in results if result["image_id"] == first["id"]]
    found = model.detect(scenes / "val" / first["file_name"], threshold=0.0, limit=5)
    assert [result["segmentation"] for result in own] == found.run_lengths() and len(own) == 5
    counts, size = runs(own[0]["segmentation"], "result")
    assert size == (64, 64) and counts[1::2].sum() == found.mask(0).sum()


def test_commands_draw_masks_and_segments(done, binary, scenes, tmp_path):
    image = sorted((scenes / "val").iterdir())[0]
    told = json.loads(binary(detect, done.folder, image, json=True, threshold=0, limit=2, output=tmp_path / "look"))
    assert [sorted(one) for one in told[0]["objects"]] == [["box", "mask", "name", "score"]] * 2
    assert told[0]["objects"][0]["mask"]["size"] == [64, 64]
    assert (tmp_path / "look" / f"{image.stem}.png").exists()
    table = list(csv.DictReader(io.StringIO(binary(segment, done.folder, image, csv=True))))
    assert all(0 < float(row["share"]) <= 1 for row in table)


def test_suppression_and_windows_are_refused(model):
    with pytest.raises(ValueError, match="so no boxes are suppressed"):
        bind(model, iou=0.5)
    with pytest.raises(ValueError, match="sees images whole"):
        type(bind(model)[0]).segmenter(model, window="slide")
