"""Swin and Swin V2: published sizes, windows by each library's rule, and what other parts of the package make of them.

Outputs of timm and transformers are in tests/checkpoints/goldens; files in both formats in test_roundtrip.py.
"""

import importlib

import keras
import numpy as np
import pytest
from small_models import signatures_of

import keras_vit
from keras_vit.checkpoints import transfer
from keras_vit.checkpoints.adapt import model_weights
from keras_vit.checkpoints.resample import resample_offsets
from keras_vit.inspection import attention_maps, attention_weights, head_maps, head_statistics, patch_distances
from keras_vit.inspection.model_page import inspect_model
from keras_vit.inspection.window_maps import each_window_attention
from keras_vit.layers import MultiHeadSelfAttention, WindowAttention
from keras_vit.layers.positions.continuous import log_offsets
from keras_vit.models import families, make_swin_spec
from keras_vit.models.swin_spec import make_stages
from keras_vit.optim.optimizers import layer_multipliers
from keras_vit.planning import model_counts

TINY = {"width": 8, "depths": (2, 1), "heads": 2, "window": 4}


@pytest.fixture(scope="module")
def models():
    """{version: a tiny model whose maps of 9x5 and 5x3 are padded, random weights in all layers}."""
    made = {}
    for version in ("Swin", "SwinV2"):
        keras.utils.set_random_seed(0)
        model = made[version] = keras_vit.Swin(f"{version}-T", image_size=(36, 18), classes=5, **TINY)
        for weight in model.trainable_variables:
            weight.assign(weight + 0.2 * np.random.default_rng(0).normal(size=weight.shape))
    return made


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (4, 36, 18, 3)).astype("float32")


@pytest.mark.parametrize(
    ("variant", "size", "expected"),
    [
        ("Swin-T", 224, 28_288_354),
        ("Swin-S", 224, 49_606_258),
        ("Swin-B", 224, 87_768_224),
        ("Swin-L", 224, 196_532_476),
        ("SwinV2-T", 256, 28_347_154),
        ("SwinV2-S", 256, 49_728_418),
        ("SwinV2-B", 256, 87_918_816),
        ("SwinV2-L", 256, 196_739_932),
    ],
)
def test_parameters_are_those_of_the_published_models(variant, size, expected):
    assert model_counts.parameters(model_counts.layer_counts(make_swin_spec(variant), size)) == expected


@pytest.mark.parametrize(
    ("variant", "window", "size", "gmacs"), [("Swin-B", 12, 384, 47.0), ("SwinV2-B", 8, 256, 20.3)]
)
def test_operations_are_those_of_the_papers(variant, window, size, gmacs):
    rows = model_counts.layer_counts(make_swin_spec(variant, window=window), size)
    assert abs(model_counts.flops(rows) / 2e9 - gmacs) < 0.1


@pytest.mark.parametrize("version", ["Swin", "SwinV2"])
def test_it_is_counted_as_it_is_built(version, models):
    model = models[version]
    rows = model_counts.layer_counts(model.spec, model.image_size, 5)
    assert model_counts.parameters(rows) == model.count_params()
    for row in rows:
        layer = model.get_layer(row.name)
        assert (layer.count_params(), layer.output.shape[1:]) == (row.parameters, row.output), row.name


def test_windows_are_those_of_the_libraries():
    """At 248 pixels maps have 62, 31, 16 and 8 places a side; transformers' V2 takes the last one for 7."""
    after, before = (
        [stage[1:] for stage in make_stages(make_swin_spec("SwinV2-T", roll=roll), (248, 248))]
        for roll in ("after_padding", "before_padding")
    )
    assert after[:3] == before[:3] == [((8, 8), (4, 4))] * 3
    assert after[3] == ((7, 7), (0, 0)) and before[3] == ((8, 8), (0, 0))


def test_windows_as_large_as_the_map_do_not_shift():
    after, before = (
        make_stages(make_swin_spec("Swin-T", roll=roll), (128, 224))[2] for roll in ("after_padding", "before_padding")
    )
    assert (after.size, after.window, after.shift) == ((8, 14), (7, 7), (3, 3))
    after, before = (
        make_stages(make_swin_spec("Swin-T", roll=roll), (96, 224))[2] for roll in ("after_padding", "before_padding")
    )
    assert (after.window, after.shift) == ((6, 6), (0, 0))
    assert (before.window, before.shift) == ((6, 7), (0, 3))


