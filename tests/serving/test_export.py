"""The SavedModel: in a process without keras_vit it classifies bytes, returns features, and fine-tunes."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import detecting, segmenting, signatures_of

import keras_vit
from keras_vit.data import open_source
from keras_vit.serving.export import _check, _check_place

NAMES = tuple("zero one two three four five six seven eight nine".split())


def digits_model(**kwargs):
    keras.utils.set_random_seed(0)
    size = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 64, "pool": "gap", "position_std": 1.0, "classes": 10}
    size |= kwargs
    names = NAMES if size["classes"] == 10 else None
    model = keras_vit.ViT(
        "Ti/2", image_size=8, channels=1, class_names=names, preprocessing="decode(1)|resize(8, 8)", **size
    )
    if size["classes"]:
        model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(32, size["classes"])))
    return model


# Runs in a process that has TensorFlow, but neither this package nor, at first, Keras and what the package needs:
# argument 1 is the export, argument 2 a folder for files.
SCRIPT = """
import glob, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, *arguments):
        missing = name.partition(".")[0] in ("keras", "keras_vit", "PIL", "scipy", "etils", "tensorflow_datasets")
        return None if missing else super().find_spec(name, *arguments)


usual = list(sys.meta_path)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Finder]
import numpy as np, tensorflow as tf

saved, folder = sys.argv[1:]
signatures = tf.saved_model.load(saved).signatures
serve, pixels = signatures["serving_default"], signatures["pixels"]
images = [open(path, "rb").read() for path in sorted(glob.glob(folder + "/*.png"))]
out = serve(tf.constant([*images, images[0][:40]]))
texts = {name: out[name].numpy().astype("U") for name in ("classes", "status")}
np.savez(folder + "/bytes.npz", p=out["probabilities"], **texts)
assert serve(tf.constant([], tf.string))["classes"].shape == (0, 3)

x = tf.constant(np.load(folder + "/x.npy"))
out = {**pixels(x), **signatures["features"](x)}
assert all(value.dtype == tf.float32 for value in out.values())
a, b = (signatures["pixels_training"](x)["logits"] for _ in range(2))
assert np.any(a != b), "no dropout"
np.savez(folder + "/pixels.npz", **out)
assert not {"keras", "keras_vit"} & set(sys.modules)

sys.meta_path[:] = usual
import keras

