"""The SavedModel: in a process without keras_vit it classifies bytes, returns features, and fine-tunes."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data import open_source

NAMES = tuple("zero one two three four five six seven eight nine".split())
# Every test process proves that it does not have the package.
ALONE = "import sys, numpy as np, tensorflow as tf\n"
CHECK = "assert not any(name.startswith('keras_vit') for name in sys.modules)\n"


def digits_model(**kwargs):
    keras.utils.set_random_seed(0)
    size = {"depth": 2, "width": 32, "heads": 2, "mlp_dim": 64, "pool": "gap", "position_std": 1.0, **kwargs}
    return keras_vit.ViT(
        "Ti/2", image_size=8, channels=1, classes=10, class_names=NAMES, preprocessing="decode(1)|resize(8, 8)", **size
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(model, folder): a ViT trained a little on digits 0 to 9, with dropout, and its export."""
    model = digits_model(dropout=0.1)
    model.compile(keras_vit.training.AdamW(3e-3), keras_vit.training.SoftmaxCrossEntropy(), jit_compile=False)
    source = open_source("digits", "train")
    images, labels = zip(*source.ordered().as_numpy_iterator())
    model.fit(np.stack(images), np.array(labels), batch_size=64, epochs=6, verbose=0)
    folder = tmp_path_factory.mktemp("export") / "saved"
    keras_vit.export(model, folder, top_k=3)
    return model, folder


def alone(script, *arguments):
    """Runs the script in a process without keras_vit's folder, and returns what it printed."""
    command = [sys.executable, "-I", "-c", ALONE + script + CHECK, *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_bytes_are_classified_with_names(exported, tmp_path):
    model, folder = exported
    images = np.stack([image for image, _ in open_source("digits", "test").ordered().take(20).as_numpy_iterator()])
    for i, image in enumerate(images):
        (tmp_path / f"{i:02d}.png").write_bytes(tf.io.encode_png(image).numpy())
    script = (
        "import glob\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "out = serve(tf.constant([open(p, 'rb').read() for p in sorted(glob.glob(sys.argv[2] + '/*.png'))]))\n"
        "np.savez(sys.argv[2] + '/out.npz', p=out['probabilities'], c=out['classes'].numpy().astype('U'))\n"
        "assert serve(tf.constant([], tf.string))['classes'].shape == (0, 3)\n"
    )
    alone(script, folder, tmp_path)
    out = np.load(tmp_path / "out.npz")
    probabilities = np.asarray(tf.nn.softmax(model(images)))
    order = np.argsort(-probabilities, -1)[:, :3]
    np.testing.assert_array_equal(out["c"], np.array(NAMES)[order])
    np.testing.assert_allclose(out["p"], np.take_along_axis(probabilities, order, -1), atol=1e-5)


def test_pixels_and_features_equal_the_model(exported, tmp_path):
    model, folder = exported
    x = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    script = (
        "m = tf.saved_model.load(sys.argv[1])\n"
        "x = tf.constant(np.load(sys.argv[2] + '/x.npy'))\n"
        "out = {**m.signatures['pixels'](x), **m.signatures['features'](x)}\n"
        "assert all(v.dtype == tf.float32 for v in out.values())\n"
        "a, b = (m.signatures['pixels_training'](x)['logits'] for _ in range(2))\n"
        "assert np.any(a != b), 'no dropout'\n"
        "np.savez(sys.argv[2] + '/out.npz', **out)\n"
    )
    alone(script, folder, tmp_path)
    out = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(out["logits"], model(x), atol=1e-5)
    np.testing.assert_allclose(out["features"], keras.Model(model.input, model.features)(x), atol=1e-5)
    np.testing.assert_allclose(out["probabilities"].sum(-1), 1, atol=1e-5)


def test_tfsm_layer_fine_tunes_it_to_another_task(exported, tmp_path):
    """Odd or even, in a process that has Keras but not this package: all of the model's variables train."""
    model, folder = exported
    for split in ("train", "test"):
        images, labels = zip(*open_source("digits", split).ordered().as_numpy_iterator())
        np.savez(tmp_path / f"{split}.npz", x=np.stack(images).astype("float32"), y=np.array(labels) % 2)
    script = (
        "import keras\n"
        "train, test = (np.load(sys.argv[2] + f'/{s}.npz') for s in ('train', 'test'))\n"
        "keras.utils.set_random_seed(0)\n"
        "vit = keras.layers.TFSMLayer(sys.argv[1], call_endpoint='features', call_training_endpoint='features_training')\n"
        "image = keras.Input((8, 8, 1))\n"
        "model = keras.Model(image, keras.layers.Dense(2)(vit(image)['features']))\n"
        "model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=['accuracy'])\n"
        "model.optimizer.build(model.trainable_variables)\n"
        "before = [w.numpy() for w in model.trainable_weights]\n"
        "model.fit(train['x'], train['y'], batch_size=64, epochs=6, verbose=0)\n"
        "moved = sum(bool((w.numpy() != b).any()) for w, b in zip(model.trainable_weights, before))\n"
        "print(len(before), moved, model.evaluate(test['x'], test['y'], verbose=0)[1])\n"
    )
    count, moved, accuracy = alone(script, folder, tmp_path).split()[-3:]
    assert int(count) == int(moved) == len(model.get_layer("block_00").trainable_weights) * 2 + 2 + 1 + 2 + 2
    assert float(accuracy) > 0.93


def test_a_headless_model_serves_features(tmp_path):
    keras_vit.export(keras_vit.checkpoints.transfer(digits_model(), head="drop"), tmp_path / "f")
    loaded = tf.saved_model.load(tmp_path / "f")
    assert sorted(loaded.signatures) == ["features", "features_training", "serving_default"]


def test_outputs_are_float32_under_mixed_precision(tmp_path):
    keras_vit.export(digits_model(dtype="mixed_bfloat16"), tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    x = tf.zeros((2, 8, 8, 1))
    for name in ("pixels", "features", "pixels_training"):
        assert all(v.dtype == tf.float32 for v in loaded.signatures[name](x).values())


def test_a_failed_export_leaves_the_old_one(tmp_path, monkeypatch):
    keras_vit.export(digits_model(), tmp_path / "m")

    def fail(_, path, **__):
        os.makedirs(path)
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        keras_vit.export(digits_model(), tmp_path / "m")
    assert os.listdir(tmp_path) == ["m"]
    assert "pixels" in tf.saved_model.load(tmp_path / "m").signatures


def test_mistakes_are_clear_errors(tmp_path):
    with pytest.raises(ValueError, match="Valid: tf_saved_model"):
        keras_vit.export(digits_model(), tmp_path / "m", format="pickle")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file; an export is a folder"):
        keras_vit.export(digits_model(), tmp_path / "file")
