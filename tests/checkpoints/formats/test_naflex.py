"""SigLIP 2 NaFlex: images of several aspects in one batch, from Hugging Face's file, in tf.data and in fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from text_files import golden, mixed, write

import keras_vit
from keras_vit.data import from_arrays, to_patches, training_batches
from keras_vit.data.any_aspect import patch_grid
from keras_vit.layers.positions.any_grid import AnyGridPositions
from keras_vit.layers.positions.embeddings import AddPositionEmbs, ResampledPositions
from keras_vit.training import AdamW


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("siglip2")
    write("siglip2", folder)
    return keras_vit.load(folder)


@pytest.fixture(scope="module")
def model(vit):
    return keras_vit.NaFlexViT.from_vit(vit, patches=16)


def features(model, patches, grids):
    return np.asarray(model({"patches": patches, "grid": grids}))


def test_a_mixed_batch_gives_transformers_features(model):
    np.testing.assert_allclose(features(model, *mixed()), golden("siglip2")["mixed"], rtol=0, atol=1e-4)


def test_padding_has_no_effect(vit, model):
    patches, grids = mixed()
    there = np.arange(16)[None] < grids.prod(axis=1)[:, None]
    zeros = np.where(there[:, :, None, None, None], patches, 0)
    np.testing.assert_allclose(features(model, zeros, grids), features(model, patches, grids), atol=1e-6)
    longer = keras_vit.NaFlexViT.from_vit(vit, patches=20)
    padded = np.pad(patches, [(0, 0), (0, 4), (0, 0), (0, 0), (0, 0)])
    np.testing.assert_allclose(features(longer, padded, grids), features(model, patches, grids), atol=1e-6)


def test_at_its_own_grid_it_is_the_vit(vit, model):
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype("uint8")
    made = to_patches(image, 8, 16)
    assert made["grid"].numpy().tolist() == [4, 4]
    found = features(model, made["patches"][None], made["grid"][None])
    np.testing.assert_allclose(found, vit(image[None]), atol=1e-6)


def test_with_learned_tokens_it_is_the_vit_at_each_size():
    """Class token, registers and rectangular patches; the table is resampled as by "flexivit"."""
    options = {"depth": 1, "width": 8, "heads": 2, "mlp_dim": 16, "patch_size": (4, 2), "registers": 2, "classes": 3}
    vit = keras_vit.ViT("Ti/4", image_size=(12, 8), pool="token_gap", **options)
    rng = np.random.default_rng(0)
    for weight in vit.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    model = keras_vit.NaFlexViT.from_vit(vit, patches=12)
    image = rng.integers(0, 256, (16, 6, 3)).astype("uint8")
    made = to_patches(image, (4, 2), 12)
    assert made["grid"].numpy().tolist() == [4, 3]
    wide = keras_vit.ViT("Ti/4", image_size=(16, 6), pool="token_gap", **options)
    for old, new in zip(vit.weights, wide.weights, strict=True):
        if "position" in new.path:
            table = AddPositionEmbs((3, 4), prefix=1)
            table.build((None, 13, 8))
            table.embedding.assign(old)
            new.assign(ResampledPositions(table, (4, 3), "flexivit")(np.zeros((1, 13, 8), "float32")))
        else:
            new.assign(old)
    found = features(model, made["patches"][None], made["grid"][None])
    np.testing.assert_allclose(found, wide(image[None]), atol=1e-5)


def test_the_grid_is_the_largest_of_the_aspect():
    """The grids of transformers' Siglip2ImageProcessor."""
    sizes = {(480, 640): (14, 18), (640, 480): (18, 14), (100, 100): (16, 16), (1, 5000): (1, 256), (37, 1000): (3, 82)}
    for (h, w), expected in sizes.items():
        assert tuple(int(side) for side in patch_grid(h, w, 16, 256)) == expected, (h, w)


def test_an_unmasked_row_of_no_patches_is_finite():
    """A batch's padding has the grid (0, 0)."""
    layer = AnyGridPositions((2, 2))
    assert np.isfinite(layer([np.ones((1, 4, 8), "float32"), np.zeros((1, 2), "int32")])).all()


@pytest.mark.extended
def test_it_learns_from_batches_of_mixed_sizes(tmp_path):
    """In a tf.data pipeline with augmentation, here by brightness; then a file holds the same model."""
    rng = np.random.default_rng(0)
    sizes, labels = [(24, 40), (40, 16), (32, 32), (8, 60)] * 4, np.arange(16) % 2
    images = [
        rng.integers(0, 100, (*size, 3)).astype("uint8") + 150 * y.astype("uint8") for size, y in zip(sizes, labels)
    ]
    rows = tf.data.Dataset.from_generator(
        lambda: zip(images, labels),
        output_signature=(tf.TensorSpec((None, None, 3), tf.uint8), tf.TensorSpec((), tf.int64)),
    )
    batches = rows.map(lambda image, label: (to_patches(image, 8, 12), label)).batch(8)
    keras.utils.set_random_seed(0)
    size = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    model = keras_vit.NaFlexViT("Ti/8", patches=12, grid=3, classes=2, pool="gap", **size)
    model.compile(AdamW(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(batches, epochs=8, verbose=0)
    assert model.evaluate(batches, verbose=0, return_dict=True)["accuracy"] == 1.0
    keras_vit.save(model, tmp_path / "m.keras")
    np.testing.assert_array_equal(
        keras_vit.load(tmp_path / "m.keras").predict(batches, verbose=0), model.predict(batches, verbose=0)
    )


def test_a_sources_examples_are_batched():
    source = from_arrays(np.zeros((6, 20, 30, 3), "uint8"), np.arange(6))
    batches = training_batches(source, "decode", 3, select=lambda e: (to_patches(e["image"], 8, 9), e["label"]))
    ((x, y),) = batches.take(1)
    assert x["patches"].shape == (3, 9, 8, 8, 3) and y.shape == (3,)
    np.testing.assert_array_equal(x["grid"], [[2, 3]] * 3)


@pytest.mark.parametrize("options", [{"positions": "rope2d"}, {"attention": "window(2)"}, {"conv_stem": (8,)}])
def test_what_needs_one_grid_is_refused(options):
    with pytest.raises(ValueError, match="NaFlexViT takes images on different grids"):
        keras_vit.NaFlexViT("Ti/8", **options)