def test_one_window_is_attention_with_relative_positions():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 8)).astype("float32")
    windows, plain = WindowAttention(2, (3, 4)), MultiHeadSelfAttention(2, positions="relative2d", grid=(3, 4))
    windows.build(x.shape)
    plain.build((2, 12, 8))
    values = {w.path.partition("/")[2]: w for w in windows.weights}
    for weight in plain.weights:
        weight.assign(values[weight.path.partition("/")[2]])
    expected = np.asarray(plain(x.reshape(2, 12, 8))).reshape(x.shape)
    np.testing.assert_allclose(windows(x), expected, atol=1e-6)


def test_shifted_windows_see_no_place_from_the_other_side(models):
    """A corner of a shifted block does not depend on the opposite corner, with which it shares a window."""
    block = keras_vit.layers.SwinBlock(2, 16, 2, shift=(1, 1))
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 8)).astype("float32")
    changed = x.copy()
    changed[0, -1, -1] += 1
    before, after = np.asarray(block(x)), np.asarray(block(changed))
    np.testing.assert_array_equal(before[0, 0, 0], after[0, 0, 0])
    assert not np.array_equal(before[0, -1, -1], after[0, -1, -1])


def test_tables_are_resampled_for_other_windows(models):
    model = models["Swin"]
    copy = transfer(model, image_size=(40, 40), window=5, resample="bicubic")
    path = "block_01/attention/relative2d/bias"
    expected = resample_offsets(model_weights(model)[path], (4, 4), (5, 5), "bicubic")
    np.testing.assert_array_equal(model_weights(copy)[path], expected)
    assert copy.spec.window == 5


@pytest.mark.extended
def test_a_continuous_bias_keeps_its_unit_in_other_windows(models):
    model = models["SwinV2"]
    copy = transfer(model, image_size=(48, 40), window=6)
    assert copy.spec.pretrained_windows == model.spec.pretrained_windows == ((4, 4), (4, 4))
    for path, array in model_weights(model).items():
        np.testing.assert_array_equal(model_weights(copy)[path], array)
    np.testing.assert_array_equal(log_offsets((6, 6), (4, 4))[2:-2, 2:-2], log_offsets((4, 4), (4, 4)))


@pytest.mark.extended
def test_rematerialised_blocks_have_the_same_gradients(models, images):
    import tensorflow as tf

    found = []
    for model in (models["SwinV2"], transfer(models["SwinV2"], remat=True)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images[:1], training=True) ** 2)
        found.append([np.asarray(tf.convert_to_tensor(g)) for g in tape.gradient(loss, model.trainable_variables)])
    for plain, recomputed in zip(*found, strict=True):
        np.testing.assert_allclose(recomputed, plain, rtol=1e-4, atol=1e-4 * np.abs(plain).max())


@pytest.mark.extended
def test_a_detector_trains_on_the_maps_of_all_stages(images, eagerly):
    detector = keras_vit.DetectionModel(
        "Swin-T", "dense", 3, 32, head_options={"width": 8, "convs": 1}, **TINY | {"depths": (1, 1, 1), "width": 4}
    )
    assert detector.decoder.taps == (0, 1, 2)
    detector.compile(keras_vit.optim.AdamW(1e-2), keras_vit.training.DenseDetectionLoss(), jit_compile=False)
    objects = np.tile(np.float32([[[0.2, 0.2, 0.7, 0.7, 1, 0, 0.25]]]), (4, 1, 1))
    x = np.resize(images, (4, 32, 32, 3))
    before = detector.get_weights()
    assert np.isfinite(detector.fit(x, objects, batch_size=4, verbose=0).history["loss"]).all()
    assert not np.array_equal(detector.get_weights()[0], before[0])  # of the patches


def test_layer_decay_places_every_layer(models):
    paths = [weight.path for weight in models["SwinV2"].weights]
    factors = dict(zip(paths, layer_multipliers(paths, 0.5)))
    named = {
        part: next(v for p, v in factors.items() if f"{part}/" in p) for part in ("stem_norm", "merging_02", "head")
    }
    assert named == {"stem_norm": 0.5**4, "merging_02": 0.5, "head": 1.0}


