"""Masked patch prediction: what is replaced, what is predicted, and PyTorch's loss and gradients."""

import json
import pathlib

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

import keras_vit
from keras_vit.models import MaskedPatchPredictor
from keras_vit.pretraining import patch_masks
from keras_vit.training import AdamW, MaskedAccuracy, MaskedCrossEntropy, MaskedSquaredError

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

SIZES = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 24, 3), dtype="uint8")


def made(target="mean_colour", **changes):
    keras.utils.set_random_seed(0)
    return MaskedPatchPredictor("Ti/8", **{"image_size": (16, 24), "target": target, **SIZES, **changes})


def patches_of(images, size=8):
    """(b, n, p, q, c), by slicing."""
    h, w = images.shape[1] // size, images.shape[2] // size
    cells = [images[:, i * size : (i + 1) * size, j * size : (j + 1) * size] for i in range(h) for j in range(w)]
    return np.stack(cells, axis=1)


# The 16 parts of each patch.
CELLS = patches_of(IMAGES).reshape(3, 6, 4, 2, 4, 2, 3).transpose(0, 1, 2, 4, 3, 5, 6).reshape(3, 6, 16, 2, 2, 3)


def colour_classes(pixels):
    """3 bits per channel of the mean colour, in NumPy; pixels (..., p, q, c)."""
    levels = np.floor(pixels.astype("float64").mean(axis=(-3, -2)) / 32).astype(int)
    return levels[..., 0] * 64 + levels[..., 1] * 8 + levels[..., 2]


@pytest.mark.extended
def test_80_percent_of_half_are_masked_and_10_are_taken_from_others():
    model = made(image_size=80)  # 100 patches
    x, y = model.masked(np.random.default_rng(0).integers(0, 256, (20, 80, 80, 3), dtype="uint8"))
    source, own = x["source"], np.arange(100)
    assert ((source == -1).sum(1) == 40).all() and ((y >= 0).sum(1) == 50).all()
    taken = (source != own) & (source >= 0)
    assert (taken.sum(1) == 5).all() and (y[taken] >= 0).all() and (y[source == -1] >= 0).all()
    assert len({tuple(row) for row in source}) == 20
    np.testing.assert_array_equal(model.masked(x["image"])[0]["source"], source)
    assert (model.masked(x["image"], seed=1)[0]["source"] != source).any()


def test_targets_are_mean_colours():
    _, y = made().masked(IMAGES)
    expected = colour_classes(patches_of(IMAGES))
    np.testing.assert_array_equal(y, np.where(y >= 0, expected, -1))
    assert (y >= 0).sum() == 9
    _, y = made("thumbnail").masked(IMAGES)
    np.testing.assert_array_equal(y, np.where(y >= 0, colour_classes(CELLS), -1))
    assert (y >= 0).sum() == 9 * 16
    _, y = made("pixels").masked(IMAGES)
    assert set(y.ravel()) == {0, 1} and y.sum() == 9


def test_a_colour_is_painted_as_the_middle_of_its_class():
    white, black, classes = np.full((1, 4, 4, 3), 255, "uint8"), np.zeros((1, 4, 4, 3), "uint8"), np.arange(512)
    assert (
        patch_masks.colours(tf.constant(white)).numpy() == 511 and patch_masks.colours(tf.constant(black)).numpy() == 0
    )
    painted = patch_masks.class_colour(classes, 3)
    np.testing.assert_array_equal(patch_masks.colours(tf.constant(painted[:, None, None])), classes)
    np.testing.assert_array_equal(patch_masks.class_colour([0, 7], 1), [[16], [240]])


def test_another_patchs_embedding_is_that_of_an_image_with_patches_moved():
    model = made()
    source = np.array([[2, 1, 2, 5, 4, 0]] * 3)
    patches = patches_of(IMAGES)[:, source[0]]
    moved = np.concatenate(
        [np.concatenate(list(patches[:, 3 * i : 3 * i + 3].swapaxes(0, 1)), axis=2) for i in (0, 1)], axis=1
    )
    given = model.predict({"image": IMAGES, "source": source}, verbose=0)
    np.testing.assert_allclose(
        given, model.predict({"image": moved, "source": np.arange(6)[None].repeat(3, 0)}, verbose=0), atol=1e-5
    )


