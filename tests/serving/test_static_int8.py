"""Static int8: what stays in floats is the least that the outputs of held-out inputs need."""

import json

import keras
import numpy as np
import pytest
from small_models import every_weight, pixels

import keras_vit
from keras_vit.runs.calibration_images import calibration_images
from keras_vit.serving import static_int8
from keras_vit.serving.static_int8 import Fingerprint, Layers


class Noisy:
    """A file with products that add known errors; the squares of errors add up."""

    def __init__(self, **errors):
        self.errors, self.groups = errors, {name: [f"{name}/kernel"] for name in errors}
        self.measured = 0

    def error(self, floats, count):
        self.measured += 1
        return np.sqrt(sum(value**2 for name, value in self.errors.items() if name not in floats))


@pytest.mark.parametrize(
    ["errors", "floats"],
    [
        ({"a": 0.05, "b": 0.05, "c": 0.05}, []),
        ({"a": 0.01, "b": 0.3, "c": 0.02}, ["b"]),
        ({"a": 0.2, "b": 0.05, "c": 0.3, "d": 0.06}, ["c", "a"]),
    ],
)
def test_the_fewest_products_stay_in_floats_that_bring_the_difference_to_the_bound(errors, floats):
    file = Noisy(**errors)
    with static_int8.stage("") as work:
        choice = static_int8.choose(list(file.groups), file.error, work)
    assert list(choice.floats) == floats and choice.floats == {name: errors[name] for name in floats}
    assert choice.all_int8 == pytest.approx(np.linalg.norm(list(errors.values())))
    assert file.measured == 1 or floats, "nothing is measured alone if nothing hurts"


def test_products_that_were_trained_for_int8_stay():
    file = Noisy(a=0.3, b=0.2, c=0.01)
    with static_int8.stage("") as work:
        assert list(static_int8.choose(["b", "c"], file.error, work).floats) == ["b", "c"]
        assert static_int8.choose([], file.error, work).floats == {}


def test_every_fourth_input_is_held_out():
    used, held_out = static_int8.split(np.arange(17))
    assert held_out.tolist() == [3, 7, 11, 15] and len(used) == 13


def test_a_kernel_is_found_in_a_file_that_scales_its_outputs():
    """LiteRT multiplies a query's kernel by 1 / sqrt(d), and others by the factors of LayerScale."""
    kernel = np.random.default_rng(0).integers(-64, 65, (3, 4, 5)).astype("float32")
    kernel[0, 0] = 64
    scaled = kernel * np.float32([1 / 3, -0.7, 1e-6, 9, 1])
    assert Fingerprint.of(kernel) == Fingerprint.of(scaled) == Fingerprint.of(scaled.reshape(12, 5))
    other = kernel.copy()
    other[1, 2, 3] += 1 - 2 * (other[1, 2, 3] > 0)
    assert len({Fingerprint.of(x) for x in (kernel, other, kernel[::-1], kernel[..., ::-1], kernel[:2])}) == 5


def test_differences_are_relative_to_how_much_an_output_varies():
    expected = {"logits": np.float32([[100, 101], [102, 101]]), "ids": np.array([1, 2, 3, 4])}
    found = {"logits": expected["logits"] + np.float32([[0.1, 0], [0, 0]]), "ids": np.array([1, 2, 3, 0])}
    assert static_int8.differences(expected, found) == {"logits": pytest.approx(0.1 / np.sqrt(2), rel=1e-3)}
    assert static_int8.agreement(expected, found) == {"ids": 0.75}


def test_ranges_of_unknown_layers_and_empty_ones_are_refused():
    model = every_weight()
    with pytest.raises(ValueError, match='unknown layer "block_00/mlp/hiden".*block_00/mlp/hidden'):
        static_int8.check_ranges(model, {"block_00/mlp/hiden": 1.0})
    for wrong in (0.0, float("nan"), "1"):
        with pytest.raises(ValueError, match="expected a number above 0 for head"):
            static_int8.check_ranges(model, {"head": wrong})
    with pytest.raises(ValueError, match="expected {path of a layer: "):
        static_int8.check_ranges(model, ["head"])