def test_names_lead_to_it():
    for name, near in (("swin_tiny_patch4_window7_224", "Swin-T"), ("swinv2_base_window8_256", "SwinV2-B")):
        assert families.nearest(name) == ("Swin", near)
    assert families.variant_name(make_swin_spec("SwinV2-S", window=16)) == "SwinV2-S"
    with pytest.raises(ValueError, match="pretrained_windows are for v2"):
        make_swin_spec("Swin-T", pretrained_windows=(7, 7, 7, 7))


def matrices(model, images):
    """Each block's attention weights (b, k, h*w, h*w) among all places, 0 outside its windows."""
    found, maps = {}, [model.get_layer("stem_map").output, *model.feature_map([*range(model.spec.repeated)])]
    for i, x in enumerate(keras.Model(model.input, maps)(images)[:-1]):
        block = model.get_layer(f"block_{i:02d}")
        if i and model.spec.strides[i] != model.spec.strides[i - 1]:
            x = model.get_layer(f"merging_{i:02d}")(x)
        b, h, w = x.shape[:3]
        places = np.tile(np.eye(h * w, dtype="float32").reshape(-1, h, w), (b, 1, 1))  # each attending place alone
        received = np.asarray(block.received(np.repeat(x, h * w, axis=0), places))  # (b*h*w, h, w, k)
        found[i] = received.reshape(b, h * w, h * w, -1).transpose(0, 3, 1, 2)
    return found


@pytest.mark.parametrize("version", ["Swin", "SwinV2"])
def test_heads_attend_to_places_of_their_windows(version, models, images):
    """At 16x16 pixels a map is one window of 4x4: its weights are the matrix among all places."""
    model = transfer(models[version], image_size=16, resample="bicubic")
    [weights, *_] = each_window_attention(model, images[:2, :16, :16])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(matrices(model, images[:2, :16, :16])[0], weights[:, 0], atol=1e-5)
    maps = head_maps(model, images[:2, :16, :16], [0])[0]
    np.testing.assert_allclose(maps.reshape(2, 2, 16), weights[:, 0].mean(2), atol=1e-5)


def test_rollout_runs_through_windows_and_merged_places(models, images):
    """The maps of 9x5 and 5x3 places, as matrices."""
    model, images = models["Swin"], images[:2]
    merged = np.zeros((15, 45))
    for y, x in np.ndindex(9, 5):
        merged[y // 2 * 3 + x // 2, y * 5 + x] = 1 / 4
    mixed = {i: (w.mean(1) + np.eye(w.shape[-1])) / 2 for i, w in matrices(model, images).items()}
    flow = (mixed[2].mean(1, keepdims=True) @ merged @ mixed[1] @ mixed[0]).reshape(2, 9, 5)
    np.testing.assert_allclose(attention_maps(model, images), flow / flow.max((1, 2), keepdims=True), atol=1e-5)


def test_statistics_of_heads_are_those_inside_windows(models, images):
    found = head_statistics(models["Swin"], images)
    assert np.isnan(found.distance).sum() == 2 * 2  # 2 heads, then 4
    np.testing.assert_allclose(found.even_entropy, np.log2([16, 16, 9]))
    assert found.even_distance[0] == patch_distances((4, 4), (4, 4)).mean()
    assert 0 < np.nanmin(found.distance) and np.nanmax(found.entropy) < 4


@pytest.mark.extended
def test_inspection_says_what_it_does_not_show(models, images):
    with pytest.raises(ValueError, match='"swin" has no attention across the whole image: it is a Swin'):
        attention_weights(models["Swin"], images)
    text = "".join(part.body for part in inspect_model(models["Swin"], images[:1], ["photo"]))
    assert text.count("Attention of each head") == 1 and "attention rollout" in text


@pytest.mark.extended
@pytest.mark.parametrize(
    ("version", "file", "library", "module"),
    [("Swin", "m.tflite", "ai_edge_litert", "litert_format"), ("SwinV2", "m.onnx", "tf2onnx", "onnx_format")],
)
def test_its_exports_agree(version, file, library, module, models, images, tmp_path):
    """A SavedModel's signature, and a file for another engine."""
    pytest.importorskip(library)
    model = models[version]
    expected = np.asarray(model(images))
    np.testing.assert_allclose(signatures_of(model)["pixels"](images)["logits"], expected, atol=1e-5)
    keras_vit.export(model, tmp_path / file)
    run = importlib.import_module(f"keras_vit.serving.{module}").runner(str(tmp_path / file))
    np.testing.assert_allclose(run(images)["logits"], expected, atol=1e-4)
