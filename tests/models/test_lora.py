"""LoRA: what trains, files, clones and merging; what would learn nothing, or be lost, is refused."""

import keras
import numpy as np
import pytest
from interpreters import Interpreter

import keras_vit
from keras_vit.checkpoints import transfer
from keras_vit.layers.dense import dense_config
from keras_vit.models import enable_lora, freeze, freeze_all_but_head, merge_lora
from keras_vit.optim import AdamW
from keras_vit.training import SoftmaxCrossEntropy

QUERIES = [f"block_{i:02d}/attention/{name}" for i in range(2) for name in ("query", "value")]
LORA = {f"{path}/lora_kernel_{ab}" for path in QUERIES for ab in "ab"}
LORA_OF_ONE = {path for path in LORA if "block_00" in path}  # in a model of one block
HEAD = {"head/kernel", "head/bias"}


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def trained(model, pixels, steps=2):
    """The paths of the weights that a few steps change."""
    eagerly = keras.backend.backend() == "tensorflow"
    model.compile(AdamW(1e-2, decay=0.1), SoftmaxCrossEntropy(), run_eagerly=eagerly, jit_compile=not eagerly)
    before = {w.path: w.numpy() for w in model.weights}
    model.fit(pixels, np.arange(4) % 2, epochs=steps, verbose=0)
    return {w.path for w in model.weights if (w.numpy() != before[w.path]).any()}


def paths(weights):
    return {w.path for w in weights}


@pytest.mark.extended
def test_it_starts_as_the_model_and_trains_itself_and_the_head(tiny, pixels):
    model = tiny()
    before = outputs(model, pixels)
    assert model.enable_lora(4) == sorted(QUERIES)
    np.testing.assert_array_equal(outputs(model, pixels), before)
    assert paths(model.trainable_weights) == LORA | HEAD
    assert model.get_layer("block_00").attention.query.lora_kernel_a.shape == (16, 4)
    assert trained(model, pixels) == LORA | HEAD
    assert (outputs(model, pixels) != before).any()


@pytest.mark.extended
def test_predict_sees_what_was_learned_though_it_was_compiled_before(tiny, pixels):
    model = tiny(depth=1)
    model.predict(pixels, verbose=0)
    model.enable_lora(2)
    trained(model, pixels)
    np.testing.assert_allclose(model.predict(pixels, verbose=0), outputs(model, pixels), atol=1e-5)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("mlp/*", [f"{part}/mlp/{layer}" for part in ("block_00", "block_01", "pool") for layer in ("hidden", "out")]),
        (["block_01/*/out"], ["block_01/attention/out", "block_01/mlp/out"]),
        (
            ["attention/out", "block_00/attention/k*"],
            ["block_00/attention/key", "block_00/attention/out", "block_01/attention/out"],
        ),
        ("*", None),
    ],
)
def test_targets_are_patterns_on_paths(tiny, targets, expected):
    found = tiny(pool="map").enable_lora(2, targets)
    assert found == expected or (expected is None and len(found) == 18)


@pytest.mark.extended
def test_alpha_scales_what_is_learned(tiny, pixels):
    outs = []
    for alpha in (None, 2, 8):
        model = tiny(depth=1)
        before = outputs(model, pixels)
        model.enable_lora(2, alpha=alpha)
        for weight in model.weights:
            if "lora" in weight.path:
                weight.assign(np.random.default_rng(0).normal(size=weight.shape) * 1e-3)
        outs.append(outputs(model, pixels) - before)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_allclose(outs[2], 4 * outs[0], atol=1e-4)


def nested(vit):
    image = keras.Input((8, 12, 3))
    return keras_vit.Model(image, keras.layers.Dense(2, name="mine")(vit(image)))


def with_head(vit):
    return vit.with_head(keras.layers.Dense(2, name="mine"))