def test_layers_with_equal_kernels_share_the_larger_range():
    model = every_weight()
    hidden, out = (getattr(model.get_layer("block_00").attention, name) for name in ("query", "key"))
    out.kernel.assign(hidden.kernel)
    layers = Layers.of(model, {"block_00/attention/query": np.float32(2), "block_00/attention/key": 1})
    assert layers.ranges == {Fingerprint.of(keras.ops.convert_to_numpy(hidden.kernel)): 2.0}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(a model, its file, with a range for a layer)"""
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    model, path = every_weight(pool="gap"), tmp_path_factory.mktemp("static") / "m.onnx"
    ranges = {"block_00/mlp/hidden": 12.7}
    keras_vit.export(model, path, quantization="int8_static", calibration=pixels(32), ranges=ranges)
    return model, path


@pytest.mark.extended
def test_given_ranges_replace_calibrated_ones_and_the_description_says_what_was_measured(exported):
    onnx = pytest.importorskip("onnx")
    _, path = exported
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    scales = [name for name, value in constants.items() if value.size == 1 and np.isclose(value, 0.1).all()]
    [name] = scales
    assert constants[name.replace("/scale", "/zero")] == 128
    report = json.loads((path.parent / "m.onnx.json").read_text())["int8"]
    assert report["products"] == 7 and report["calibrated_on"] == 24 and report["held_out"] == 8
    assert report["difference"] <= max(report["bound"], report["difference_all_int8"])
    assert report["difference"] == max(report["differences"].values()) and 0 <= report["same"]["probabilities"] <= 1


@pytest.mark.extended
def test_kernels_are_quantised_per_channel_with_seven_bits(exported):
    onnx = pytest.importorskip("onnx")
    model, path = exported
    graph = onnx.load(path).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    [product] = [node for node in graph.node if "hidden" in node.name and node.op_type == "MatMul"]
    integers, scales = (constants[name] for name in makers[product.input[1]].input[:2])
    kernel = model.get_layer("block_00").mlp.hidden.kernel.numpy()
    assert integers.dtype == np.int8 and (np.abs(integers).max(0) == 64).all()
    np.testing.assert_allclose(integers * scales, kernel, atol=scales.max() / 2 + 1e-7)
    assert [constants[node.input[1]].dtype for node in graph.node if node.op_type == "Conv"] == [np.float32]


def test_queries_are_compared_in_any_order():
    logits = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    permuted = static_int8.in_any_order({"logits": logits[:, ::-1]})
    np.testing.assert_array_equal(permuted["logits"], static_int8.in_any_order({"logits": logits})["logits"])


@pytest.mark.extended
def test_a_text_tower_calibrates_on_token_ids(tmp_path):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    keras.utils.set_random_seed(0)
    size = {"depth": 1, "width": 16, "heads": 1, "mlp_dim": 16}
    model = keras_vit.TextEncoder("CLIP-B", vocabulary=20, length=6, outputs=8, end=19, **size)
    ids = np.random.default_rng(0).integers(0, 20, (16, 6))
    keras_vit.export(model, tmp_path / "t.onnx", quantization="int8_static", calibration=ids)
    session = runtime.InferenceSession(str(tmp_path / "t.onnx"))
    [found] = session.run(None, {"tokens": ids[:4].astype("int32")})
    expected = model(ids[:4].astype("int32")).numpy()
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    assert json.loads((tmp_path / "t.onnx.json").read_text())["int8"]["products"] >= 6
    with pytest.raises(ValueError, match="Texts calibrate in Python, as token ids"):
        calibration_images(model, None)
    for wrong, message in (
        (ids[:15], "at least 16 texts"),
        (ids[:, :5], r"integers \(n, 6\)"),
        (ids + 1, "token ids from 0 to 19, got some from 1 to 20"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.export(model, tmp_path / "t.onnx", quantization="int8_static", calibration=wrong)


@pytest.mark.extended
def test_onnx_runtime_multiplies_bytes_in_the_head_too(tmp_path):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    path, optimized, options = tmp_path / "m.onnx", tmp_path / "optimized.onnx", onnxruntime.SessionOptions()
    keras_vit.export(every_weight(), path, quantization="int8_static", calibration=pixels(16))
    options.optimized_model_filepath, options.log_severity_level = str(optimized), 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    operations = {node.op_type for node in onnx.load(optimized).graph.node}
    assert "MatMulIntegerToFloat" in operations and not operations & {"Gemm", "DequantizeLinear"}
