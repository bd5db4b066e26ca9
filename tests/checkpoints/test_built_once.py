"""`load` builds one model, already adapted, whatever the format and the kind of model."""

import collections

import dense_files
import golden_files
import numpy as np
import pytest
import safetensors.numpy
import text_files
from sampled import pixels

import keras_vit
from keras_vit.checkpoints import transfer
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.models import Classifier, TextEncoder
from keras_vit.models.headed import HeadedModel
from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder

SIZES = {"image_size": (8, 12), "depth": 2, "width": 16, "heads": 2, "mlp_dim": 16, "classes": 5}
GOLDENS = (
    "vit_token",
    "bv_map",
    "hybrid_r26",
    "bit_npz",
    "timm_vit",
    "timm_swin",
    "timm_eva02",
    "hf_vit",
    "lucidrains",
)
DENSE = {"dpt_classes": (64, 32), "beit": (64, 64), "yolos": (64, 64)}


@pytest.fixture
def built(monkeypatch):
    """{class: how often a model of it was made with values}, counted from here on."""
    counts = collections.Counter()

    def counted(base):
        make = base.__init__

        def init(self, *args, **kwargs):
            make(self, *args, **kwargs)
            if self.name != "described":  # one without values, to compare its size with the file's
                counts[type(self).__name__] += 1

        monkeypatch.setattr(base, "__init__", init)

    for base in (Classifier, HeadedModel, MaskedAutoencoder, DualEncoder, TextEncoder):
        counted(base)
    return counts


@pytest.mark.parametrize("head", ["keep", "reset", "drop"])
@pytest.mark.parametrize("name", GOLDENS)
def test_a_classifier_is_built_once(name, head, built, tmp_path):
    """With the same outputs as one that is loaded first and adapted then."""
    fields, path, arguments = golden_files.write(name, tmp_path)
    height, width = fields["image_size"]
    changes = {"image_size": (2 * height, width), "head": head, "resample": "bilinear"}
    changes |= {"classes": 3} if head == "reset" else {}
    model = keras_vit.load(path, **{**arguments, **changes})
    assert list(built.values()) == [1]
    expected = transfer(keras_vit.load(path, **arguments), **changes)
    np.testing.assert_array_equal(model(pixels(2 * height, width)), expected(pixels(2 * height, width)))


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_model_is_built_once_with_its_encoder(name, built, tmp_path):
    dense_files.write(name, tmp_path)
    model = keras_vit.load(tmp_path, image_size=DENSE[name])
    assert model.image_size == DENSE[name]
    assert sorted(built.values()) == [1, 1]


def test_a_masked_autoencoder_is_built_once(built, tmp_path):
    model = keras_vit.models.MaskedAutoencoder(
        "Ti/4", image_size=16, positions="sincos2d_mae", **{k: SIZES[k] for k in ("depth", "width", "heads", "mlp_dim")}
    )
    keras_vit.save(model, tmp_path / "mae", format="huggingface")
    for arguments, count in (({"image_size": 24}, 2), ({"head": "drop"}, 1)):
        built.clear()
        keras_vit.load(tmp_path / "mae", **arguments)
        assert sorted(built.values()) == [1] * count


def test_both_towers_are_built_once(built, tmp_path):
    text_files.write("siglip", tmp_path)
    keras_vit.load(tmp_path, text=True, image_size=48)
    assert set(built.values()) == {1} and len(built) == 3


def test_a_keras_file_without_changes_to_the_graph_is_built_once(built, tmp_path):
    keras_vit.ViT("Ti/4", **SIZES).save(tmp_path / "m.keras")
    built.clear()
    keras_vit.load(tmp_path / "m.keras", class_names=list("abcde"), preprocessing="decode|resize(8, 12)")
    assert built == {"ViT": 1}


def test_heads_that_are_not_kept_are_not_read(tmp_path):
    """Only what the adapted model takes from the file has to fit."""
    fields, path, arguments = golden_files.write("hf_vit", tmp_path)
    arrays = safetensors.numpy.load_file(path)
    model = keras_vit.load(path, head="reset", classes=2, **arguments)
    assert "classifier.weight" in arrays and not np.any(model.get_layer("head").kernel)
    arrays["vit.encoder.layer.0.output.dense.bias"] = np.zeros(3, "float32")
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(ValueError, match=r"Shapes in .*output.dense.bias is \(3,\) in the file, \(\d+,\) in the model"):
        keras_vit.load(path, head="reset", classes=2, **arguments)
