"""Exported pages: what the folder has, what is refused, and that a failure leaves the earlier page."""

import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from small_models import NAMED, detecting, every_weight, for_files, pixels, segmenting

import keras_vit
from keras_vit.serving.same_outputs import compare
from keras_vit.serving.web import page_folder, runtime
from keras_vit.serving.web.page_steps import page_steps

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

PAGE = {"index.html", "start.js", "page.js", "worker.js", "isolate.js", "pixels.js", "answer_rows.js", "texts.js"}
PAGE |= {"answers.js", "style.css", "model.json", "model.onnx"}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A node_modules with files of the names that a page needs."""
    folder = tmp_path_factory.mktemp("node") / "node_modules"
    names = {runtime.ENGINE: [name for names in runtime.ENGINES.values() for name in names]}
    for package, files in {**names, runtime.TOKENIZERS: [runtime.TOKENIZERS_FILE]}.items():
        (folder / package / "dist").mkdir(parents=True)
        for name in files:
            (folder / package / "dist" / name).write_text(name)
    return folder


def run(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: images})))


def types_of_weights(folder):
    return {tensor.data_type for tensor in onnx.load(folder / "model.onnx").graph.initializer}


def described(folder):
    return json.loads((folder / "model.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def page(libraries, tmp_path_factory):
    """(a model, its page)."""
    model, folder = for_files(), tmp_path_factory.mktemp("pages") / "page"
    keras_vit.export(model, folder, format="web", runtime=libraries / "onnxruntime-web")
    return model, folder


@pytest.mark.extended
def test_the_folder_has_all_that_a_page_needs(page):
    _, folder = page
    beside = {path.name for path in (folder / "runtime").iterdir()}
    assert {path.name for path in folder.iterdir()} == PAGE | {"runtime"}
    assert beside == {name for names in runtime.ENGINES.values() for name in names}
    about = described(folder)
    assert about["answers"] == ["classes"] and about["class_names"] == list(NAMED) and about["engines"][0] == "webgpu"
    assert about["steps"][1] == {"op": "resize", "height": 16, "width": 24, "method": "bilinear", "antialias": True}
    assert about["range"] == {"factor": [1.0], "offset": [0.0]} and about["texts"] is None
    sizes = {name: (folder / name).stat().st_size for name in about["files"]}
    assert sizes == about["files"] and len(sizes) == len(PAGE) - 1 + len(beside)
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir() if path.suffix in (".html", ".js", ".css")}
    elsewhere = re.compile(r"https?://(?!localhost)\w")
    assert not [name for name, text in texts.items() if elsewhere.search(text)]


@pytest.mark.extended
def test_the_file_has_halved_weights_and_the_probabilities_of_the_model(page):
    model, folder = page
    expected, found = keras.ops.softmax(model(pixels(3))).numpy(), run(folder / "model.onnx", pixels(3))
    assert [*found] == ["probabilities"]
    np.testing.assert_allclose(found["probabilities"], expected, atol=2e-3)
    tensors = onnx.load(folder / "model.onnx").graph.initializer
    large = {tensor.data_type for tensor in tensors if np.prod(tensor.dims) >= 2048}
    assert large == {onnx.TensorProto.FLOAT16}


def test_weights_beyond_float16_stay():
    from keras_vit.serving.web.half_weights import halve

    values = {
        "large": np.full(2000, 1e5, "float32"),
        "usual": np.full(2000, 0.5, "float32"),
        "few": np.ones(9, "float32"),
    }
    nodes = [onnx.helper.make_node("Identity", [name], [f"{name}_out"]) for name in values]
    outs = [onnx.helper.make_tensor_value_info(f"{name}_out", 1, [len(each)]) for name, each in values.items()]
    tensors = [onnx.numpy_helper.from_array(each, name) for name, each in values.items()]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], outs, tensors))
    halve(model)
    assert sorted(tensor.name for tensor in model.graph.initializer) == ["few", "large", "usual/float16"]
    onnx.checker.check_model(model, full_check=True)


def panoptic():
    fields = {"image_size": (16, 24), "depth": 2, "width": 16, "heads": 2, "mlp_dim": 16}
    return keras_vit.InstanceModel("Ti/8", "eomt", 2, head_options={"queries": 3, "blocks": 1}, stuff=[0], **fields)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (segmenting, {"logits"}),
        (lambda: detecting(), {"boxes", "scores", "labels"}),
        (panoptic, {"masks", "scores", "labels"}),
    ],
    ids=["masks", "objects", "scenes"],
)
def test_other_answers_have_what_the_page_draws(libraries, tmp_path, make, names):
    model = make()
    model.preprocessing = "decode|resize(16, 24)"
    keras_vit.export(model, tmp_path / "page", format="web", runtime=libraries)
    assert {*run(tmp_path / "page" / "model.onnx", pixels(1))} == names
    assert described(tmp_path / "page")["answers"] == list(model.answers)


@pytest.mark.extended
def test_int8_is_for_wasm_alone(libraries, tmp_path):
    model = every_weight(width=64, mlp_dim=128)
    keras_vit.export(model, tmp_path / "page", format="web", runtime=libraries, quantization="int8_dynamic")
    assert described(tmp_path / "page")["engines"] == ["wasm"]
    assert not [path.name for path in (tmp_path / "page" / "runtime").iterdir() if "webgpu" in path.name]
    assert onnx.TensorProto.INT8 in types_of_weights(tmp_path / "page")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("make", "names"),
    [(for_files, {"probabilities"}), (detecting, {"boxes", "scores", "labels"})],
    ids=["classes", "objects"],
)
def test_static_int8_is_calibrated_and_says_what_it_measured(libraries, tmp_path, caplog, make, names):
    model = make()
    model.preprocessing = "decode|resize(16, 24)"
    quantization = {"quantization": "int8_static", "calibration": pixels(16)}
    with caplog.at_level(logging.INFO, logger="absl"):
        keras_vit.export(model, tmp_path / "page", format="web", runtime=libraries, **quantization)
    about = described(tmp_path / "page")
    assert about["quantization"] == "int8_static" and about["engines"] == ["wasm"]
    assert about["int8"]["held_out"] == 4 and not [name for name in about["int8"]["differences"] if "_" in name]
    assert f"of {about['int8']['products']} products" in caplog.text
    assert onnx.TensorProto.INT8 in types_of_weights(tmp_path / "page")
    assert {*run(tmp_path / "page" / "model.onnx", pixels(1))} == names


@pytest.mark.extended
def test_both_towers_of_a_model_with_texts(libraries, tmp_path):
    size = {"depth": 1, "width": 16, "heads": 1, "mlp_dim": 16}
    image = keras_vit.ViT("B/8", image_size=(16, 24), classes=None, preprocessing="decode|resize(16, 24)", **size)
    tokenizer = keras_vit.Tokenizer.train(["a cat", "a dog"], 300, 8)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=tokenizer.size, length=8, outputs=16, **size)
    model = keras_vit.DualEncoder(image, text)
    with pytest.raises(ValueError, match="has no tokenizer, and a page reads texts"):
        keras_vit.export(model, tmp_path / "page", format="web", runtime=libraries)
    model.tokenizer = tokenizer
    keras_vit.export(model, tmp_path / "page", format="web", runtime=libraries)
    about, ids = described(tmp_path / "page"), tokenizer(["a cat"])
    assert about["texts"]["tokenizer"] == {
        "kind": "siglip",
        "length": 8,
        "start": [],
        "end": tokenizer.end,
        "pad": tokenizer.pad,
    }
    found = run(tmp_path / "page" / "text.onnx", ids)
    np.testing.assert_allclose(found["embeddings"], model.encode_text(["a cat"]), atol=2e-3)
    images = run(tmp_path / "page" / "model.onnx", pixels(2))
    compare({"embeddings": model.tower("image")(pixels(2)).numpy()}, images, "ONNX Runtime", exact=False)
    assert {"tokenizer.json", "runtime/tokenizers.min.mjs", "text.onnx"} <= about["files"].keys()


@pytest.mark.extended
def test_a_page_replaces_a_page_and_a_failure_leaves_it(page, libraries, tmp_path, monkeypatch):
    model, folder = page
    place = shutil.copytree(folder, tmp_path / "page")
    before = (place / "model.json").read_bytes()

    def failing(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(page_folder, "_write_model", failing)
        with pytest.raises(OSError, match="No space left"):
            keras_vit.export(model, place, format="web", runtime=libraries)
    assert (place / "model.json").read_bytes() == before and os.listdir(tmp_path) == ["page"]
    assert page_folder.others(place) == []  # it may be replaced
    (place / "mine.txt").write_text("")
    with pytest.raises(ValueError, match="than an export of keras_vit, which would be lost: mine.txt. Give a new"):
        keras_vit.export(model, place, format="web", runtime=libraries)


def without_head():
    return every_weight(classes=None)


def trained_for_int8():
    model = every_weight()
    keras_vit.models.quantize_aware(model, pixels(16))
    return model


def with_steps(text):
    model = every_weight()
    model.preprocessing = text
    return model


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (without_head, {}, "gives features, which a page cannot show"),
        (lambda: with_steps("decode|resize(16, 24)|check"), {}, 'has the op check, which format="web" lacks'),
        (lambda: with_steps("decode|resize(16, 24, method='area')"), {}, "has the method of resizing area"),
        (every_weight, {"top_k": 3}, 'top_k is for format="tf_saved_model"'),
        (every_weight, {"quantization": "int4"}, "Unknown quantization"),
        (every_weight, {"quantization": "int8_static"}, 'quantization="int8_static" needs calibration'),
        (trained_for_int8, {"quantization": "int8_static"}, "was trained for int8: export it to ONNX or LiteRT"),
    ],
)
def test_what_a_page_lacks_is_refused(tmp_path, libraries, make, options, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.export(make(), tmp_path / "page", format="web", runtime=libraries, **options)
    assert not (tmp_path / "page").exists()


def test_wrong_places_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path, words in {
        "file": "is a file",
        "page.onnx": "a file of format",
        "page.keras": "not an export format",
    }.items():
        with pytest.raises(ValueError, match=words):
            keras_vit.export(every_weight(), tmp_path / path, format="web")
    with pytest.raises(ValueError, match='runtime is for format="web"'):
        keras_vit.export(every_weight(), tmp_path / "saved", runtime="node_modules")


def test_texts_that_do_not_decode_are_refused():
    with pytest.raises(ValueError, match="should start with decode"):
        page_steps("resize(8, 8)", "m")


def test_missing_libraries_are_named_with_both_ways_out(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="Install Node.js, or run .*--runtime=node_modules"):
        runtime.find(None, ["wasm"], False)
    with pytest.raises(FileNotFoundError, match="There is no onnxruntime-web in .* have npm fetch it"):
        runtime.find(tmp_path, ["wasm"], False)


def test_libraries_of_another_version_are_told(libraries, caplog):
    package = libraries / runtime.ENGINE / "package.json"
    for version, warnings in ((runtime.VERSIONS[runtime.ENGINE], 0), ("1.0.0", 1)):
        package.write_text(json.dumps({"version": version}))
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="absl"):
            runtime.find(libraries, ["wasm"], False)
        assert len(caplog.records) == warnings and ("has 1.0.0" in caplog.text) == bool(warnings)
    package.unlink()


@pytest.mark.skipif(sys.platform == "win32", reason="a script as npm")
def test_npm_installs_once_and_its_failures_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    calls = []

    def npm(command, **options):
        calls.append(command)
        if len(calls) == 1:
            return subprocess.CompletedProcess(command, 1, "", "npm error code ENOTFOUND\n")
        dist = pathlib.Path(command[command.index("--prefix") + 1], "node_modules", "onnxruntime-web", "dist")
        dist.mkdir(parents=True)
        for name in runtime.ENGINES["wasm"]:
            (dist / name).write_text("")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", npm)
    with pytest.raises(OSError, match="failed: npm error code ENOTFOUND. Try it yourself"):
        runtime.find(None, ["wasm"], False)
    with caplog.at_level(logging.INFO, logger="absl"):
        assert [path.name for path in runtime.find(None, ["wasm"], False)] == list(runtime.ENGINES["wasm"])
    assert "Installing onnxruntime-web@" in caplog.text and calls[1][-1].startswith("onnxruntime-web@")
    runtime.find(None, ["wasm"], False)
    assert len(calls) == 2
