"""Quantised models: every dense kernel, saved, loaded, cloned, built on; what cannot be is refused."""

import warnings

import keras
import numpy as np
import pytest
from interpreters import Interpreter

import keras_vit
from keras_vit.checkpoints import transfer
from keras_vit.layers.dense import dense_config
from keras_vit.models import freeze_all_but_head

BLOCK = {"attention/key", "attention/out", "attention/query", "attention/value", "mlp/hidden", "mlp/out"}


def quantized(model, mode="int8", **options):
    """The model, quantised; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # Keras names every layer that it leaves as it is
        model.quantize(mode, **options)
    return model


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def kernels(model):
    """{path: dtype of the kernel} of the model's dense layers."""
    return {
        v.path.rpartition("/")[0]: v.dtype for v in model.weights if v.path.endswith("/kernel") and len(v.shape) == 2
    }


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (
            {"pool": "map", "pre_logits": 8, "mlp_form": "swiglu", "qkv_bias": False},
            {"pre_logits", *(f"pool/{name}" for name in ("query", "key", "value", "out", "mlp/hidden", "mlp/out"))},
        ),
        ({"distillation_token": True}, {"head_dist"}),
    ],
)
def test_every_dense_kernel_is_int8_at_once_after_loading(tiny, tmp_path, options, more):
    keras_vit.save(tiny(depth=1, **options), tmp_path / "m.keras")
    model = quantized(keras_vit.load(tmp_path / "m.keras"))
    expected = {f"block_00/{name}" for name in BLOCK} | {"head"} | more
    assert kernels(model) == dict.fromkeys(expected, "int8")
    assert model.get_layer("patch_encoder").kernel.dtype == "float32"


@pytest.mark.parametrize(
    ("mode", "near"),
    [("int8", 0.02), *(pytest.param(mode, 0.2, marks=pytest.mark.extended) for mode in ("int4", "float8"))],
)
def test_outputs_stay_near_and_survive_files_and_clones(tiny, pixels, tmp_path, mode, near):
    model = tiny(pool="map", pre_logits=8)
    before = outputs(model, pixels)
    after = outputs(quantized(model, mode), pixels)
    assert 0 < np.abs(after - before).max() / np.abs(before).max() < near
    keras_vit.save(model, tmp_path / "m.keras")
    for other in (model.clone(), keras_vit.load(tmp_path / "m.keras"), keras.saving.load_model(tmp_path / "m.keras")):
        np.testing.assert_array_equal(outputs(other, pixels), after)
        assert dense_config(other) == dense_config(model) and other is not model
        assert [v.dtype for v in other.weights] == [v.dtype for v in model.weights]


@pytest.mark.extended
@pytest.mark.parametrize(
    "config",
    [
        keras.quantizers.Int8QuantizationConfig(activation_quantizer=None),
        keras.quantizers.Int4QuantizationConfig(block_size=8),
    ],
    ids=["weights alone", "blocks"],
)
def test_the_options_of_a_quantisation_are_kept(tiny, pixels, tmp_path, config):
    model = quantized(tiny(depth=1), None, config=config)
    model.save(tmp_path / "m.keras")
    for other in (keras_vit.load(tmp_path / "m.keras"), model.clone()):
        np.testing.assert_array_equal(outputs(other, pixels), outputs(model, pixels))


def nested(vit):
    image = keras.Input((8, 12, 3))
    return keras_vit.Model(image, keras.layers.Dense(2, name="mine")(vit(image)))


def with_head(vit):
    return vit.with_head(keras.layers.Dense(3, name="mine"))


def of_keras(vit):
    return keras.Model(vit.input, keras.layers.Dense(3, name="mine")(vit.features))


@pytest.mark.extended
@pytest.mark.parametrize(("make", "mode"), [(with_head, "int8"), (nested, "int4"), (of_keras, "float8")])
def test_models_built_on_a_vit(tiny, pixels, tmp_path, make, mode):
    model = make(tiny(depth=1))
    if isinstance(model, keras_vit.Model):
        quantized(model, mode)
    else:
        # Shares the layers; Keras' own quantize warns of all others.
        quantized(keras_vit.Model(model.input, model.output), mode)
    expected = outputs(model, pixels)
    assert {d for d in kernels(model).values()} == {"int8" if mode != "float8" else "float32"}
    model.save(tmp_path / "m.keras")
    others = [keras.saving.load_model(tmp_path / "m.keras")]
    if isinstance(model, keras_vit.Model):
        others += [keras_vit.load(tmp_path / "m.keras"), model.clone()]
    for other in others:
        np.testing.assert_array_equal(outputs(other, pixels), expected)


def test_a_block_alone_returns_from_its_config():
    block = keras_vit.layers.TransformerBlock(heads=2, mlp_dim=8)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    block(x)
    block.attention.query.quantize("int8")
    assert block.get_config()["quantization"] == {"attention/query": "int8"}
    other = keras_vit.layers.TransformerBlock.from_config(block.get_config())
    assert other.get_config() == block.get_config()  # before it is built, too
    other(x)
    assert other.attention.query.quantization_mode == "int8" and other.attention.key.quantization_mode is None
    other.set_weights(block.get_weights())
    np.testing.assert_array_equal(other(x), block(x))


