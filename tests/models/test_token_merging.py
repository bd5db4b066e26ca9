"""Token merging (ToMe, arXiv 2210.09461): equal to the paper's algorithm in NumPy and to the authors' code; what it
goes with and what not.
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import signatures_of

import keras_vit
from keras_vit.layers.blocks import token_merging
from keras_vit.models import encode, make_spec
from keras_vit.models.encoder import reductions

# DeiT-Ti/16's logits of classes 281, 282, 285, 797 and 811 for cats_expected.npz's pixels, by the authors' code
# (facebookresearch/ToMe, apply_patch) on timm 1.0.31's deit_tiny_patch16_224 and torch 2.13.0. At 16 the last blocks
# have fewer than 32 patches left.
CLASSES = [281, 282, 285, 797, 811]
AUTHORS = [7.207352, 7.202516, 7.501068, 2.509675, 2.934710]
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def merged_by_hand(x, sizes, metric, r, prefix):
    """Tokens (n, d), sizes (n,) and what is compared (n, c), merged pair by pair as section 3 describes it."""
    unit = metric / np.linalg.norm(metric, axis=1, keepdims=True)
    a, b = ([i for i in range(prefix, len(x)) if i % 2 == parity] for parity in (0, 1))
    nearest = {i: max(b, key=lambda j, i=i: float(unit[i] @ unit[j])) for i in a}
    chosen = sorted(a, key=lambda i: -float(unit[i] @ unit[nearest[i]]))[:r]
    sums, counts = x * sizes[:, None], sizes.astype(float)
    for i in chosen:
        sums[nearest[i]] += x[i] * sizes[i]
        counts[nearest[i]] += sizes[i]
    order = [*range(prefix), *(i for i in a if i not in chosen), *b]
    return sums[order] / counts[order][:, None], counts[order]


def block_by_hand(block, x, sizes):
    """What a block does to one image's tokens (n, d), from its weights, in float64."""
    weights = {
        w.path.split("/", 1)[1] if w.path.count("/") > 1 else w.path: np.asarray(w, "float64") for w in block.weights
    }

    def norm(x, name):
        centred = x - x.mean(1, keepdims=True)
        return (
            centred / np.sqrt(centred.var(1, keepdims=True) + 1e-6) * weights[f"{name}/gamma"] + weights[f"{name}/beta"]
        )

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    n, k = len(x), block.attention.heads
    y = norm(x, "attention_norm")
    q, keys, v = (
        dense(y, f"attention/{name}").reshape(n, k, -1).transpose(1, 0, 2) for name in ("query", "key", "value")
    )
    scores = q @ keys.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + np.log(sizes)
    attention = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    x = x + dense((attention @ v).transpose(1, 0, 2).reshape(n, -1), "attention/out")
    x, sizes = merged_by_hand(x, sizes, keys.mean(0), block.merged, block.prefix)
    hidden = dense(norm(x, "mlp_norm"), "mlp/hidden")
    return x + dense(hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2, "mlp/out"), sizes


def shaken(model):
    """The model with weights that make tokens and their keys differ."""
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(np.asarray(weight) + rng.normal(size=weight.shape) / 3)
    return model


@pytest.mark.parametrize(
    "options",
    [{"registers": 2, "distillation_token": True}, {"pool": "gap"}],
    ids=["prefix", "no prefix"],
)
def test_blocks_are_equal_to_the_papers_algorithm_in_numpy(tiny, options):
    model = shaken(tiny("Ti/2", token_merging=5, depth=3, **options))  # 24 patches
    blocks = [model.get_layer(f"block_{i:02d}") for i in range(3)]
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3)).astype("float32")
    steps = keras.Model(
        model.input, [model.get_layer("embedding_dropout").output, *(block.output for block in blocks)]
    )(images)
    prefix = model.spec.prefix
    for image in range(3):
        x, sizes = np.asarray(steps[0][image], "float64"), np.ones(24 + prefix)
        for block, (tokens, counts) in zip(blocks, steps[1:]):
            x, sizes = block_by_hand(block, x, sizes)
            np.testing.assert_array_equal(counts[image], sizes)
            np.testing.assert_allclose(tokens[image], x, atol=3e-5, rtol=1e-5)
        assert sizes.sum() == 24 + prefix and len(x) == 24 + prefix - 15
        np.testing.assert_array_equal(sizes[:prefix], 1)


@pytest.mark.extended
def test_deit_gives_the_logits_of_the_authors_code(shared_data, of_deit):
    model = keras_vit.load(shared_data / "deit_tiny" / "model.safetensors", token_merging=16, **of_deit)
    pixels = np.load(shared_data / "deit_tiny" / "cats_expected.npz")["pixels"]
    logits = np.asarray(model(((pixels * STD + MEAN) * 255).astype("float32")))[0]
    np.testing.assert_allclose(logits[CLASSES], AUTHORS, atol=1e-4)


def test_pooling_counts_each_token_as_often_as_it_is_large():
    rng = np.random.default_rng(0)
    x, sizes = (
        rng.normal(size=(2, 6, 16)).astype("float32"),
        np.array([[1, 3, 1, 1, 2, 4], [1, 1, 1, 1, 1, 1]], "int32"),
    )
    repeated = np.repeat(x[0], sizes[0], axis=0)[None]
    for layer in (keras_vit.layers.MeanPooling(1), keras_vit.layers.AttentionPooling(2, 8)):
        pooled = np.asarray(layer(x, sizes=sizes))
        np.testing.assert_allclose(pooled[:1], layer(repeated), atol=1e-6)
        np.testing.assert_allclose(pooled[1:], layer(x[1:]), atol=1e-6)
    masked = keras_vit.layers.MeanPooling(1)(x[:1], mask=np.array([[1, 1, 0, 1, 1, 0]]), sizes=sizes[:1])
    np.testing.assert_allclose(masked[0], (3 * x[0, 1] + x[0, 3] + 2 * x[0, 4]) / 6, atol=1e-6)


