"""Quantisation-aware training: rounding and its gradients, what learns, files and clones, ONNX files, refusals."""

import json

import keras
import numpy as np
import pytest
from interpreters import Interpreter
from small_models import data

import keras_vit
from keras_vit.checkpoints import transfer
from keras_vit.layers.dense import inner_layers
from keras_vit.layers.fake_quantization import fake_quantized, fake_quantized_kernel, fake_quantizers, groups
from keras_vit.models import enable_lora, freeze, quantize_aware, without_fake_quantization
from keras_vit.models.finetuning.quantization_aware import learned_ranges
from keras_vit.optim import AdamW
from keras_vit.segmentation.segmentation_model import SegmentationModel
from keras_vit.training import SoftmaxCrossEntropy

BLOCK = [["attention/query", "attention/key", "attention/value"], ["attention/out"], ["mlp/hidden"], ["mlp/out"]]
GROUPS = [*([f"block_00/{path}" for path in group] for group in BLOCK), ["head"]]


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


@pytest.fixture
def images():
    return data(16)[0]


@pytest.fixture
def aware(tiny, images):
    model = tiny(depth=1)
    quantize_aware(model, images)
    return model


def gradients(x, scale):
    """Those of the sum of x rounded, with respect to x and the scale."""
    import tensorflow as tf

    x, scale = tf.constant(x), tf.constant(scale)
    with tf.GradientTape() as tape:
        tape.watch([x, scale])
        total = tf.reduce_sum(fake_quantized(x, scale))
    return [gradient.numpy() for gradient in tape.gradient(total, [x, scale])]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="its gradient tape")
def test_rounding_passes_gradients_inside_its_range():
    x = np.array([0.04, 0.26, -0.3, 20.0, -20.0], "float32")
    np.testing.assert_allclose(fake_quantized(x, np.float32(0.1)), [0.0, 0.3, -0.3, 12.7, -12.8], rtol=1e-6)
    of_x, of_scale = gradients(x, np.float32(0.1))
    np.testing.assert_array_equal(of_x, [1, 1, 1, 0, 0])
    # round(x / s) - x / s inside, the last integer outside: equation 3 of arXiv 1902.08153
    np.testing.assert_allclose(of_scale, -0.4 + 0.4 + 0.0 + 127 - 128, atol=1e-5)


def test_a_kernel_has_7_bits_and_a_scale_for_each_output():
    kernel = np.array([[0.64, 0.0, 1.28], [0.104, 0.0, -0.05]], "float32")
    found = fake_quantized_kernel(kernel)
    np.testing.assert_allclose(found, [[0.64, 0.0, 1.28], [0.1, 0.0, -0.04]], atol=1e-6)
    np.testing.assert_array_equal(fake_quantized_kernel(found), found)


@pytest.mark.extended
def test_layers_with_one_input_share_a_range_which_learns_with_the_weights(tiny, images):
    model = tiny(depth=1)
    plain = outputs(model, images)
    weights = len(model.trainable_weights)
    assert quantize_aware(model, images) == [path for group in GROUPS for path in group]
    assert groups(model) == GROUPS and len(model.trainable_weights) == weights + len(GROUPS)
    rounded = outputs(model, images)
    assert 0 < np.abs(rounded - plain).max() < 0.2 * np.abs(plain).max()
    eagerly = keras.backend.backend() == "tensorflow"
    model.compile(AdamW(1e-2), SoftmaxCrossEntropy(), run_eagerly=eagerly, jit_compile=not eagerly)
    before = {weight.path: weight.numpy() for weight in model.trainable_weights}
    model.fit(images, np.arange(16) % 5, verbose=0)
    assert all(np.any(weight.numpy() != before[weight.path]) for weight in model.trainable_weights)


def test_sixteen_bits_round_the_whole_kernel(tiny, images):
    """A kernel that is first rounded to bfloat16 would give other integers."""
    model = tiny(depth=1, dtype="mixed_bfloat16")
    quantize_aware(model, images)
    out = model.get_layer("block_00").attention.out
    seen, call = [], out.fake_quantizer.call
    out.fake_quantizer.call = lambda *given, **options: seen.append(call(*given, **options)) or seen[-1]
    model(images)
    [(x, kernel)] = seen
    assert x.dtype.name == "bfloat16" if hasattr(x.dtype, "name") else str(x.dtype) == "bfloat16"
    expected = fake_quantized_kernel(out.kernel.numpy())
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(kernel), expected)


def with_head(vit):
    return vit.with_head(keras.layers.Dense(2, name="mine"))


def nested(vit):
    image = keras.Input((8, 12, 3))
    return keras_vit.Model(image, keras.layers.Dense(2, name="mine")(vit(image)))