@pytest.mark.parametrize(
    ("make", "mode"), [(with_head, "int8"), pytest.param(nested, None, marks=pytest.mark.extended)]
)
def test_files_and_clones_go_on_as_they_were(tiny, pixels, tmp_path, make, mode):
    model = make(tiny(depth=1))
    if mode:
        model.quantize(mode)
    enable_lora(model, 2, ["query", "mlp/out"], alpha=4)
    trained(model, pixels, steps=1)
    expected, trainable = outputs(model, pixels), paths(model.trainable_weights)
    model.save(tmp_path / "m.keras")
    for other in (keras_vit.load(tmp_path / "m.keras"), keras.saving.load_model(tmp_path / "m.keras"), model.clone()):
        np.testing.assert_array_equal(outputs(other, pixels), expected)
        assert paths(other.trainable_weights) == trainable
    assert trained(other, pixels) == trainable


@pytest.mark.extended
def test_a_model_in_keras_of_its_blocks_keeps_it(tiny, pixels, tmp_path):
    vit = tiny(depth=1)
    model = keras.Model(vit.input, keras.layers.Dense(2, name="mine")(vit.features))
    enable_lora(model, 2)
    for weight in model.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    model.save(tmp_path / "m.keras")
    other = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(other, pixels), outputs(model, pixels))
    assert (
        paths(other.trainable_weights) == paths(model.trainable_weights) == LORA_OF_ONE | {"mine/kernel", "mine/bias"}
    )


@pytest.mark.extended
def test_merging_gives_an_ordinary_model(tiny, pixels, tmp_path):
    model = tiny(depth=1)
    plain = paths(model.weights)
    model.enable_lora(4, "*", alpha=16)
    trained(model, pixels)
    expected = outputs(model, pixels)
    model.merge_lora()
    np.testing.assert_allclose(outputs(model, pixels), expected, atol=1e-5)
    assert paths(model.weights) == paths(model.trainable_weights) == plain
    assert "lora" not in model.get_config()
    keras_vit.save(model, tmp_path / "m.npz")
    loaded = keras_vit.load(tmp_path / "m.npz", image_size=(8, 12))
    np.testing.assert_allclose(outputs(loaded, pixels), outputs(model, pixels), atol=1e-5)
    with pytest.raises(ValueError, match='"vit" has no LoRA'):
        merge_lora(model)
    model.enable_lora(2)  # again


@pytest.mark.extended
def test_a_quantised_kernel_is_merged_by_quantising_it_again(tiny, pixels):
    model = tiny(depth=1)
    model.quantize("int8")
    model.enable_lora(4)
    assert paths(model.trainable_weights) == LORA_OF_ONE  # the head is in int8
    assert trained(model, pixels) == LORA_OF_ONE
    expected = outputs(model, pixels)
    model.merge_lora()
    assert "lora" not in model.get_config() and len(model.get_config()["quantization"]) == 7
    assert np.abs(outputs(model, pixels) - expected).max() < 0.03 * np.abs(expected).max()


def test_lora_trains_alone_in_either_order(tiny):
    model = tiny(depth=1)
    model.enable_lora(2)
    model.quantize("int8")
    assert paths(model.trainable_weights) == LORA_OF_ONE


def test_merging_rounds_nothing_under_mixed_precision(tiny):
    model = tiny(depth=1, dtype="mixed_bfloat16")
    query = model.get_layer("block_00").attention.query
    before = query.kernel.numpy()
    model.enable_lora(2)
    model.merge_lora()  # of zeros
    np.testing.assert_array_equal(query.kernel.numpy(), before)


def test_other_formats_want_it_merged(tiny, tmp_path):
    model = tiny(depth=1)
    model.enable_lora(2)
    with pytest.raises(ValueError, match=r'The format "timm" needs plain kernels.*Write model.merge_lora\(\) first'):
        keras_vit.save(model, tmp_path / "t", "timm")
    with pytest.raises(ValueError, match="Another .* needs plain kernels"):
        transfer(model, head="drop")