@pytest.mark.extended
def test_without_differences_merging_changes_nothing():
    """Where all patches are the same, each is the mean of any of them, and sizes restore how many there are."""
    keras.utils.set_random_seed(0)
    plain = keras_vit.ViT(
        "Ti/4", image_size=16, depth=3, width=16, heads=2, mlp_dim=32, classes=5, positions="sincos2d", pool="gap"
    )
    plain = shaken(plain)
    merging_model = keras_vit.checkpoints.transfer(plain, token_merging=4)
    table = plain.get_layer("position_embedding")
    images = np.full((1, 16, 16, 3), 77.0, "float32")
    for model in (plain, merging_model):
        model.get_layer("position_embedding").embedding = np.zeros_like(table.embedding)
    np.testing.assert_allclose(merging_model(images), plain(images), atol=1e-5)


def test_how_many_patches_each_block_merges(tiny):
    spec = make_spec("Ti/16", token_merging=16)
    assert [reduction.merged for reduction in reductions(spec, 196)] == [16] * 11 + [10]
    assert make_spec("Ti/16", token_merging=0) == make_spec("Ti/16") == make_spec("Ti/16", token_merging=[0] * 12)
    given = make_spec("Ti/16", token_merging=[98] + [0] * 10 + [np.int64(49)])
    assert [reduction.merged for reduction in reductions(given, 196)] == [98] + [0] * 10 + [49]
    for merging, message in (
        (13, "token_merging=13: block 0 has 24 patches, and can merge at most half of them, 12"),
        ((12, 7), r"token_merging=\(12, 7\): block 1 has 12 patches, and can merge at most half of them, 6"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny("Ti/2", token_merging=merging)


def test_what_needs_the_grid_or_masks_is_refused(tiny, pixels):
    model = tiny("Ti/2", token_merging=4)
    for needs_grid in (
        model.feature_map,
        lambda: model.feature_map([0]),
        lambda: keras_vit.inspection.attention_weights(model, pixels),
        lambda: keras_vit.inspection.attention_maps(model, pixels),
        lambda: model.with_head(keras.layers.Conv2D(2, 1), on="feature_map"),
    ):
        with pytest.raises(ValueError, match="no map of the image. Load it with token_merging=None"):
            needs_grid()
    tokens, mask = keras.Input((7, 192)), keras.Input((7,), dtype="bool")
    with pytest.raises(ValueError, match="encode takes no mask with token_merging"):
        encode(tokens, make_spec("Ti/16", token_merging=1), mask=mask)
    masked = keras.layers.Embedding(9, 192, mask_zero=True)(keras.Input((7,)))
    with pytest.raises(ValueError, match="ReducingBlock does not support masks"):
        encode(masked, make_spec("Ti/16", token_merging=1))
    with pytest.raises(ValueError, match="need a fixed number of tokens"):
        encode(keras.Input((None, 192)), make_spec("Ti/16", token_merging=1))


@pytest.mark.extended
def test_loading_turns_it_on_and_off_and_exports_keep_it(tiny, tmp_path, pixels, eagerly):
    plain = tiny("Ti/2")
    keras_vit.save(plain, tmp_path / "plain.keras")
    model = keras_vit.load(tmp_path / "plain.keras", token_merging=(5, 2))
    assert model.tokens.shape == (None, 25 - 7, 16)
    expected = np.asarray(model(pixels))
    assert np.abs(expected - np.asarray(plain(pixels))).max() > 1e-4
    served = signatures_of(model)["pixels"](tf.constant(pixels, tf.float32))["logits"]
    np.testing.assert_allclose(served, expected, atol=1e-5)
    keras_vit.save(model, tmp_path / "merging.keras")
    back = keras_vit.load(tmp_path / "merging.keras", token_merging=None)
    np.testing.assert_array_equal(back(pixels), plain(pixels))


def test_sixteen_bits_stay_near(tiny, pixels):
    full, half = (shaken(tiny("Ti/2", token_merging=3, dtype=which)) for which in ("float32", "mixed_bfloat16"))
    expected = np.asarray(full(pixels))
    assert np.abs(np.asarray(half(pixels)) - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.extended
def test_rematerialised_blocks_have_the_same_gradients(tiny, pixels):
    gradients = []
    for remat in (False, True):
        model = tiny("Ti/4", token_merging=1, remat=remat, pool="token_gap")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(pixels, training=True)))
        names = [v.path for v in model.trainable_variables]
        gradients.append(dict(zip(names, tape.gradient(loss, model.trainable_variables))))
    for name, gradient in gradients[0].items():
        assert np.isfinite(gradient).all(), name
        atol = 1e-3 * float(np.abs(gradient).max()) + 1e-4  # the keys' biases have none but rounding
        np.testing.assert_allclose(gradient, gradients[1][name], atol=atol, err_msg=name)


def test_equal_similarities_are_no_trouble():
    """Tokens that are all zeros are as similar as any."""
    matching = token_merging.match(np.zeros((1, 7, 4), "float32"), 2, 1)
    x, sizes = token_merging.merge(np.ones((1, 7, 2), "float32"), np.ones((1, 7), "int32"), matching)
    assert x.shape == (1, 5, 2) and int(np.sum(sizes)) == 7
    np.testing.assert_array_equal(x, 1)