@pytest.mark.parametrize(
    "make",
    [lambda vit: vit, with_head, pytest.param(nested, marks=pytest.mark.extended)],
    ids=["vit", "head", "nested"],
)
def test_files_and_clones_keep_it(tiny, images, tmp_path, make):
    model = make(tiny(depth=1))
    quantize_aware(model, images)
    for quantizer in fake_quantizers(model).values():
        quantizer.log_range.assign_add(0.1)
    model.save(tmp_path / "m.keras")
    for other in (keras_vit.load(tmp_path / "m.keras"), keras.saving.load_model(tmp_path / "m.keras"), model.clone()):
        np.testing.assert_array_equal(outputs(other, images), outputs(model, images))
        assert groups(other) == groups(model)


def segmenter(**options):
    size = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16}
    head = {"width": 8, "stages": 1}
    return SegmentationModel("Ti/4", "setr_pup", 3, image_size=(8, 12), head_options=head, **size, **options)


@pytest.mark.parametrize(
    "make", [lambda tiny: tiny(depth=1, dtype="mixed_bfloat16"), lambda _: segmenter(dtype="mixed_bfloat16")]
)
def test_a_model_trained_in_16_bits_is_loaded_in_32_with_its_ranges(tiny, images, tmp_path, make):
    model = make(tiny)
    quantize_aware(model, images)
    model.save(tmp_path / "m.keras")
    loaded = keras_vit.load(tmp_path / "m.keras", dtype="float32")
    assert learned_ranges(loaded) == learned_ranges(model) != {} and groups(loaded) == groups(model)
    assert loaded.compute_dtype == "float32"
    for ours, theirs in zip(loaded.trainable_weights, model.trainable_weights):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("part", ["block_00/attention/query", "block_00/attention/query/fake_quantizer"])
def test_a_frozen_part_stays_frozen_in_a_copy(aware, part):
    """A range that three layers share is frozen with one of them."""
    inner_layers(aware)[part].trainable = False
    copy = aware.clone()
    assert len(copy.trainable_weights) == len(aware.trainable_weights) < len(aware.weights)


def test_ranges_of_two_encoders_in_a_model_have_paths_of_their_own(tiny, images):
    image = keras.Input((8, 12, 3))
    features = [tiny(depth=1, name=name)(image) for name in ("left", "right")]
    model = keras_vit.Model(image, keras.layers.Add()(features))
    paths = quantize_aware(model, images)
    assert learned_ranges(model).keys() == set(paths) and len(paths) == 14


def test_the_model_in_floats_comes_back(tiny, images, aware):
    plain = without_fake_quantization(aware)
    np.testing.assert_array_equal(outputs(plain, images), outputs(tiny(depth=1), images))
    assert plain.get_config() == tiny(depth=1).get_config()
    rounded = without_fake_quantization(aware, rounded=True)
    kernel = aware.get_layer("head").kernel.numpy()
    np.testing.assert_array_equal(rounded.get_layer("head").kernel.numpy(), fake_quantized_kernel(kernel))


def test_a_dense_head_stays_in_floats():
    paths = quantize_aware(segmenter(), data(16)[0])
    assert len(paths) == 12 and all(path.startswith("block_") for path in paths)


