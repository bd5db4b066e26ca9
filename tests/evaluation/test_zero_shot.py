"""The evaluator zero_shot: the measures of a classifier whose head is texts; names and templates."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import Setting, make_evaluator

SIZE = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
TEXTS = np.random.RandomState(0).randint(0, 40, (9, 8)).astype("int32")
IMAGES = np.random.RandomState(1).randint(0, 256, (6, 16, 16, 3)).astype("uint8")
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def model():
    """A tiny dual encoder that answers a text by its place in `model.seen`."""
    keras.utils.set_random_seed(0)
    image = keras_vit.ViT("B/8", image_size=16, classes=None, preprocessing="decode|resize(16, 16)", **SIZE)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=40, length=8, outputs=8, **SIZE)
    made = keras_vit.DualEncoder(image, text)
    made.seen = []
    made.tokenizer = lambda texts: made.seen.extend(texts) or TEXTS[: len(texts)]
    return made


def setting(model, names=("cat", "dog", "emu")):
    return Setting(model, batch_size=4, source=from_arrays(IMAGES, LABELS, class_names=names))


@pytest.mark.extended
def test_the_measures_are_those_of_the_best_texts(model):
    model.seen.clear()
    found = make_evaluator("zero_shot", {"templates": ("a {}", "the {}")}).prepare(setting(model))()
    assert model.seen == ["a cat", "the cat", "a dog", "the dog", "a emu", "the emu"]
    texts = model.encode_text(TEXTS[:6]).reshape(3, 2, -1).mean(1)
    best = (model.encode_image(IMAGES) @ (texts / np.linalg.norm(texts, axis=1, keepdims=True)).T).argmax(1)
    assert found.measures["top1"] == pytest.approx((best == LABELS).mean()) and found.measures["examples"] == 6
    assert found.details["classes"] == ["cat", "dog", "emu"]


@pytest.mark.extended
def test_names_in_texts_may_be_others(model, tmp_path):
    (tmp_path / "names.txt").write_text("a cat\na dog\nan emu\n")
    for names in (("a cat", "a dog", "an emu"), str(tmp_path / "names.txt")):
        model.seen.clear()
        make_evaluator("zero_shot", {"templates": "label", "class_names": names}).prepare(setting(model))()
        assert model.seen == ["a cat", "a dog", "an emu"]


def test_what_cannot_be_measured_is_refused(model):
    with pytest.raises(ValueError, match="class_names has 2 names, and the data 3 classes"):
        make_evaluator("zero_shot", {"class_names": ("a", "b")}).prepare(setting(model))
    with pytest.raises(ValueError, match=r"does not give embeddings.*--load.text=True"):
        make_evaluator("zero_shot", {}).prepare(setting(model.image_encoder))
    with pytest.raises(ValueError, match="Templates should be texts with {} for the label, got 'cat'"):
        make_evaluator("zero_shot", {"templates": ("cat",)}).prepare(setting(model))
