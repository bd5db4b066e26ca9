"""Text encoders and dual encoders: published counts, pooling, files, and what is refused."""

import dataclasses
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.image_text import zero_shot
from keras_vit.layers.pooling import EndPooling
from keras_vit.layers.similarity import Similarity
from keras_vit.models import make_text_spec
from keras_vit.models.text import TEXT_VARIANTS
from keras_vit.models.without_values import without_values
from keras_vit.planning.model_counts import count

SIZE = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 24}
TEXTS = np.random.RandomState(0).randint(0, 40, (5, 8)).astype("int32")
IMAGES = np.random.RandomState(1).randint(0, 256, (3, 16, 16, 3)).astype("uint8")


@pytest.fixture(scope="module")
def model():
    """A tiny SigLIP without a tokenizer; tests do not change it."""
    keras.utils.set_random_seed(0)
    image = keras_vit.ViT("B/8", image_size=16, classes=None, pool="map", **SIZE)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=40, length=8, outputs=16, **SIZE)
    return keras_vit.DualEncoder(image, text)


def parameters(spec):
    with without_values():
        return sum(row.parameters for row in count(keras_vit.TextEncoder(spec)))


def test_parameters_are_the_published_ones():
    assert parameters("SigLIP-B") == 110_271_744
    assert parameters("SigLIP2-B") == 282_303_744
    assert parameters("CLIP-B") == 63_165_952 + 512 * 512  # transformers' text model and its projection


def test_every_variant_is_complete():
    for name in TEXT_VARIANTS:
        spec = make_text_spec(name)
        assert make_text_spec(dataclasses.asdict(spec)) == spec


def test_the_end_of_a_text_is_its_first_end():
    tokens = np.array([[3, 9, 9, 1], [9, 1, 2, 3], [1, 2, 3, 4]])
    x = np.arange(12, dtype="float32").reshape(3, 4, 1)  # (b, n, d)
    np.testing.assert_array_equal(EndPooling(9)(x, tokens), [[1], [4], [8]])


def test_a_causal_text_does_not_depend_on_what_follows_its_end():
    model = keras_vit.TextEncoder("CLIP-B", vocabulary=40, length=8, outputs=6, end=39, **SIZE)
    texts = np.array([[5, 6, 39, 39, 39, 39, 39, 39], [5, 6, 39, 0, 1, 2, 3, 4]])
    first, second = np.asarray(model(texts))
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_similarity_is_scaled_and_shifted():
    layer = Similarity(scale=4.0, bias=-1.0)
    images, texts = np.eye(3, dtype="float32")[:2], np.eye(3, dtype="float32")
    np.testing.assert_allclose(layer(images, texts), 4 * np.eye(2, 3) - 1, rtol=1e-6)


@pytest.mark.extended
def test_logits_are_those_of_the_graph(model):
    logits = np.asarray(model([IMAGES.astype("float32"), TEXTS]))
    assert logits.shape == (3, 5)
    np.testing.assert_allclose(model.similarity(IMAGES, TEXTS), logits, atol=1e-5)


@pytest.mark.extended
def test_files_and_clones_hold_both_towers(model, tmp_path):
    keras_vit.save(model, tmp_path / "model.keras")
    expected = model.similarity(IMAGES, TEXTS)
    for copy in (keras_vit.load(tmp_path / "model.keras"), model.clone()):
        assert isinstance(copy, keras_vit.DualEncoder) and copy.activation == "sigmoid"
        np.testing.assert_array_equal(copy.similarity(IMAGES, TEXTS), expected)


def test_a_file_cannot_ask_for_more_than_it_holds(model, tmp_path):
    keras_vit.save(model, tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = parts["config.json"].replace(b'"vocabulary": 40', b'"vocabulary": 40000000')
    with zipfile.ZipFile(tmp_path / "large.keras", "w") as archive:
        for name, content in {**parts, "config.json": config}.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="describes a larger text encoder than the file contains"):
        keras_vit.load(tmp_path / "large.keras")


