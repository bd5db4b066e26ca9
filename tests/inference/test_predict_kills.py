"""keras-vit predict as a process: killed twice it ends as if it had not been; two replicas answer as one device
does.
"""

import pathlib
import signal

import numpy as np
import pytest
import tensorflow as tf
from interpreters import Fork, Interpreter, wait_for
from small_models import every_weight, pixels

import keras_vit
from keras_vit.data import open_source
from keras_vit.inference import predict

pytestmark = pytest.mark.processes
IMAGES = 24
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
    assert killed(place, out, 8, signal.SIGTERM) == 75
    before = files(out)
    assert len(before) == 8
    assert started(place, out).wait() == 0
    model, source = keras_vit.load(place / "model.keras"), open_source(f"images:{place}/photos", "train")
    predict(model, source, tmp_path / "whole", ("classes", "features"), batch_size=1, rows_per_file=1)
    after, whole = files(out), files(tmp_path / "whole")
    assert after.keys() == whole.keys() and len(whole) == IMAGES and before.items() <= after.items()
    for name in whole:
        assert read(out / name) == read(tmp_path / "whole" / name), name


def read(path):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def on_two(place, out):
    with keras_vit.strategy("mirrored").scope():
        model = keras_vit.load(f"{place}/model.keras")
        predict(
            model,
            open_source(f"images:{place}/photos", "train"),
            out,
            ("classes", "features"),
            batch_size=8,
            rows_per_file=24,
        )


def test_two_replicas_answer_as_one_device_does(place, tmp_path):
    with Interpreter(devices=2) as replicas:
        replicas.run(on_two, str(place), str(tmp_path / "two"))
    model, source = keras_vit.load(place / "model.keras"), open_source(f"images:{place}/photos", "train")
    predict(model, source, tmp_path / "one", ("classes", "features"), batch_size=8, rows_per_file=24)
    for name in sorted(files(tmp_path / "one")):
        for one, two in zip(read(tmp_path / "one" / name), read(tmp_path / "two" / name), strict=True):
            assert one["name"] == two["name"] and one["classes"] == two["classes"]
            np.testing.assert_allclose(two["features"], one["features"], atol=1e-5)
