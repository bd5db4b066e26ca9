"""The field `attention` of a ViT: blocks, loading, costs and inspection."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.inspection import attention_maps, attention_weights
from keras_vit.layers import AxialBlock
from keras_vit.models import make_spec
from keras_vit.planning.model_counts import count, forward_flops
from keras_vit.pretraining import pixel_sampling

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time
SIZES = {"depth": 2, "width": 8, "heads": 2, "mlp_dim": 8, "classes": 3, "image_size": (12, 20)}


def made(attention, **options):
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/4", **{**SIZES, "attention": attention, "registers": 1, **options})  # 3 x 5 patches
    rng = np.random.default_rng(1)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    return model


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (2, 12, 20, 3), dtype="uint8")


@pytest.fixture(scope="module")
def windowed():
    return made("window(2, global=(1,))")


@pytest.fixture(scope="module")
def axial():
    return made("axial")


def test_a_window_that_covers_the_map_is_attention_among_all(images):
    np.testing.assert_allclose(made("window(9)")(images), made("global")(images), atol=1e-5)


def test_blocks_that_are_global_attend_to_all(windowed, images):
    weights = attention_weights(windowed, images)
    patches = weights[0][0, 0, 2:, 2:]
    np.testing.assert_array_equal(patches[0] > 0, np.isin(np.arange(15), [0, 1, 5, 6]))
    assert (weights[1] > 0).all() and (weights[0][:, :, :2] > 0).all() and (weights[0][..., :2] > 0).all()
    np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-5)


def test_an_axial_block_shows_the_heads_of_rows_then_those_of_columns(axial, images):
    weights = attention_weights(axial, images, blocks=[0])[0]
    assert weights.shape == (2, 4, 17, 17)
    row, column = (weights[0, head, 2 + 7, 2:] > 0 for head in (0, 2))  # of the patch in row 1, column 2
    np.testing.assert_array_equal(row, np.arange(15) // 5 == 1)
    np.testing.assert_array_equal(column, np.arange(15) % 5 == 2)
    assert attention_maps(axial, images).shape == (2, 3, 5)


@pytest.mark.extended
def test_trained_weights_take_another_pattern_but_not_axial(images, tmp_path):
    model = made("global")
    keras_vit.save(model, tmp_path / "model.keras")
    loaded = keras_vit.load(tmp_path / "model.keras", attention="window(2, global=1)")
    assert loaded.spec.attention == "window(2, global=(1,))"
    expected = made("window(2, global=(1,))")
    expected.set_weights(model.get_weights())
    np.testing.assert_array_equal(loaded(images), expected(images))
    with pytest.raises(ValueError, match="attention"):
        keras_vit.load(tmp_path / "model.keras", attention="axial")


def products(block, n):
    """The operations of a block's matrix products for one image, counted in its graph."""
    call = tf.function(lambda x: block(x)).get_concrete_function(tf.TensorSpec((1, n, SIZES["width"])))
    found = (op for op in call.graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2"))
    return sum(2 * np.prod(op.outputs[0].shape) * op.inputs[0].shape[-1] for op in found)


@pytest.mark.extended
@pytest.mark.parametrize("attention", ["window(2, global=(1,))", "axial", "strided", "fixed(4, 2)", "local(3)"])
def test_the_count_is_of_the_products_of_the_graph(attention):
    tf.config.run_functions_eagerly(False)
    model = keras_vit.ViT("Ti/4", **SIZES, attention=attention, registers=1)
    blocks = {layer.name: layer for layer in model.layers if layer.name.startswith("block_")}
    rows = {row.name: row.flops for row in count(model) if row.name in blocks}
    assert rows == {name: products(block, 17) for name, block in blocks.items()}


def test_each_window_has_its_own_tokens_before_the_patches():
    spec = make_spec("S/16", windows=2, registers=3)
    assert (spec.window_prefix, spec.prefix) == (4, 16)


def test_windows_and_axes_cost_less():
    names = ("global", "window(16)", "axial")
    flops = {name: forward_flops(make_spec("B/16", attention=name), (1024, 1024)) for name in names}
    attention = 12 * 4 * 4096 * 4096 * 768
    assert flops["global"] - flops["window(16)"] == pytest.approx(attention * (1 - 1 / 16), rel=0.01)
    rest = flops["global"] - attention
    assert flops["axial"] == pytest.approx(2 * rest + 2 * attention / 64, rel=0.02)


def test_axial_blocks_learn_in_both_halves(axial, images):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(axial(images, training=True) ** 2)
    kernels = [weight for weight in axial.trainable_variables if weight.name == "kernel"]
    gradients = tape.gradient(loss, [weight.value for weight in kernels])
    assert isinstance(axial.get_layer("block_00"), AxialBlock)
    assert len(kernels) == 2 + 2 * 2 * 6  # patches and head; two blocks of two halves
    assert all(np.abs(np.array(gradient)).max() > 0 for gradient in gradients)


@pytest.mark.extended
def test_an_image_gpt_with_a_pattern_sees_no_later_pixel_and_samples():
    model = keras_vit.ImageGPT("Ti/1", (3, 4), palette=4, depth=1, width=8, heads=2, mlp_dim=8, attention="strided")
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    images = rng.integers(0, 256, (2, 3, 4, 3), dtype="uint8")
    expected = np.array(model(images))
    changed = images.copy()
    changed[:, 1, 1] = 255 - changed[:, 1, 1]  # pixel 5, the token of place 6, which places 6 to 10 attend to
    moved = (np.array(model(changed)) != expected).any(axis=(0, 2))
    np.testing.assert_array_equal(moved, np.isin(np.arange(12), range(6, 11)))
    colors, cache = model.colors(images), pixel_sampling.empty_cache(model, 2)
    for place in range(12):
        logits, cache = pixel_sampling.next_logits(model, place, colors[:, max(place - 1, 0)], cache)
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-5)


def test_models_that_need_all_patches_refuse_a_pattern(windowed):
    with pytest.raises(ValueError, match=r'attention="window\(2, global=\(1,\)\)" needs all patches in their places'):
        keras_vit.MaskedAutoencoder(windowed.spec, image_size=(12, 20))
