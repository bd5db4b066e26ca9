"""Training on images with their texts: losses by their definitions, and what learns."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import AdamW, PairAccuracy, SigmoidContrastive, SoftmaxContrastive

SIZE = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
IMAGES = np.random.RandomState(0).randint(0, 256, (6, 8, 8, 3)).astype("uint8")
TEXTS = np.random.RandomState(1).randint(0, 20, (6, 4)).astype("int32")
ROWS = np.random.RandomState(2).normal(size=(3, 2, 3)).astype("float32")


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    image = keras_vit.ViT("B/4", image_size=8, classes=None, pool="gap", **SIZE)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=20, length=4, outputs=8, **SIZE)
    return keras_vit.DualEncoder(image, text)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_sigmoid_loss_decides_each_pair_by_itself():
    signs = 2 * np.eye(3) - 1
    expected = -np.log(sigmoid(signs * ROWS[:, 0])).sum(1).mean()  # the sum over texts, the mean over images
    assert float(SigmoidContrastive()(np.zeros(3), ROWS)) == pytest.approx(expected, rel=1e-5)


def test_the_softmax_loss_finds_texts_and_images():
    shares = [np.exp(rows) / np.exp(rows).sum(1, keepdims=True) for rows in (ROWS[:, 0], ROWS[:, 1])]
    expected = -np.mean([np.log(np.diag(share)) for share in shares])
    assert float(SoftmaxContrastive()(np.zeros(3), ROWS)) == pytest.approx(expected, rel=1e-5)


def test_accuracy_counts_images_that_find_their_text():
    rows = np.stack([np.array([[2.0, 0, 0], [3, 1, 0], [0, 0, 1]])] * 2, axis=1)
    metric = PairAccuracy()
    metric.update_state(np.zeros(3), rows)
    assert float(metric.result()) == pytest.approx(2 / 3)


@pytest.mark.extended
def test_outputs_are_the_logits_both_ways(model):
    found = np.asarray(keras_vit.Contrastive(model)([IMAGES.astype("float32"), TEXTS]))
    logits = model.similarity(IMAGES, TEXTS)
    np.testing.assert_allclose(found, np.stack([logits, logits.T], axis=1), atol=1e-5)


@pytest.mark.parametrize("projection", [None, 8])
def test_features_stand_for_the_images_of_a_frozen_encoder(model, projection):
    pair = keras_vit.DualEncoder(model.image_encoder, model.text_encoder, projection=projection)
    features = np.asarray(pair.image_encoder(IMAGES.astype("float32")))
    training = keras_vit.Contrastive(pair, on_features=True)
    expected = keras_vit.Contrastive(pair)([IMAGES.astype("float32"), TEXTS])
    np.testing.assert_allclose(training([features, TEXTS]), expected, atol=1e-5)
    assert training.clone().on_features and training.dual_encoder is pair


@pytest.mark.extended
@pytest.mark.usefixtures("eagerly")
def test_texts_learn_to_fit_a_frozen_image_encoder(model):
    """LiT: and a clone of the training starts from the same model."""
    before = [w.numpy() for w in model.image_encoder.weights]
    model.image_encoder.trainable = False
    training = keras_vit.Contrastive(model)
    training.compile(AdamW(0.03), SoftmaxContrastive(), weighted_metrics=[PairAccuracy()], jit_compile=False)
    history = training.fit([IMAGES, TEXTS], np.zeros(6), batch_size=6, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0] and history["pair_accuracy"][-1] > 0.5
    for weight, old in zip(model.image_encoder.weights, before):
        np.testing.assert_array_equal(weight.numpy(), old)
    copy = training.clone()
    np.testing.assert_array_equal(copy.dual_encoder.encode_text(TEXTS), model.encode_text(TEXTS))


def test_ids_of_another_tokenizer_are_refused(model):
    with pytest.raises(ValueError, match="Expected token ids from 0 to 19, .* got 3 to 20"):
        model.tokens(np.array([[3, 4, 5, 20]]))


def test_only_dual_encoders_train_so(model):
    with pytest.raises(ValueError, match="Contrastive takes a keras_vit.DualEncoder"):
        keras_vit.Contrastive(model.image_encoder)