train = np.load(folder + "/train.npz")
keras.utils.set_random_seed(0)
vit = keras.layers.TFSMLayer(saved, call_endpoint="features", call_training_endpoint="features_training")
image = keras.Input((8, 8, 1))
model = keras.Model(image, keras.layers.Dense(2)(vit(image)["features"]))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
model.optimizer.build(model.trainable_variables)
before = [w.numpy() for w in model.trainable_weights]
losses = model.fit(train["x"], train["y"], batch_size=64, epochs=4, verbose=0).history["loss"]
moved = sum(bool((w.numpy() != b).any()) for w, b in zip(model.trainable_weights, before))
np.savez(folder + "/tuned.npz", weights=len(before), moved=moved, losses=losses)
assert not any(name.startswith("keras_vit") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(a ViT with dropout; 20 images of digits; the folder that the script wrote)."""
    model = digits_model(dropout=0.1)
    examples = list(open_source("digits", "train[:512]").ordered().as_numpy_iterator())
    images = np.stack([example["image"] for example in examples])
    folder = tmp_path_factory.mktemp("export")
    keras_vit.export(model, folder / "saved", top_k=3)
    np.savez(folder / "train.npz", x=images.astype("float32"), y=[example["label"] % 2 for example in examples])
    images = images[:20]
    for i, image in enumerate(images):
        (folder / f"{i:02d}.png").write_bytes(tf.io.encode_png(image).numpy())
    np.save(folder / "x.npy", images.astype("float32"))
    command = [sys.executable, "-I", "-c", SCRIPT, str(folder / "saved"), str(folder)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return model, images, folder


@pytest.mark.processes
def test_bytes_are_classified_with_names_and_a_broken_image_fails_alone(served):
    model, images, folder = served
    out = np.load(folder / "bytes.npz")
    probabilities = np.asarray(tf.nn.softmax(model(images)))
    order = np.argsort(-probabilities, -1)[:, :3]
    np.testing.assert_array_equal(out["classes"], [*np.array(NAMES)[order], [""] * 3])
    assert set(out["status"][:-1]) == {"ok"} and out["status"][-1].startswith("The PNG cannot be decoded")
    np.testing.assert_allclose(out["p"][:-1], np.take_along_axis(probabilities, order, -1), atol=1e-5)


@pytest.mark.processes
def test_pixels_and_features_equal_the_model(served):
    model, images, folder = served
    out, x = np.load(folder / "pixels.npz"), images.astype("float32")
    np.testing.assert_allclose(out["logits"], model(x), atol=1e-5)
    np.testing.assert_allclose(out["features"], keras.Model(model.input, model.features)(x), atol=1e-5)
    np.testing.assert_allclose(out["probabilities"].sum(-1), 1, atol=1e-5)


@pytest.mark.processes
def test_tfsm_layer_fine_tunes_it_to_another_task(served):
    """Odd or even: all of the model's variables train."""
    model, _, folder = served
    tuned = np.load(folder / "tuned.npz")
    expected = len(model.get_layer("block_00").trainable_weights) + 2 + 1 + 2 + 2
    assert int(tuned["weights"]) == int(tuned["moved"]) == expected
    assert tuned["losses"][-1] < 0.9 * tuned["losses"][0]


def test_a_headless_model_serves_features(eagerly):
    model = keras_vit.checkpoints.transfer(digits_model(), head="drop")
    signatures = signatures_of(model)
    kinds = ["attention", "encoded_attention", "encoded_features", "features", "features_training", "serving_default"]
    assert sorted(signatures) == kinds
    x = tf.ones((2, 8, 8, 1))
    np.testing.assert_allclose(signatures["serving_default"](x)["features"], model(x), atol=1e-5)


def test_outputs_are_float32_under_mixed_precision(eagerly):
    signatures = signatures_of(digits_model(dtype="mixed_bfloat16"))
    for name in ("pixels", "features", "pixels_training"):
        assert all(v.dtype == tf.float32 for v in signatures[name](tf.zeros((2, 8, 8, 1))).values())


def test_probabilities_of_a_sigmoid_model(eagerly):
    for loss, activation in (("SigmoidCrossEntropy", None), (None, "sigmoid")):
        model = digits_model()
        model.get_layer("head").bias.assign(np.linspace(-1, 2, 10))
        if loss:
            model.compile("sgd", getattr(keras_vit.training, loss)())
        out = signatures_of(model, activation)["pixels"](tf.ones((1, 8, 8, 1)))
        np.testing.assert_allclose(out["probabilities"], tf.sigmoid(out["logits"]), atol=1e-6)


def test_the_encoder_of_a_model_of_pre_training_is_not_refused(tmp_path):
    _check(masked().get_encoder(), tmp_path / "features", "tf_saved_model")


def test_only_an_export_of_this_package_is_replaced(tmp_path):
    (tmp_path / "site" / "assets").mkdir(parents=True)
    (tmp_path / "site" / "assets" / "logo.png").touch()
    with pytest.raises(ValueError, match="which would be lost: assets. Give a new"):
        _check_place(tmp_path / "site")
    (tmp_path / "theirs" / "variables").mkdir(parents=True)
    program = tmp_path / "theirs" / "saved_model.pb"
    program.write_bytes(b"serving_default")
    with pytest.raises(ValueError, match="which would be lost: saved_model.pb, variables. Give a new"):
        _check_place(tmp_path / "theirs")
    program.write_bytes(b"serving_default features_training")  # as version 0.3 wrote them
    _check_place(tmp_path / "theirs")
    (tmp_path / "theirs" / "metadata.json").write_text('{"author": "somebody"}')
    with pytest.raises(ValueError, match="which would be lost: metadata.json, saved_model.pb, variables"):
        _check_place(tmp_path / "theirs")
    (tmp_path / "theirs" / "metadata.json").write_text('{"keras_vit": "0.4.0"}')
    _check_place(tmp_path / "theirs")


@pytest.mark.extended
def test_a_full_disk_is_an_error_that_names_the_export_and_leaves_the_old_one(tmp_path, monkeypatch):
    def full(_, folder, **__):
        os.makedirs(os.path.join(folder, "variables"))
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    old = tmp_path / "export"
    old.mkdir()
    (old / "saved_model.pb").write_bytes(b"old")
    (old / "metadata.json").write_text('{"keras_vit": "0.4.0"}')
    with pytest.raises(
        OSError, match=r'export" cannot be written: No space left on device. The earlier one is unchanged'
    ):
        keras_vit.export(digits_model(), old)
    assert os.listdir(tmp_path) == ["export"] and (old / "saved_model.pb").read_bytes() == b"old"


@pytest.mark.parametrize("mode", ["int8", "lora"])
def test_a_quantised_model_and_one_with_lora_serve_what_they_compute(mode, eagerly):
    model, rng = digits_model(), np.random.default_rng(0)
    if mode == "lora":
        model.enable_lora(2)
        for weight in model.trainable_weights:
            weight.assign(rng.normal(size=weight.shape))
    else:
        model.quantize(mode)
    signatures = signatures_of(model)
    x = tf.constant(rng.integers(0, 256, (3, 8, 8, 1)), tf.float32)
    np.testing.assert_allclose(signatures["pixels"](x)["logits"], model(x), atol=1e-4)
    np.testing.assert_allclose(
        signatures["features"](x)["features"], keras.Model(model.input, model.features)(x), atol=1e-4
    )


def digits(**options):
    return lambda: digits_model(**options)


def vector():
    inputs = keras.Input((6,))
    return keras_vit.Model(inputs, keras.layers.Dense(2)(inputs))


def masked():
    sizes = dict(depth=1, width=16, heads=2, mlp_dim=16, decoder_depth=1, decoder_width=16, decoder_heads=2)
    return keras_vit.MaskedAutoencoder("Ti/8", image_size=16, **sizes)


STATIC = {"format": "onnx", "quantization": "int8_static"}
# (the model, the path, the options, the refusal)
REFUSED = [
    (digits(), "m", {"activation": "tanh"}, '"tanh". Valid: softmax, sigmoid'),
    (digits(classes=None), "m", {"activation": "sigmoid"}, "has no classes and returns features"),
    (digits(), "m", {"top_k": 0}, "top_k must be a positive integer, got 0"),
    (digits(), "m.onnx", {"top_k": 3}, 'top_k is for format="tf_saved_model"'),
    (digits(), "m.tflite", {"verbose": True}, 'verbose is for format="tf_saved_model"'),
    (digits(), "m", {"format": "pickle"}, "Valid: tf_saved_model, onnx, litert, web. keras_vit.save"),
    (digits(), "m", {"iou": 0.5, "soft": True}, "iou, soft: .* classifies whole images.* Leave them out"),
    (digits(), "m", {"quantization": "int8_dynamic"}, 'for format="onnx" or "litert"'),
    (digits(), "m.onnx", {"quantization": "int4"}, "Valid: int8_weights, int8_dynamic, int8_static"),
    (digits(), "m.onnx", STATIC, "needs calibration"),
    (digits(), "m.onnx", {**STATIC, "calibration": np.zeros((15, 8, 8, 1))}, "at least 16 images"),
    (digits(), "m.onnx", {**STATIC, "calibration": np.zeros((16, 4, 8, 1))}, r"shape \(n, 8, 8, 1\)"),
    (digits(), "m.onnx", {**STATIC, "calibration": np.linspace(0, 1, 1024).reshape(16, 8, 8, 1)}, "255"),
    (
        digits(),
        "m.onnx",
        {"quantization": "int8_dynamic", "calibration": np.zeros((16, 8, 8, 1))},
        "Leave it out",
    ),
    (digits(), "m.onnx", {"quantization": "full_int8"}, 'for format="litert", got format="onnx".* .tflite'),
    (digits(), "m.tflite", {"quantization": "full_int8"}, "full_int8.* needs calibration: 16 inputs .* will see.$"),
    (
        digits(),
        "m.tflite",
        {"quantization": "full_int16", "calibration": np.zeros((15, 8, 8, 1))},
        "at least 16 images",
    ),
    (digits(dtype="mixed_bfloat16"), "m.onnx", {}, 'dtype="float32"'),
    (digits(token_merging=1, pool="token"), "m.onnx", {}, "Token merging"),
    (digits(token_merging=1, pool="token"), "m.tflite", {}, "Token merging"),
    (masked, "m", {}, r"a MaskedAutoencoder, trains another model: export that one, .*get_encoder"),
    (detecting, "m", {"top_k": 2}, "choose by score, with threshold"),
    (detecting, "m", {"activation": "softmax"}, "are by sigmoid"),
    (detecting, "m", {"threshold": 2}, "threshold must be from 0 to 1"),
    (detecting, "m", {"limit": 0}, "limit"),
    (segmenting, "m", {"top_k": 2}, "gives every pixel one class"),
    (lambda: [vector()], "m", {}, "export expected a model of keras_vit, got a list. export takes one model"),
    (lambda: keras_vit.ViT, "m", {}, "got the class ViT, not a model made of it. .* then export that"),
    (lambda: keras.Sequential([keras.Input((8, 8, 1)), digits_model()]), "m", {}, "a plain keras Sequential. Build it"),
    (vector, "m", {}, "one input of images .* got .* the input shape"),
]


@pytest.mark.extended
@pytest.mark.parametrize(("make", "path", "options", "message"), REFUSED)
def test_what_is_refused_before_any_work(make, path, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        keras_vit.export(make(), tmp_path / path, **options)
    assert not list(tmp_path.iterdir())


def test_places_where_nothing_can_be_written_are_refused(tmp_path):
    model = digits_model()
    (tmp_path / "file").write_text("x")
    for given, message in (
        ((model, tmp_path / "file"), "is a file; an export is a folder"),
        ((model, tmp_path / "file" / "x"), 'file" is a file'),
        ((model, "gs://bucket/x"), '"gs://bucket/x" is in a bucket'),
        ((model, None), "export expected a path, got None"),
        (("m", model), r"export takes the model first: export\(model, 'm'\)"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            keras_vit.export(*given)