def test_filters_choose_by_name_and_the_rest_can_follow(tiny):
    model = quantized(tiny(depth=1), filters=["query", "key"])
    assert sorted(dense_config(model)["quantization"]) == ["block_00/attention/key", "block_00/attention/query"]
    quantized(model, "int4")
    assert set(dense_config(model)["quantization"].values()) == {"int8", "int4"}


def test_what_cannot_be_quantised_or_changed_is_refused(tiny, tmp_path):
    model = tiny(depth=1)
    with pytest.raises(ValueError, match='unknown mode "gptq". Valid: int8, int4, float8'):
        model.quantize("gptq")
    with pytest.raises(ValueError, match="filters='nothing' match none of head, hidden"):
        model.quantize("int8", filters="nothing")
    assert not dense_config(model)
    with pytest.raises(ValueError, match='"vit" is quantised already'):
        quantized(model).quantize("int8")
    with pytest.raises(ValueError, match='got float16. Load the model with dtype="mixed_bfloat16"'):
        tiny(depth=1, dtype="mixed_float16").quantize("int8")
    with pytest.raises(ValueError, match='"google" needs weights in floating point.*quantised .7 layers'):
        keras_vit.save(model, tmp_path / "m.npz")
    with pytest.raises(ValueError, match="Another .* needs weights in floating point"):
        transfer(model, image_size=16)
    keras_vit.save(model, tmp_path / "m.keras")
    with pytest.raises(ValueError, match="is quantised .7 layers.. Do it with the model that you quantised"):
        keras_vit.load(tmp_path / "m.keras", classes=2, head="reset")
    with pytest.raises(ValueError, match="consists of convolutions, which Keras does not quantise"):
        keras_vit.BiT("R26x1", image_size=32, classes=2, units=(1,)).quantize("int8")


def test_bfloat16_computes_in_int8_too(tiny, pixels):
    model = tiny(depth=1, dtype="mixed_bfloat16")
    before = outputs(model, pixels)
    assert np.abs(outputs(quantized(model), pixels) - before).max() < 0.05 * np.abs(before).max()


def fitted(model, pixels, run_eagerly=True):
    model.compile("sgd", "mse", run_eagerly=run_eagerly, jit_compile=False)
    before = {w.path: w.numpy() for w in model.weights}
    model.fit(pixels, np.ones((4, *model.output_shape[1:])), verbose=0)
    return {w.path for w in model.weights if (w.numpy() != before[w.path]).any()}


@pytest.mark.extended
def test_a_quantised_model_does_not_train_but_another_head_does(tiny, pixels):
    model = quantized(tiny(depth=1))
    with pytest.raises(ValueError, match="quantised to int8 do not learn: .* .7 in all"):
        fitted(model, pixels)
    other = model.with_head(keras.layers.Dense(2, name="mine"))
    freeze_all_but_head(other)
    assert fitted(other, pixels) == {"mine/kernel", "mine/bias"}


@pytest.mark.extended
def test_float8_trains_on_one_device(tiny, pixels):
    model = quantized(tiny(depth=1), "float8")
    changed = fitted(model, pixels, run_eagerly=False)  # Keras' own gradient of float8 fails eagerly
    assert {"head/kernel", "block_00/mlp/out/kernel", "block_00/mlp/out/inputs_amax_history"} <= changed
    model.micro_batches = 2
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="trains on one device and without micro_batches"):
        model.fit(pixels, np.ones((4, 5)), verbose=0)


@pytest.mark.extended
def test_the_deit_keeps_its_answers(shared_data, of_deit):
    """One photograph; benchmarks/quantization.py counts the hundred."""
    model = quantized(keras_vit.load(shared_data / "deit_tiny" / "model.safetensors", **of_deit))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = np.load(shared_data / "deit_tiny" / "cats_expected.npz")
    logits = outputs(model, ((expected["pixels"] * std + mean) * 255).astype("float32"))
    assert logits.argmax() == expected["logits"].argmax()
    assert np.corrcoef(logits[0], expected["logits"][0])[0, 1] > 0.995
    assert sum(v.dtype == "int8" for v in model.weights) == 12 * 6 + 1


def on_this_backend(path, images):
    """The outputs of a quantised model in a file, and of the same made here from its float model: lists."""
    x = np.load(images)
    model = quantized(keras_vit.load(f"{path}/float.keras"))
    model.save(f"{path}/again.keras")
    return [keras_vit.load(f"{path}/{name}.keras").predict(x, verbose=0).tolist() for name in ("int8", "again")]


@pytest.mark.processes
def test_files_go_from_one_backend_to_the_other(tiny, pixels, tmp_path):
    model = tiny(depth=1)
    model.save(tmp_path / "float.keras")
    quantized(model).save(tmp_path / "int8.keras")
    np.save(tmp_path / "x.npy", pixels)
    with Interpreter("jax") as jax:
        for found in jax.run(on_this_backend, str(tmp_path), str(tmp_path / "x.npy")):
            np.testing.assert_allclose(found, outputs(model, pixels), atol=1e-4)