@pytest.mark.extended
def test_an_onnx_file_computes_what_was_trained(images, aware, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    keras_vit.export(aware, tmp_path / "m.onnx", quantization="int8_static")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    [found] = session.run(["logits"], {"images": images.astype("float32")})
    expected, plain = outputs(aware, images), outputs(without_fake_quantization(aware), images)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected - plain).max()
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.extended
def test_gates_of_an_onnx_file_are_rounded_too(tiny, images, tmp_path):
    """TensorFlow flattens what a SwiGLU reads, and splits what it makes of it."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = tiny(depth=1, mlp_form="swiglu")
    quantize_aware(model, images)
    keras_vit.export(model, tmp_path / "m.onnx", quantization="int8_static")
    assert json.loads((tmp_path / "m.onnx.json").read_text())["int8"]["floats"] == []
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    [found] = session.run(["logits"], {"images": images.astype("float32")})
    expected, plain = outputs(model, images), outputs(without_fake_quantization(model), images)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected - plain).max()


@pytest.mark.extended
def test_a_litert_file_has_the_kernels_and_ranges_of_training(images, aware, tmp_path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    pytest.importorskip("ai_edge_quantizer")
    keras_vit.export(aware, tmp_path / "m.tflite", quantization="int8_static", calibration=images)
    file = interpreter.Interpreter(str(tmp_path / "m.tflite"))
    details = {t["index"]: t["quantization_parameters"]["scales"] for t in file.get_tensor_details()}
    dense = [node["inputs"] for node in file._get_ops_details() if node["op_name"] == "FULLY_CONNECTED"]
    inner = inner_layers(aware)
    for path, (x, kernel, *_) in zip(["block_00/mlp/hidden", "block_00/mlp/out"], dense[4:6]):
        integers = file.get_tensor(kernel).T
        expected = fake_quantized_kernel(inner[path].kernel.numpy())
        np.testing.assert_allclose(integers * details[kernel], expected, atol=1e-6)
        assert np.abs(integers).max() == 64
        np.testing.assert_allclose(details[x], learned_ranges(aware)[path] / 127, rtol=1e-5)
    assert [np.abs(file.get_tensor(kernel).astype(int)).max() for _, kernel, *_ in dense] == [64] * 7, "queries, too"
    found = file.get_signature_runner()(images=images.astype("float32"))["logits"]
    expected = outputs(aware, images)
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
    about = json.loads((tmp_path / "m.tflite.json").read_text())["int8"]
    assert about["ranges"] == "learned" and about["products"] == 8 and about["floats"] == []


def test_other_exports_are_refused(aware, images, tmp_path):
    pytest.importorskip("tf2onnx")
    static = {"quantization": "int8_static"}

    def refused(message, name="m.onnx", **options):
        with pytest.raises(ValueError, match=message):
            keras_vit.export(aware, tmp_path / name, **options)

    for options in ({}, {"quantization": "int8_dynamic"}, {**static, "format": "web", "name": "page"}):
        refused("was trained for int8: export it to ONNX or LiteRT with quantization=.int8_static", **options)
    refused("learned its ranges in training: leave calibration out", calibration=images, **static)
    refused("learned its ranges in training: leave ranges out", ranges={"head": 1.0}, **static)
    refused("needs calibration.*LiteRT rounds more than training does", "m.tflite", **static)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [{"image_size": (16, 12)}, {"head": "drop"}, {"classes": 2, "head": "reset"}])
def test_a_file_loads_in_floats_with_changes_that_do_not_keep_its_layers(aware, tmp_path, caplog, changes):
    aware.save(tmp_path / "m.keras")
    loaded = keras_vit.load(tmp_path / "m.keras", **changes)
    assert not fake_quantizers(loaded) and "was trained for int8: its weights are taken in floats" in caplog.text
    ours, theirs = (model.get_layer("block_00").mlp.hidden.kernel.numpy() for model in (loaded, aware))
    np.testing.assert_array_equal(ours, theirs)


def test_what_would_lose_it_is_refused(aware, tmp_path):
    without = r"without_fake_quantization\(model\)"
    with pytest.raises(ValueError, match=f'The format "timm" needs a model without fake .*{without}'):
        keras_vit.save(aware, tmp_path / "t", "timm")
    with pytest.raises(ValueError, match=f"Another head needs .*{without}"):
        transfer(aware, head="drop")
    with pytest.raises(ValueError, match=f"enable_lora needs .*{without}"):
        enable_lora(aware, 2)
    with pytest.raises(ValueError, match=f"quantize needs .*{without}"):
        aware.quantize("int8")


def test_models_that_it_does_not_suit_are_refused(tiny, images, aware):
    def refused(model, message):
        with pytest.raises(ValueError, match=message):
            quantize_aware(model, images)

    refused(aware, "has fake quantisation already")
    quantized, adapted, frozen = tiny(depth=1), tiny(depth=1), tiny(depth=1)
    quantized.quantize("int8")
    enable_lora(adapted, 2)
    freeze(frozen, ["block_00"])
    refused(quantized, "is quantised already")
    refused(adapted, r"has LoRA.*merge_lora\(model\)")
    refused(frozen, r"layers are frozen.*block_00/attention/query.*\(6 in all\)")
    vit = tiny(depth=1)
    refused(keras.Model(vit.input, vit.features), "expected a model with one answer from images")
    model = tiny(depth=1)
    for wrong in (images[:4], images[:, :4], list(range(16))):
        with pytest.raises(ValueError, match=r"pixels of at least 16 images, \(n, 8, 12, 3\), got the shape"):
            quantize_aware(model, wrong)
    with pytest.raises(ValueError, match="not finite"):
        quantize_aware(model, np.full(images.shape, np.nan))
    assert not fake_quantizers(model), "it is as it was"


def trained_here(path):
    """The losses of an epoch of a model from a file, and its ranges before and after."""
    x, y = data(16)
    model = keras_vit.load(path)
    before = learned_ranges(model)
    model.compile(AdamW(1e-2), SoftmaxCrossEntropy(), jit_compile=keras.backend.backend() == "jax")
    losses = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, list(before.values()), list(learned_ranges(model).values())


@pytest.mark.processes
def test_it_trains_on_jax_as_on_tensorflow(aware, tmp_path):
    aware.save(tmp_path / "m.keras")
    here = trained_here(tmp_path / "m.keras")
    with Interpreter("jax") as jax:
        there = jax.run(trained_here, str(tmp_path / "m.keras"))
    for ours, theirs in zip(here, there):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)
