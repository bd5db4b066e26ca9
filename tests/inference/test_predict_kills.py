"""keras-vit predict as a process: killed twice it ends as if it had not been; two replicas answer as one device
does.
"""

import pathlib
import signal

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf
from interpreters import Fork, Interpreter, wait_for
from small_models import every_weight, pixels

import keras_vit
from keras_vit.data import open_source
from keras_vit.inference import predict

pytestmark = pytest.mark.release("data", "inference", "io", "trainers/predict.py")
IMAGES = 8
SIZES = ["--batch_size=1", "--rows_per_file=1", "--answers=classes,features"]  # a file for each


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and its images."""
    root = tmp_path_factory.mktemp("place")
    model = every_weight()
    model.preprocessing = "decode|resize(16, 24)"
    model.save(root / "model.keras")
    (root / "photos").mkdir()
    for i, image in enumerate(pixels(IMAGES).astype("uint8")):
        (root / "photos" / f"{i}.png").write_bytes(tf.io.encode_png(image).numpy())
    return root


def started(place, out, hold=10**9):
    data = [f"--model={place}/model.keras", f"--data=images:{place}/photos", f"--output={out}"]
    output = out.with_suffix(".printed")
    return Fork("tests.inference.holding_predict", *data, *SIZES, output=output, HOLD=str(hold))


def files(out):
    return {path.name: path.read_bytes() for path in pathlib.Path(out).glob("[!.]*.parquet")}


def killed(place, out, there, number):
    """Runs the job until so many files are there, and ends it by a signal; returns its exit code."""
    process = started(place, out, hold=there)
    wait_for(lambda: len(files(out)) >= there or process.poll() is not None, [process])
    process.send_signal(number)
    return process.wait()


def test_a_job_that_is_killed_twice_ends_as_one_that_is_not(place, tmp_path):
    out = tmp_path / "killed"
    assert killed(place, out, 1, signal.SIGKILL) == -signal.SIGKILL
    assert killed(place, out, 4, signal.SIGTERM) == 75
    before = files(out)
    assert len(before) == 4
    assert started(place, out).wait() == 0
    model, source = keras_vit.load(place / "model.keras"), open_source(f"images:{place}/photos", "train")
    predict(model, source, tmp_path / "whole", ("classes", "features"), batch_size=1, rows_per_file=1)
    after, whole = files(out), files(tmp_path / "whole")
    assert after.keys() == whole.keys() and len(whole) == IMAGES and before.items() <= after.items()
    assert_same(tmp_path / "whole", out)


def assert_same(one, other):
    """That two folders have the same rows, up to the rounding of programs that are compiled differently."""
    rows = (pyarrow.parquet.read_table(folder).to_pylist() for folder in (one, other))
    for a, b in zip(*rows, strict=True):
        assert (a["name"], a["row"], a["classes"]) == (b["name"], b["row"], b["classes"])
        np.testing.assert_allclose(b["features"], a["features"], atol=1e-5)


def on_two(place, out):
    with keras_vit.strategy("mirrored").scope():
        model = keras_vit.load(f"{place}/model.keras")
        source = open_source(f"images:{place}/photos", "train")
        predict(model, source, out, ("classes", "features"), batch_size=8, rows_per_file=24)


def test_two_replicas_answer_as_one_device_does(place, tmp_path):
    with Interpreter(devices=2) as replicas:
        replicas.run(on_two, str(place), str(tmp_path / "two"))
    model, source = keras_vit.load(place / "model.keras"), open_source(f"images:{place}/photos", "train")
    predict(model, source, tmp_path / "one", ("classes", "features"), batch_size=8, rows_per_file=24)
    assert_same(tmp_path / "one", tmp_path / "two")