@pytest.mark.extended
def test_a_projection_survives_a_file(tmp_path):
    image = keras_vit.ViT("B/8", image_size=16, classes=None, pre_norm=True, epsilon=1e-5, **SIZE)
    text = keras_vit.TextEncoder("CLIP-B", vocabulary=40, length=8, outputs=6, end=39, **SIZE)
    model = keras_vit.DualEncoder(image, text, activation="softmax", projection=6)
    keras_vit.save(model, tmp_path / "model.keras")
    copy = keras_vit.load(tmp_path / "model.keras")
    assert copy.projection == 6 and copy.bias == 0 and copy.scale == pytest.approx(1 / 0.07)
    np.testing.assert_array_equal(copy.similarity(IMAGES, TEXTS), model.similarity(IMAGES, TEXTS))


@pytest.mark.extended
def test_a_zero_shot_classifier_gives_the_same_logits(model):
    labels = ["cat", "dog"]
    found = np.stack([TEXTS[:1], TEXTS[1:2]])[:, 0]
    model.tokenizer = lambda texts: np.stack([found[labels.index(text)] for text in texts])
    classifier = model.classifier(labels, "label")
    model.tokenizer = None
    assert classifier.class_names == ("cat", "dog") and classifier.activation == "sigmoid"
    np.testing.assert_allclose(classifier.predict(IMAGES, verbose=0), model.similarity(IMAGES, found), atol=1e-5)
    best = classifier.classify(IMAGES[0])[0]
    assert best.probability == pytest.approx(1 / (1 + np.exp(-model.similarity(IMAGES[0], found).max())), rel=1e-4)


def test_templates_are_averaged_and_normalised(model):
    seen = []
    model.tokenizer = lambda texts: seen.extend(texts) or TEXTS[: len(texts)]
    found = zero_shot.label_embeddings(model, ["cat", "dog"], ["a {}", "the {}"])
    model.tokenizer = None
    assert seen == ["a cat", "the cat", "a dog", "the dog"]
    means = model.encode_text(TEXTS[:4]).reshape(2, 2, -1).mean(1)
    np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-6)


def test_text_that_is_not_full_length_is_refused(model):
    with pytest.raises(ValueError, match=r"numbers of 8 tokens per text, \(b, 8\), got \(5, 7\)"):
        model.encode_text(TEXTS[:, :7])
    with pytest.raises(ValueError, match="No tokenizer: set model.tokenizer"):
        model.encode_text("a cat")


@pytest.mark.parametrize(
    ("variant", "fields", "message"),
    [
        ("SigLIP-X", {}, 'Unknown text encoder "SigLIP-X".*Valid: SigLIP-B'),
        ("SigLIP-B", {"hieght": 3}, 'TextEncoder: unknown argument "hieght"'),
        ("SigLIP-B", {"end": 3}, 'end=3 has no effect with pool="last"'),
        ("CLIP-B", {"vocabulary": 40}, 'pool="end" needs end.* below 40, got 49407'),
        ("SigLIP-B", {"heads": 5}, "768 does not divide into 5 heads"),
        ({"depth": 1}, {}, "needs vocabulary, length, width"),
    ],
)
def test_invalid_fields_are_refused(variant, fields, message):
    with pytest.raises(ValueError, match=message):
        make_text_spec(variant, **fields)


def test_other_models_and_templates_are_refused(model):
    with pytest.raises(ValueError, match="expected an image encoder without a head"):
        keras_vit.DualEncoder(keras_vit.ViT("B/8", image_size=16, classes=3, **SIZE), model.text_encoder)
    with pytest.raises(ValueError, match='Unknown activation "relu". Valid: sigmoid, softmax'):
        keras_vit.DualEncoder(model.image_encoder, model.text_encoder, activation="relu")
    with pytest.raises(ValueError, match="Templates should be texts with {} for the label, got 'a cat'"):
        zero_shot.resolve_templates(["a cat"])
    with pytest.raises(ValueError, match='Unknown templates "phto". Did you mean "photo"'):
        zero_shot.resolve_templates("phto")