def test_the_weights_of_the_model_before_load_into_it(tiny, pixels, tmp_path):
    start = tiny(depth=1)
    start.save_weights(tmp_path / "w.weights.h5")
    model = tiny(depth=1)
    model.get_layer("block_00").attention.query.kernel.assign(np.zeros((16, 16)))
    model.enable_lora(2)
    model.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(outputs(model, pixels), outputs(start, pixels))
    assert np.any(model.get_layer("block_00").attention.query.lora_kernel_a)  # two matrices of zeros would never learn


def test_frozen_layers_and_lora(tiny):
    model = tiny()
    freeze_all_but_head(model)
    model.enable_lora(2)  # trains though its layers were frozen
    assert paths(model.trainable_weights) == LORA | HEAD
    freeze(model, ["block_00"])
    assert paths(model.trainable_weights) == {path for path in LORA if "block_01" in path} | HEAD
    model.trainable = False
    model.trainable = True  # the kernel beside a LoRA stays frozen
    trainable = paths(model.trainable_weights)
    assert LORA < trainable and not {f"{path}/kernel" for path in QUERIES} & trainable
    model = tiny()
    model.trainable = False
    model.enable_lora(2)
    assert paths(model.trainable_weights) == LORA | HEAD


def test_its_matrices_decay_as_kernels_do(tiny):
    model = tiny(depth=1)
    model.enable_lora(2, "query")
    optimizer = AdamW(1.0, decay=0.5)
    optimizer.build(model.trainable_variables)
    b = model.get_layer("block_00").attention.query.lora_kernel_b
    b.assign(np.ones(b.shape))
    optimizer.apply([keras.ops.zeros(v.shape) for v in model.trainable_variables])
    np.testing.assert_allclose(b, 0.5 * np.ones(b.shape))
    np.testing.assert_array_equal(model.get_layer("head").bias, np.zeros(5))


def test_mistakes_are_refused(tiny):
    model = tiny(depth=1)
    with pytest.raises(
        ValueError, match='No dense layer matches the target "qkv". They are: attention/key, attention/out'
    ):
        model.enable_lora(2, ["query", "qkv"])
    for rank in (0, -1, 2.5, True, "2"):
        with pytest.raises(ValueError, match="rank must be a positive integer"):
            model.enable_lora(rank)
    with pytest.raises(ValueError, match="targets is empty"):
        model.enable_lora(2, [])
    assert not dense_config(model)
    model.enable_lora(np.int64(2))
    with pytest.raises(ValueError, match="has LoRA already. Merge it first"):
        model.enable_lora(2)
    with pytest.raises(ValueError, match="float8 does not support LoRA"):
        model.quantize("float8")
    with pytest.raises(ValueError, match="LoRA does not go with float8"):
        other = tiny(depth=1)
        other.quantize("float8")
        other.enable_lora(2)
    with pytest.raises(ValueError, match="has no dense layers before its head"):
        keras_vit.BiT("R26x1", image_size=32, classes=2, units=(1,)).enable_lora(2)


def trained_here(path, images):
    """A model with LoRA from a file, trained a little: (what changed, the outputs of its merged clone, its own)."""
    x = np.load(images)
    model = keras_vit.load(path)
    changed = trained(model, x, steps=1)
    merged = model.clone()
    merged.merge_lora()
    return sorted(changed), merged.predict(x, verbose=0).tolist(), model.predict(x, verbose=0).tolist()


@pytest.mark.processes
def test_it_trains_and_merges_on_jax(tiny, pixels, tmp_path):
    model = tiny(depth=1)
    model.enable_lora(2)
    # B starts at zeros, and A has no gradient then.
    model.get_layer("block_00").attention.query.lora_kernel_b.assign(np.ones((2, 16)))
    model.get_layer("block_00").attention.value.lora_kernel_b.assign(np.ones((2, 16)))
    model.save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", pixels)
    with Interpreter("jax") as jax:
        changed, merged, own = jax.run(trained_here, str(tmp_path / "m.keras"), str(tmp_path / "x.npy"))
    assert set(changed) == LORA_OF_ONE | HEAD
    np.testing.assert_allclose(merged, own, atol=1e-5)
