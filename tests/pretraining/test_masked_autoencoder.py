"""The masked autoencoder: what it sees, what it predicts, and that its encoder is a ViT."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.models import MaskedAutoencoder, hidden_count
from keras_vit.models.without_values import without_values
from keras_vit.pretraining import patch_masks
from keras_vit.training import AdamW, MaskedSquaredError

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

SIZES = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "decoder_depth": 1, "decoder_width": 8, "decoder_heads": 2}
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), dtype="uint8")


def made(**changes):
    keras.utils.set_random_seed(0)
    return MaskedAutoencoder("Ti/4", **{"image_size": (8, 12), "mask_ratio": 0.5, **SIZES, **changes})


@pytest.fixture(scope="module")
def model():
    return made()


def test_the_papers_model_has_its_published_parameters():
    """facebook/vit-mae-base: 111,907,840 with its two tables of positions."""
    with without_values():
        model = MaskedAutoencoder("B/16")
    assert model.count_params() + 197 * 768 + 197 * 512 == 111_907_840
    assert model.input["kept"].shape == (None, 49) and model.output.shape == (None, 2, 196, 768)


@pytest.mark.extended
def test_hidden_pixels_have_no_part_in_the_predictions(model):
    x, y = model.masked(IMAGES)
    assert x["kept"].shape == (4, 3) and (y.sum(1) == 3).all() and not y[np.arange(4)[:, None], x["kept"]].any()
    before = model.predict(x, verbose=0)
    hidden = y.reshape(4, 2, 1, 3, 1, 1).repeat(4, 2).repeat(4, 4).reshape(4, 8, 12, 1).astype(bool)
    other = model.predict({**x, "image": np.where(hidden, 255 - x["image"], x["image"])}, verbose=0)
    np.testing.assert_array_equal(before[:, 0], other[:, 0])
    assert (np.abs(before[:, 1] - other[:, 1]).max(-1) > 0.1)[y == 1].all()
    visible = model.predict({**x, "image": np.where(hidden, x["image"], 255 - x["image"])}, verbose=0)
    assert np.abs(before[:, 0] - visible[:, 0]).max() > 1e-3


def test_the_order_of_visible_patches_does_not_matter(model):
    x, _ = model.masked(IMAGES)
    np.testing.assert_array_equal(
        model.predict({**x, "kept": x["kept"][:, ::-1]}, verbose=0), model.predict(x, verbose=0)
    )


@pytest.mark.parametrize("normalise", [True, False])
def test_targets_are_the_patches_pixels(normalise):
    model = made(normalise_targets=normalise, mean=(100.0, 110.0, 120.0), std=50.0, dtype="mixed_bfloat16")
    x, _ = model.masked(IMAGES)
    pixels = (IMAGES - np.array([100.0, 110.0, 120.0])) / 50.0
    patches = np.stack([pixels[:, i : i + 4, j : j + 4].reshape(4, 48) for i in (0, 4) for j in (0, 4, 8)], axis=1)
    if normalise:
        patches = (patches - patches.mean(-1, keepdims=True)) / np.sqrt(patches.var(-1, ddof=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(model.predict(x, verbose=0)[:, 1], patches, atol=1e-4)


def test_the_encoder_is_a_vit_of_the_models_own_layers(model):
    vit = model.get_encoder()
    assert type(vit) is keras_vit.ViT and vit is model.get_encoder() and vit.classes is None
    assert {id(w) for w in vit.weights} < {id(w) for w in model.weights}
    assert vit.feature_map([0]) and vit.tokens.shape == (None, 7, 16)
    own = keras_vit.ViT("Ti/4", (8, 12), None, positions="sincos2d_mae", depth=1, width=16, heads=2, mlp_dim=16)
    own.set_weights(vit.get_weights())
    np.testing.assert_allclose(vit.predict(IMAGES, verbose=0), own.predict(IMAGES, verbose=0), atol=1e-6)


def test_with_all_patches_visible_the_encoder_sees_what_the_vit_sees(model):
    tokens = keras.Model(model.inputs, model.get_layer("decoder_embed").input)
    kept = np.tile([0, 2, 5], (4, 1))
    some = tokens.predict([IMAGES.astype("float32"), kept], verbose=0)
    positions = model.get_encoder().get_layer("position_embedding")
    embedded = keras.Model(model.get_encoder().input, positions.output).predict(IMAGES.astype("float32"), verbose=0)
    x = embedded[:, [0, 1, 3, 6]]
    for name in ("block_00", "encoder_norm"):
        x = model.get_layer(name)(x)
    np.testing.assert_allclose(some, x, atol=1e-5)


@pytest.mark.extended
def test_files_clones_and_classifiers_keep_what_it_learned(model, tmp_path):
    model.save(tmp_path / "mae.keras")
    again, x = keras_vit.load(tmp_path / "mae.keras"), model.masked(IMAGES)[0]
    assert again.arguments() == model.arguments() and again.mask_ratio == 0.5
    for copy in (again, model.clone()):
        np.testing.assert_array_equal(copy.predict(x, verbose=0), model.predict(x, verbose=0))
    vit = keras_vit.load(tmp_path / "mae.keras", classes=5, head="reset", pool="gap", fc_norm=True, positions="learned")
    assert type(vit) is keras_vit.ViT and vit.classes == 5 and vit.spec.fc_norm and vit.spec.positions == "learned"
    np.testing.assert_array_equal(
        vit.get_layer("position_embedding").embedding, model.get_layer("position_embedding").embedding
    )
    bare = keras_vit.load(tmp_path / "mae.keras", head="drop")
    np.testing.assert_allclose(
        bare.predict(IMAGES, verbose=0), model.get_encoder().predict(IMAGES, verbose=0), atol=1e-6
    )
    with pytest.raises(ValueError, match='head="drop" loads the ViT'):
        keras_vit.load(tmp_path / "mae.keras", image_size=16)


@pytest.mark.extended
def test_reconstructions_keep_what_is_visible(model, monkeypatch):
    made = model.reconstruct(IMAGES, seed=3)
    x, y = model.masked(IMAGES, seed=3)
    hidden = y.reshape(4, 2, 1, 3, 1).repeat(4, 2).repeat(4, 4).reshape(4, 8, 12).astype(bool)
    np.testing.assert_array_equal(made.images, IMAGES)
    assert (made.hidden[hidden] == 128).all() and made.reconstructed.dtype == np.uint8
    np.testing.assert_array_equal(made.reconstructed[~hidden], IMAGES[~hidden])
    truth = model.predict(x, verbose=0)[:, [1, 1]]
    monkeypatch.setattr(type(model), "predict", lambda *_, **__: truth)
    assert np.abs(model.reconstruct(IMAGES, seed=3).reconstructed.astype(int) - IMAGES).max() <= 1
    monkeypatch.undo()
    less = model.reconstruct(IMAGES[0], mask_ratio=0.2)
    assert less.images.shape == (1, 8, 12, 3) and (less.hidden == 128).all(-1).sum() >= 32


def test_weights_of_examples_count_once(model):
    x, y = model.masked(IMAGES)
    model.compile(AdamW(1e-3, decay=0.1), MaskedSquaredError(), jit_compile=False)
    first = {name: array[:2] for name, array in x.items()}
    weighted = model.evaluate(x, y, sample_weight=np.array([1.0, 1.0, 0.0, 0.0]), batch_size=4, verbose=0)
    assert weighted == pytest.approx(model.evaluate(first, y[:2], verbose=0), rel=1e-5)


@pytest.mark.extended
def test_other_encoders_and_a_grey_rectangle_without_class_token():
    model = made(channels=1, pool="gap", registers=2, qk_norm=True, layer_scale=0.1, remat=True, drop_path=0.1)
    x, y = model.masked(IMAGES[..., :1])
    model.compile(AdamW(1e-3, decay=0.1), MaskedSquaredError(), jit_compile=False)
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0]) and model.spec.prefix == 2
    assert model.reconstruct(IMAGES[..., :1]).reconstructed.shape == (4, 8, 12, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conv_stem": (8,), "patch_size": 2}, "a stem .* sees over the borders"),
        ({"fc_norm": True}, "fc_norm leaves out the normalisation"),
        ({"pool": "map"}, 'pool="map" has weights that would not be trained'),
        ({"token_merging": 1}, "leave out patches of their own"),
        ({"positions_at": "every"}, 'positions_at="every" are in the blocks'),
        ({"positions": "rope2d"}, 'positions="rope2d", positions_at="stem" are in the blocks'),
        ({"palette": 8, "patch_size": 1}, "a palette has no patches of pixels"),
        ({"image_size": 4}, "a single patch has none to predict from"),
        ({"decoder_positions": "sincos"}, 'unknown kind "sincos"'),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        made(**arguments)


def test_a_loss_for_other_outputs_no_images_and_class_weights_are_refused(model):
    with pytest.raises(
        ValueError, match=r"cannot be trained with the loss mean_squared_error: write loss=.*MaskedSquaredError"
    ):
        model.compile("sgd", "mse")
    model.compile("sgd", MaskedSquaredError(), jit_compile=False)
    with pytest.raises(ValueError, match="There are no images"):
        model.masked(IMAGES[:0])
    x, y = model.masked(IMAGES)
    with pytest.raises(ValueError, match="The data is empty"):
        model.fit({name: array[:0] for name, array in x.items()}, y[:0])
    with pytest.raises(ValueError, match="class_weight does not apply to a MaskedAutoencoder"):
        model.fit(x, y, class_weight={0: 1.0, 1: 2.0}, verbose=0)


def test_as_many_patches_are_hidden_as_in_the_authors_code():
    assert [hidden_count(196, ratio) for ratio in (0.75, 0.9, 0.15)] == [147, 177, 30]
    assert hidden_count(6, 0.01) == 1 and hidden_count(6, 0.99) == 5


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([[0, 1, 6]], r'"kept" contains 0 to 6, expected 3 numbers per image from 0 to 5, each at most once'),
        ([[-1, 1, 2]], r'"kept" contains -1 to 2'),
        ([[1, 2, 1]], r'"kept" contains one of them several times in a row'),
        ([[1, 2]], r'"kept" has the shape \((4|None), 2\), expected \(images, 3\)'),
    ],
)
def test_patches_that_an_image_does_not_have_are_refused(kept, message, model):
    """They would be taken from the next image of the batch."""
    x = {"image": IMAGES, "kept": np.tile(np.array(kept, "int32"), (4, 1))}
    with pytest.raises(ValueError, match=message):
        model.predict(x, verbose=0)
    with pytest.raises(ValueError, match=message if "shape" in message else '"kept" contains'):
        model.predict(tf.data.Dataset.from_tensor_slices(x).batch(2), verbose=0)


def test_rows_of_padding_are_zeros_and_let_through(model):
    """The last batch of an evaluation is filled with them, with weight 0."""
    x = {"image": IMAGES, "kept": np.array([[3, 1, 5], [0, 1, 2], [0, 0, 0], [0, 0, 0]], "int32")}
    assert np.isfinite(model.predict(x, verbose=0)).all()
    assert np.isfinite(model.predict(tf.data.Dataset.from_tensor_slices(x).batch(2), verbose=0)).all()


def test_shares_and_numbers_of_patches_out_of_range_are_refused(model):
    for ratio in (0, 1, -0.5, 1.5):
        with pytest.raises(ValueError, match=f"mask_ratio should be above 0 and below 1, got {ratio}"):
            model.masked(IMAGES, mask_ratio=ratio)
        with pytest.raises(ValueError, match="mask_ratio should be above 0 and below 1"):
            made(mask_ratio=ratio)
    for count in (0, 6, 7):
        with pytest.raises(ValueError, match=f"{count} visible patches of an image's 6: expected 1 to 5"):
            patch_masks.hide(IMAGES[0], np.array([0, 0]), 6, count)
        with pytest.raises(ValueError, match=f"{count} corrupted patches of an image's 6: expected 1 to 5"):
            patch_masks.corrupt(IMAGES[0], np.array([0, 0]), (4, 4), count)


@pytest.mark.extended
def test_numbers_of_patches_in_a_dataset_are_checked(model):
    x, y = model.masked(IMAGES)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    model.compile(AdamW(1e-3), MaskedSquaredError(), jit_compile=False)
    assert np.isfinite(model.evaluate(data, verbose=0))
    predictor = keras_vit.MaskedPatchPredictor("Ti/4", (8, 12), depth=1, width=16, heads=2, mlp_dim=16)
    x, _ = predictor.masked(IMAGES)
    with pytest.raises(ValueError, match='"source" contains -2 to .*, expected 6 numbers per image from -1 to 5'):
        predictor.predict({**x, "source": np.where(x["source"] < 0, -2, x["source"])}, verbose=0)