@pytest.mark.extended
def test_loss_and_gradients_are_pytorchs(tmp_path):
    """transformers' ViTModel with a mask token, and a linear layer: tests/checkpoints/originals_masked.py."""
    import sys

    folder = pathlib.Path(__file__).parents[1] / "checkpoints"
    sys.path.insert(0, str(folder))
    from sampled import sample

    from keras_vit.checkpoints.formats import huggingface

    with np.load(folder / "goldens" / "masked.npz") as file:
        golden = {
            name.removeprefix("patches/"): file[name]
            for name in file
            if name.startswith("patches/") or name == "images"
        }
    gradients = {
        name.removeprefix("gradients/"): array for name, array in golden.items() if name.startswith("gradients/")
    }
    arrays = {name: sample(name, array.shape, 0.3) for name, array in gradients.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    vit = keras_vit.load(tmp_path, mean=127.5, std=127.5, mlp_activation="gelu", epsilon=1e-12)
    model = MaskedPatchPredictor(vit.spec, 16, 1)
    kernel = sample("head.weight", (8, 16), 0.3).T
    weights = {v.path: v.numpy() for v in vit.weights} | {"patch_head/kernel": kernel, "patch_head/bias": np.zeros(8)}
    weights["replaced_patches/mask_token"] = arrays["embeddings.mask_token"]
    for variable in model.weights:
        variable.assign(weights[variable.path])
    source = np.where(golden["masked"], -1, np.arange(16)).astype("int32")
    y = np.where(golden["masked"], golden["classes"], -1)
    with tf.GradientTape() as tape:
        logits = model({"image": golden["images"][..., :1].astype("float32"), "source": source})
        loss = MaskedCrossEntropy()(y, logits)
    np.testing.assert_allclose(logits, golden["logits"], atol=1e-5)
    assert float(loss) == pytest.approx(float(golden["loss"]), abs=1e-5)
    variables = model.trainable_variables
    found = dict(zip((v.path for v in variables), tape.gradient(loss, variables)))
    np.testing.assert_allclose(found["replaced_patches/mask_token"], gradients["embeddings.mask_token"], atol=1e-5)
    shapes = {v.path: tuple(v.shape) for v in model.weights}
    for name, entry in huggingface.IN_FILES["vit"].map(vit.spec.to_dict()).items():
        gradient = gradients[name.removeprefix("vit.")]
        for path, expected in zip(entry.ours, entry.unpack(gradient, [shapes[path] for path in entry.ours])):
            np.testing.assert_allclose(found[path], expected, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("target", ["pixels", pytest.param("thumbnail", marks=pytest.mark.extended)])
def test_each_target_trains_reconstructs_and_reloads(target, tmp_path):
    model = made(target, dtype="mixed_bfloat16", pool="gap")
    x, y = model.masked(IMAGES)
    metrics = [] if target == "pixels" else [MaskedAccuracy()]
    loss = MaskedSquaredError() if target == "pixels" else MaskedCrossEntropy()
    model.compile(AdamW(3e-2, decay=0.0), loss, weighted_metrics=metrics, jit_compile=False)
    history = model.fit(x, y, epochs=4, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]
    made_of = model.reconstruct(IMAGES)
    hidden = (made_of.hidden == 128).all(-1)
    np.testing.assert_array_equal(made_of.reconstructed[~hidden], IMAGES[~hidden])
    model.save(tmp_path / "m.keras")
    again = keras_vit.load(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    vit = keras_vit.load(tmp_path / "m.keras", classes=4, head="reset")
    assert type(vit) is keras_vit.ViT and vit.classes == 4
    np.testing.assert_array_equal(
        vit.get_layer("block_00").get_weights()[0], model.get_layer("block_00").get_weights()[0]
    )


def test_perfect_logits_paint_the_patches_own_colours(monkeypatch):
    model = made("thumbnail")
    monkeypatch.setattr(type(model), "predict", lambda *_, **__: np.eye(512, dtype="float32")[colour_classes(CELLS)])
    painted, (_, y) = model.reconstruct(IMAGES).reconstructed, model.masked(IMAGES)
    means = CELLS.mean(axis=(3, 4)).reshape(3, 6, 4, 4, 3).repeat(2, 2).repeat(2, 3)
    hidden = (y >= 0).any(-1)
    assert np.abs(patches_of(painted)[hidden] - means[hidden]).max() <= 16


def test_unknown_targets_are_refused():
    with pytest.raises(ValueError, match='Unknown target "mean_color". Did you mean "mean_colour"'):
        made("mean_color")
    with pytest.raises(ValueError, match="multiples of 4 pixels, got .6, 6."):
        MaskedPatchPredictor("Ti/6", 12, target="thumbnail", **SIZES)
