"""ONNX Runtime computes from files what Keras computes, of every kind of model, in floats and int8."""

import collections
import json
import pathlib

import numpy as np
import pytest
from small_models import KINDS, NAMED, assert_floats, every_weight, pixels

import keras_vit
from keras_vit.serving.openvino_engine import openvino_core

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")


def run(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, {"images": images})))


def assert_openvino(model, path, allowed):
    """Holds what OpenVINO computes from a file to the model, by the norm of the difference."""
    compiled = openvino_core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for n in (5, 1):
        logits, found = model(pixels(n)).numpy(), compiled({"images": pixels(n)})["logits"]
        assert np.linalg.norm(found - logits) < allowed * np.linalg.norm(logits), n


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.extended) for kind in KINDS[1:])])
@pytest.mark.usefixtures("openvino")
def test_floats_are_those_of_keras_in_batches_of_any_size(tmp_path, kind, caplog):
    model = every_weight(**kind)
    with caplog.at_level("INFO", logger="absl"):
        keras_vit.export(model, tmp_path / "m.onnx", format="onnx", activation="softmax")
    assert caplog.messages == [
        "Converting the model for ONNX Runtime.",
        "Comparing the file's outputs with the model's.",
    ]
    assert_floats(model, lambda images: run(tmp_path / "m.onnx", images))
    assert_openvino(model, tmp_path / "m.onnx", 1e-5)
    beside = json.loads((tmp_path / "m.onnx.json").read_text())
    assert beside["class_names"] == list(NAMED) and beside["activation"] == "softmax" and beside["quantization"] is None
    assert beside["preprocessing"] and beside["pixels"].startswith("0..255")
    assert beside["inputs"]["images"]["shape"] == ["b", 16, 24, 3] and beside["outputs"]["logits"]["shape"] == ["b", 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.json"]


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    """(a model of two blocks, its file)."""
    model, path = every_weight(depth=2, pool="gap"), tmp_path_factory.mktemp("floats") / "m.onnx"
    keras_vit.export(model, path, format="onnx")
    return model, path


@pytest.mark.extended
def test_the_graph_is_in_the_words_of_onnx(floats):
    """Engines look for whole layer normalisations and GELUs, and need not compute shapes."""
    graph = onnx.load(floats[1]).graph
    nodes = collections.Counter(node.op_type for node in graph.node)
    assert nodes["LayerNormalization"] == 5 and nodes["Erf"] == 2
    assert not nodes["Shape"] and not nodes["Erfc"] and not nodes["ReduceMean"] - 1  # the mean over the patches
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "b"
    # Dense layers take tokens as they are: only patches to tokens, and heads apart and together, are reshapes.
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    shapes = [constants[node.input[1]] for node in graph.node if node.op_type == "Reshape"]
    assert sum(len(shape) == 4 for shape in shapes) == 2 * 3, "queries, keys and values of two blocks"
    assert not [shape for shape in shapes if len(shape) == 2], shapes
    assert constants.keys() <= {name for node in graph.node for name in node.input}  # ONNX Runtime warns about others


def has_vnni():
    """Whether the processor adds up products of bytes without saturation."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    return cpuinfo.exists() and "vnni" in cpuinfo.read_text()


@pytest.mark.extended
@pytest.mark.usefixtures("openvino")
def test_openvino_reads_int8_files(tmp_path):
    """Of attention pooling, OpenVINO 2026.4 compiles none on a processor without VNNI, and says so."""
    model = every_weight(**KINDS[1 if has_vnni() else 0])
    keras_vit.export(model, tmp_path / "m.onnx", format="onnx", quantization="int8_static", calibration=pixels(16))
    assert_openvino(model, tmp_path / "m.onnx", 0.1)


def test_tokens_stay_flat_where_something_needs_two_axes():
    """Here a transpose does: a rewritten graph would be another function, or none."""
    from onnx import TensorProto, helper

    from keras_vit.serving.onnx_tokens import keep_tokens

    rng = np.random.default_rng(0)
    constants = {
        "flat": np.array([-1, 4]),
        "kernel": rng.normal(size=(4, 6)).astype("float32"),
        "back": np.array([-1, 3, 6]),
    }
    for ends_in in ("Transpose", "Reshape"):
        last = (
            helper.make_node("Transpose", ["m"], ["y"])
            if ends_in == "Transpose"
            else helper.make_node("Reshape", ["m", "back"], ["y"])
        )
        nodes = [
            helper.make_node("Reshape", ["x", "flat"], ["f"]),
            helper.make_node("MatMul", ["f", "kernel"], ["m"]),
            last,
        ]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, 4])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
        model = helper.make_model(
            helper.make_graph(nodes, "g", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 18)]
        )
        model.ir_version = 10
        images = rng.normal(size=(2, 3, 4)).astype("float32")
        before = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": images})[0]
        keep_tokens(model)
        after = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": images})[0]
        np.testing.assert_allclose(after, before, rtol=1e-6)
        assert [node.op_type for node in model.graph.node] == ["Reshape"] * (ends_in == "Transpose") + [
            "MatMul",
            ends_in,
        ]


@pytest.mark.parametrize("quantization", ["int8_weights", "int8_dynamic"])
@pytest.mark.extended
def test_int8_has_every_kernel_in_bytes_and_nearly_the_same_logits(floats, tmp_path, quantization):
    from keras_vit.serving import onnx_format

    model, path = floats
    onnx_format.quantize(str(path), str(tmp_path / "m.onnx"), quantization)
    tensors = [tensor for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer if len(tensor.dims) == 2]
    kernels = [tensor for tensor in tensors if tensor.data_type == onnx.TensorProto.INT8]
    assert len(kernels) == 2 * 6 + 1 and onnx.TensorProto.FLOAT not in {tensor.data_type for tensor in tensors}
    # Seven bits: of eight, two products of bytes are more than 16 bits hold, where processors without VNNI add them up.
    if quantization != "int8_weights":
        largest = [np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max() for tensor in kernels]
        assert 60 <= min(largest) and max(largest) <= 64
    logits, found = model(pixels(5)).numpy(), run(tmp_path / "m.onnx", pixels(5))["logits"]
    assert np.linalg.norm(found - logits) < 0.08 * np.linalg.norm(logits)


@pytest.mark.extended
def test_a_file_that_computes_something_else_replaces_nothing(tmp_path, monkeypatch):
    from keras_vit.serving import onnx_format

    before = b"the earlier file", b"its description"
    for name, contents in zip(("m.onnx", "m.onnx.json"), before):
        (tmp_path / name).write_bytes(contents)
    real = onnx_format.fuse

    def wrong(model):
        real(model)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    attribute.f = 1.0

    monkeypatch.setattr(onnx_format, "fuse", wrong)
    with pytest.raises(ValueError, match="differ from the model's by"):
        keras_vit.export(every_weight(pool="gap"), tmp_path / "m.onnx", format="onnx")
    assert before == ((tmp_path / "m.onnx").read_bytes(), (tmp_path / "m.onnx.json").read_bytes())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    from keras_vit.serving import single_file

    monkeypatch.setattr(single_file.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install onnx tf2onnx onnxruntime"):
        keras_vit.export(every_weight(), tmp_path / "m.onnx", format="onnx")


def test_calibration_takes_pictures_and_datasets():
    import tensorflow as tf

    from keras_vit.serving.single_file import calibration_pixels

    model = every_weight()
    model.preprocessing = "decode(3)|resize(16, 24)"
    images = pixels(16).round().astype("uint8")
    expected = images.astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(images)
    labelled = tf.data.Dataset.from_tensor_slices((images, np.zeros(16))).batch(5)
    for given in (list(images), dataset, labelled, images):
        np.testing.assert_array_equal(calibration_pixels(model, given), expected)
