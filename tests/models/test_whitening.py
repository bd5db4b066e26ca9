"""The first layer from the principal components of patches."""

import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit.data import from_arrays, training_batches
from keras_vit.distribution import Strategy
from keras_vit.models.finetuning.whitening import whiten, whitening_filters
from keras_vit.runs.config import check_config
from keras_vit.runs.training_run import whiten_first_layer
from trainers import config_files

SIZE = {"image_size": 16, "classes": 5, "depth": 1, "width": 32, "heads": 2, "mlp_dim": 32}


@pytest.fixture(scope="module")
def images():
    """Smooth noise, whose neighbours are correlated as those of photographs are."""
    noise = np.random.default_rng(0).normal(size=(64, 20, 20, 3))
    smooth = sum(noise[:, r : r + 16, s : s + 16] for r in range(5) for s in range(5))
    return np.clip(127 + 20 * smooth, 0, 255).astype("uint8")


def responses(kernel, x, stride=1):
    """(windows, filters) of a kernel (p, q, c, d) over images, at each `stride` pixels."""
    p, q = kernel.shape[:2]
    # (b, h, w, c, p, q)
    windows = np.lib.stride_tricks.sliding_window_view(x, (p, q), axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("bhwcpq,pqcd->bhwd", windows, kernel).reshape(-1, kernel.shape[-1])


def test_responses_are_uncorrelated_with_a_mean_square_of_one(images):
    x = images / 127.5 - 1
    filters = whitening_filters(x, (3, 3), 8)
    y = responses(filters, x)
    np.testing.assert_allclose(y.T @ y / len(y), np.eye(8), atol=0.02)
    # Patches as they are.
    singular = np.linalg.svd(responses(np.eye(27).reshape(3, 3, 3, 27), x), full_matrices=False)[2]
    for i in range(8):
        vector = filters[..., i].transpose(0, 1, 2).ravel() / np.linalg.norm(filters[..., i])
        assert abs(vector @ singular[i]) == pytest.approx(1, abs=1e-3)


def test_a_stem_gets_filters_and_their_negatives_and_a_plain_vit_filters_alone(images):
    stem = keras_vit.ViT("Ti/1", conv_stem=(60, 8), mean=(120.0, 125.0, 130.0), std=50.0, **SIZE)
    random = stem.get_layer("stem_conv1").kernel.numpy()
    whiten(stem, images)
    kernel = stem.get_layer("stem_conv1").kernel.numpy()
    x = (images - np.array([120.0, 125.0, 130.0])) / 50.0
    np.testing.assert_allclose(kernel[..., :27], whitening_filters(x, (3, 3), 27), rtol=2e-2, atol=1e-3)
    np.testing.assert_array_equal(kernel[..., 27:54], -kernel[..., :27])
    np.testing.assert_array_equal(kernel[..., 54:], random[..., 54:])
    plain = keras_vit.ViT("Ti/4", patch_form="dense", **SIZE)
    whiten(plain, images)
    y = responses(plain.get_layer("patch_encoder").kernel.numpy(), images / 127.5 - 1)
    np.testing.assert_allclose(y.T @ y / len(y), np.diag(np.diag(y.T @ y / len(y))), atol=0.02)


def test_models_without_such_a_layer_are_refused(images):
    encoder = keras_vit.ViT("Ti/4", **{**SIZE, "classes": None})
    for model in (
        keras_vit.ViT("Ti/4", patch_norm=True, **SIZE),
        keras_vit.BiT("R50x1", image_size=32, classes=2, units=(1,)),
        keras_vit.DINO(encoder, outputs=8, hidden=8, bottleneck=4, local_size=8),
        keras_vit.ImageGPT("Ti/1", 4, palette=8, depth=1, width=16, heads=2, mlp_dim=16),
    ):
        with pytest.raises(ValueError, match="has no first layer to whiten.*Leave whitening out"):
            whiten(model, images)


@pytest.mark.extended
def test_a_run_takes_the_first_images_of_its_training(images):
    """Runs of cifar10_stem in tests/runs/test_configs.py begin this way; here, from which images."""
    config = ConfigDict({"whiten": 70, "seed": 3, "data": {"train_preprocess": "decode|random_flip"}})
    source = from_arrays(images, np.zeros(len(images), "int64"))
    models = [keras_vit.ViT("Ti/4", **SIZE) for _ in range(2)]
    whiten_first_layer(config, models[0], source, Strategy())
    batches = training_batches(source, "decode|random_flip", 70, seed=3)
    whiten(models[1], next(iter(batches))[0].numpy())
    ours, theirs = (model.get_layer("patch_encoder").kernel.numpy() for model in models)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_of_a_pre_training_the_encoder_is_whitened_and_of_a_distillation_the_student(images):
    small = {**SIZE, "classes": None}
    plain = keras_vit.ViT("Ti/4", **small)
    whiten(plain, images)
    expected = plain.get_layer("patch_encoder").kernel.numpy()
    mae = keras_vit.MaskedAutoencoder(
        "Ti/4", 16, decoder_depth=1, decoder_width=16, decoder_heads=2, depth=1, width=32, heads=2, mlp_dim=32
    )
    student, teacher = (keras_vit.ViT("Ti/4", **SIZE) for _ in range(2))
    teacher.get_layer("head").kernel.assign_add(np.ones((32, 5), "float32"))
    before = teacher.get_layer("patch_encoder").kernel.numpy()
    for model, trained in ((mae, mae.get_encoder()), (keras_vit.Distilled(student, teacher), student)):
        config = ConfigDict({"whiten": 64, "seed": 3, "data": {"train_preprocess": "decode"}})
        unlabelled = from_arrays(images)
        whiten_first_layer(config, model, unlabelled, Strategy())
        np.testing.assert_allclose(np.abs(trained.get_layer("patch_encoder").kernel), np.abs(expected), atol=1e-3)
    np.testing.assert_array_equal(teacher.get_layer("patch_encoder").kernel, before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"whiten": 0}, "expected a number"), ({"whiten": 9, "init": "m.keras"}, "of m.keras is trained")],
)
def test_configs_that_it_does_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"whiten={changes['whiten']}.*{message}"):
        check_config(ConfigDict({**config_files.packaged("lib.common").base().to_dict(), **changes}))
