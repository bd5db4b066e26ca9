"""LoRA of models for pre-training: in their encoder; trained, saved and merged with what stands above it."""

import json
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import enable_lora, merge_lora
from keras_vit.training import AdamW, DINOLoss, HardDistillation, MaskedCrossEntropy, MaskedSquaredError, Muon

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

FIELDS = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype="uint8")
QUERY, VALUE = "block_00/attention/query", "block_00/attention/value"
LORA = {f"{path}/lora_kernel_{ab}" for path in (QUERY, VALUE) for ab in "ab"}


def vit(classes=None):
    model = keras_vit.ViT("Ti/4", image_size=8, classes=classes, **FIELDS)
    if classes:
        model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, classes)))
    return model


def made(kind):
    """(model, x, y, loss, the names of the layers that train beside the LoRA)."""
    keras.utils.set_random_seed(0)
    if kind == "mae":
        model = keras_vit.MaskedAutoencoder("Ti/4", 8, decoder_depth=1, decoder_width=16, decoder_heads=2, **FIELDS)
        above = {
            "decoder_embed",
            "decoder_patches",
            "decoder_position_embedding",
            "decoder_block_00",
            "decoder_norm",
            "decoder_pred",
        }
        return model, *model.masked(IMAGES), MaskedSquaredError(), above
    if kind == "masked":
        model = keras_vit.MaskedPatchPredictor("Ti/4", 8, **FIELDS)
        return model, *model.masked(IMAGES), MaskedCrossEntropy(), {"replaced_patches", "patch_head"}
    if kind == "igpt":
        model, images = keras_vit.ImageGPT("Ti/1", 4, palette=8, **FIELDS), IMAGES[:, :4, :4]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, images, model.colors(images), loss, {"next_color"}
    model = keras_vit.Distilled(vit(3), vit(3))
    return model, IMAGES, np.arange(4) % 3, HardDistillation(), {"head"}


def paths(weights):
    return {w.path for w in weights}


@pytest.mark.parametrize(
    "kind", ["mae", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("igpt", "distilled"))]
)
def test_the_encoder_gets_it_and_what_stands_above_trains(kind, tmp_path):
    model, x, y, loss, above = made(kind)
    before = model.predict(x, verbose=0)
    assert enable_lora(model, 2) == [QUERY, VALUE]
    np.testing.assert_array_equal(model.predict(x, verbose=0), before)
    trained = paths(model.trainable_weights)
    assert trained & paths(model.get_encoder().weights) >= LORA and LORA <= trained
    assert {path.split("/")[0] for path in trained - LORA} <= above
    model.compile(AdamW(1e-2), loss, jit_compile=False)
    values = [w.numpy() for w in model.weights]  # by their places: a teacher's paths may be a student's
    model.fit(x, y, epochs=2, verbose=0)
    changed = {w.path for w, value in zip(model.weights, values) if (w.numpy() != value).any()}
    assert LORA <= changed <= trained
    model.save(tmp_path / "m.keras")
    loaded, learned = keras_vit.load(tmp_path / "m.keras"), model.predict(x, verbose=0)
    assert paths(loaded.trainable_weights) == paths(model.clone().trainable_weights) == trained
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), learned)
    merge_lora(loaded)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), learned, atol=1e-4)
    assert not any("lora" in w.path for w in loaded.weights)


@pytest.mark.extended
def test_of_dino_the_encoder_has_it_before():
    keras.utils.set_random_seed(0)
    options = {
        "outputs": 8,
        "hidden": 8,
        "bottleneck": 4,
        "local_size": 8,
        "local_crops": 0,
        "steps": 4,
        "momentum": 0.5,
    }
    with pytest.raises(ValueError, match="give LoRA to the encoder before.*and make the model of that"):
        enable_lora(keras_vit.DINO(vit(), **options), 2)
    encoder = vit()
    enable_lora(encoder, 2)
    model = keras_vit.DINO(encoder, **options)
    model.compile(Muon(1e-2), DINOLoss(), jit_compile=False)
    crops = np.random.default_rng(0).integers(0, 256, (4, 2, 8, 8, 3), dtype="uint8")
    before = [[w.numpy() for w in part.weights] for part in (model.student, model.teacher)]
    model.fit({"global": crops}, np.zeros(4, "int32"), epochs=2, verbose=0)
    for part, old in zip((model.student, model.teacher), before):
        # A mean of equal ones rounds.
        moved = {w.path for w, value in zip(part.weights, old) if np.abs(w.numpy() - value).max() > 1e-5}
        assert moved == LORA


@pytest.mark.extended
def test_a_quantised_imagegpt_is_saved_as_it_is(tmp_path):
    model, images, *_ = made("igpt")
    model.quantize("int8")
    model.save(tmp_path / "m.keras")
    loaded = keras_vit.load(tmp_path / "m.keras")
    assert loaded.get_layer("block_00").attention.query.quantization_mode == "int8"
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), model.predict(images, verbose=0))


def test_a_rank_that_its_file_cannot_have_is_refused(tmp_path):
    model, *_ = made("masked")
    enable_lora(model, 2)
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as good, zipfile.ZipFile(tmp_path / "altered.keras", "w") as altered:
        for name in good.namelist():
            data = good.read(name)
            if name == "config.json":
                config = json.loads(data)
                config["config"]["lora"][QUERY] = (2**40, 2**40)
                data = json.dumps(config).encode()
            altered.writestr(name, data)
    with pytest.raises(ValueError, match="lora should say how|LoRA of higher rank than its file has values"):
        keras_vit.load(tmp_path / "altered.keras")
