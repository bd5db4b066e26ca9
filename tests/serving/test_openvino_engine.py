"""OpenVINO computes what Keras computes, of every kind of model, for whoever asks for it by one argument."""

import concurrent.futures
import importlib.util
import logging
import sys
import types

import keras
import numpy as np
import pytest
from small_models import KINDS, every_weight, pixels

from keras_vit.serving import openvino_engine, runner
from keras_vit.serving.http import served
from keras_vit.serving.http.served import DEFAULT, Served

pytestmark = pytest.mark.usefixtures("openvino")


@pytest.fixture(scope="module")
def fast():
    """A model's runner."""
    return runner(every_weight(), "openvino")


def test_nothing_is_sent_to_anyone(openvino):
    """OpenVINO's telemetry sends the options of each conversion; without that library it uses a stub."""
    assert importlib.util.find_spec("openvino_telemetry"), "a part of OpenVINO"
    assert openvino.tools.ovc.convert_impl.tm.__name__ == "openvino.tools.ovc.telemetry_stub"
    assert "openvino_telemetry" not in sys.modules, "other programs can still import it"


def test_logs_keep_their_form(monkeypatch, tmp_path):
    """OpenVINO takes absl's handler from the root logger, which prints lines in another form without it."""
    (tmp_path / "openvino.py").write_text("import logging\nlogging.root.handlers.clear()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("openvino", "openvino_telemetry"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = [*logging.root.handlers, handler := logging.NullHandler()]
    logging.root.addHandler(handler)
    try:
        assert openvino_engine.import_openvino().__file__ == str(tmp_path / "openvino.py")
        assert logging.root.handlers == before
    finally:
        logging.root.removeHandler(handler)


def test_all_runners_share_one_core(monkeypatch, openvino):
    """Two that overlap leave a process that the next signal kills."""
    _, core = openvino_engine._openvino("openvino")
    monkeypatch.delattr(openvino, "Core")
    assert openvino_engine._openvino("openvino")[1] is core


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.extended) for kind in KINDS[1:])])
def test_outputs_are_those_of_keras_in_batches_of_any_size(kind):
    model = every_weight(**kind)
    run = runner(model, "openvino")
    for n in (5, 1):
        logits, found = model(pixels(n)).numpy(), run(pixels(n))
        assert found.dtype == np.float32 and np.linalg.norm(found - logits) < 1e-5 * np.linalg.norm(logits), n
    np.testing.assert_array_equal(run(pixels(3).astype("uint8")), run(np.floor(pixels(3))))


@pytest.mark.extended
def test_outputs_have_the_models_structure_and_the_weights_of_their_time():
    vit = every_weight(classes=None)
    model = keras.Model(vit.input, {"b": vit.output, "a": [keras.ops.mean(vit.output), vit.output * 2]})
    run, expected = runner(model, "openvino"), model(pixels(2))
    found = run(pixels(2))
    keras.tree.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), found, expected)
    vit.set_weights([0 * weight for weight in vit.get_weights()])
    np.testing.assert_array_equal(run(pixels(2))["b"], found["b"])


@pytest.mark.extended
def test_several_threads_have_their_own_answers(fast):
    images = pixels(8)
    alone = [fast(images[i : i + 1]) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(lambda i: fast(images[i % 8, None]), range(64))):
            np.testing.assert_array_equal(found, alone[i % 8])


def test_what_cannot_be_computed_is_refused(monkeypatch):
    model = every_weight()
    with pytest.raises(ValueError, match='Unknown engine "openvin".*Did you mean "openvino"'):
        runner(model, "openvin")
    with pytest.raises(ValueError, match='computes in bfloat16. Load it with dtype="float32"'):
        runner(every_weight(dtype="mixed_bfloat16"), "openvino")
    with pytest.raises(ValueError, match="one input of images of fixed size"):
        runner(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), "openvino")
    quantised = every_weight()
    quantised.quantize("int8")
    with pytest.raises(ValueError, match="quantised by Keras"):
        runner(quantised, "openvino")
    monkeypatch.setattr(openvino_engine.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        runner(model, "openvino")


@pytest.mark.extended
def test_operations_that_openvino_does_not_have_are_named():
    with pytest.raises(ValueError, match="OpenVINO cannot compute.*operations: Bitcast. Leave the engine out"):
        runner(every_weight(token_merging=1), "openvino")


@pytest.mark.extended
def test_bfloat16_is_bfloat16_or_refused():
    """A processor without such instructions would silently compute in float32."""
    model = every_weight()
    if "BF16" not in openvino_engine.openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(ValueError, match='no instructions for bfloat16.*engine="openvino"'):
            runner(model, "openvino_bfloat16")
        return
    logits, found = model(pixels(5)).numpy(), runner(model, "openvino_bfloat16")(pixels(5))
    assert 1e-6 < np.linalg.norm(found - logits) / np.linalg.norm(logits) < 0.05


@pytest.mark.extended
def test_another_function_is_not_taken_for_the_model(monkeypatch):
    core = openvino_engine.openvino_core()

    def compile_model(model, *arguments):
        compiled = core.compile_model(model, *arguments)

        def shifted(inputs):
            return {"output_0": compiled.infer_new_request(inputs)["output_0"] + 0.1}

        return types.SimpleNamespace(infer_new_request=shifted)

    monkeypatch.setattr(openvino_engine, "openvino_core", lambda: types.SimpleNamespace(compile_model=compile_model))
    with pytest.raises(ValueError, match="output_0: the outputs of OpenVINO differ from the model's by"):
        runner(every_weight(), "openvino")


def test_the_service_answers_the_same_by_either_engine(monkeypatch):
    """Here Keras stands for the engine, and the tests above for its numbers."""

    def on_keras(part, engine):
        assert engine == "openvino" and not part.check_pixels
        return lambda images: keras.tree.map_structure(np.asarray, part(images))

    monkeypatch.setattr(served, "runner", on_keras)
    model, images = every_weight(), np.floor(pixels(3)).astype("uint8")
    plain, fast = Served("m", model), Served("m", model, engine="openvino")
    assert set(plain.signatures) == set(fast.signatures)
    for one, other in zip(plain.signatures[DEFAULT](images), fast.signatures[DEFAULT](images)):
        assert one["classes"] == other["classes"]
        np.testing.assert_allclose(one["probabilities"], other["probabilities"], atol=1e-5)
    for one, other in zip(plain.signatures["encoded_features"](images), fast.signatures["encoded_features"](images)):
        np.testing.assert_allclose(one["features"], other["features"], atol=1e-4)
