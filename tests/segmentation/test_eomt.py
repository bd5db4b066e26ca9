"""EoMT: it learns a toy set, masked attention and its annealing, the loss beside SciPy's matching, refusals."""

import keras
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import keras_vit
from keras_vit.segmentation.heads.eomt import MaskedAttention, SemanticMap
from keras_vit.segmentation.mask_loss import class_shares
from keras_vit.training import AdamW, MaskClassificationLoss, SegmentationLoss, SegmentationScores

SIZES = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32}
RNG = np.random.default_rng(0)
EPOCHS = 10


def scenes(n=24, side=32):
    """(images, masks) of a disc and a square on the ground, with void above."""
    rows, columns = np.mgrid[:side, :side]
    masks = np.zeros((n, side, side), "uint8")
    for mask in masks:
        y, x = RNG.integers(8, 24, 2)
        mask[(rows - y) ** 2 + (columns - x) ** 2 < 49] = 1
        y, x = RNG.integers(0, 20, 2)
        mask[y : y + 12, x : x + 12] = 2
    images = np.array([[40] * 3, [220, 60, 60], [60, 60, 220]])[masks] + RNG.integers(0, 30, (n, side, side, 3))
    masks[:, :2] = 255
    return images.astype("uint8"), masks


@pytest.fixture(scope="module")
def trained():
    """(model, history, images, masks); the masks' annealing ends with the training."""
    keras.utils.set_random_seed(0)
    images, masks = scenes()
    options = {"queries": 6, "blocks": 1, "annealing_steps": 3 * EPOCHS}
    model = keras_vit.SegmentationModel(
        "Ti/8", head="eomt", classes=3, image_size=32, auxiliary=1.0, head_options=options, **SIZES
    )
    model.compile(AdamW(5e-3), MaskClassificationLoss(3), weighted_metrics=[SegmentationScores(3)])
    history = model.fit(images, masks, batch_size=8, epochs=EPOCHS, verbose=0).history
    return model, history, images, masks


@pytest.mark.extended
def test_it_learns(trained):
    _, history, _, masks = trained
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert history["pixel_accuracy"][-1] > np.mean(masks[masks < 255] == 0) + 0.05  # of the most frequent class


@pytest.mark.extended
def test_annealing_counts_updates(trained):
    [(_, masked)] = trained[0].decoder.auxiliary
    assert int(masked.step) == 3 * EPOCHS and float(masked.probability()) == 0.0


@pytest.mark.extended
def test_a_file_holds_the_state_of_the_annealing_and_the_model_that_predicts(trained, tmp_path):
    model, _, images, _ = trained
    model.save(tmp_path / "model.keras")
    copy = keras_vit.load(tmp_path / "model.keras")
    assert int(copy.decoder.auxiliary[0][1].step) == 3 * EPOCHS
    alone = copy.without_auxiliary()
    expected = np.asarray(model(images[:2])["logits"])
    np.testing.assert_allclose(np.asarray(alone(images[:2])), expected, atol=1e-5)  # inference has no masks
    assert alone.segment(images[0]).classes.shape == (32, 32)


def test_queries_attend_to_their_masks_in_training():
    layer = MaskedAttention(0, 1, 3, (2, 3), prefix=1)
    masks = RNG.normal(size=(2, 2, 3, 4)).astype("float32")
    allowed = np.asarray(layer(masks, training=True))
    assert allowed.shape == (2, 11, 11) and allowed[:, :7].all()  # class token and patches see all
    np.testing.assert_array_equal(allowed[:, 7:, 1:7], masks.reshape(2, 6, 4).transpose(0, 2, 1) > 0)
    assert allowed[:, 7:, 0].all() and allowed[:, 7:, 7:].all()
    assert np.asarray(layer(masks)).all()
    layer.step.assign(2)  # of 3: the whole of the middle third has passed
    assert np.asarray(layer(masks, training=True)).all()


def test_masks_are_annealed_from_the_first_block_to_the_last():
    found = []
    for block in range(2):
        layer = MaskedAttention(block, 2, 80, (1, 1), prefix=0)
        layer.build((None, 4, 4, 2))
        for step in (0, 20, 30, 40, 50, 60):
            layer.step.assign(step)
            found.append(round(float(layer.probability()), 3))
    half = round(0.5**0.9, 3)
    assert found == [1, 1, half, 0, 0, 0] + [1, 1, 1, 1, half, 0]


def test_scores_are_classes_times_masks():
    classes, masks = (RNG.normal(size=shape).astype("float32") for shape in ((1, 4, 3), (1, 5, 6, 4)))
    shares = np.exp(classes) / np.exp(classes).sum(-1, keepdims=True)
    expected = np.log(np.einsum("bqk,bhwq->bhwk", shares[..., :-1], 1 / (1 + np.exp(-masks))))
    np.testing.assert_allclose(np.asarray(SemanticMap((5, 6))(classes, masks)), expected, atol=1e-5)


def loss_by_scipy(mask, logits, classes, void=255):
    """The loss of one image, for masks at the size of pixels."""
    scores, masks = logits[:, : classes + 1], logits[:, classes + 1 :]
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    counted, labels = mask.ravel() != void, mask.ravel()
    there = [k for k in range(classes) if (labels == k).any()]
    cost = np.zeros((len(logits), len(there)))
    of_masks = np.zeros_like(cost)
    for q, row in enumerate(masks[:, counted]):
        inside = 1 / (1 + np.exp(-row))
        for j, k in enumerate(there):
            true = labels[counted] == k
            entropy = -np.mean(np.where(true, np.log(inside), np.log(1 - inside)))
            dice = 1 - (2 * (inside * true).sum() + 1) / (inside.sum() + true.sum() + 1)
            of_masks[q, j] = 5 * entropy + 5 * dice
            cost[q, j] = of_masks[q, j] - 2 * np.exp(log_p[q, k])
    rows, columns = linear_sum_assignment(cost)
    target, weight = np.full(len(logits), classes), np.full(len(logits), 0.1)
    target[rows], weight[rows] = np.array(there, int)[columns], 1.0
    entropy = -(weight * log_p[np.arange(len(logits)), target]).sum() / weight.sum()
    return 2 * entropy + of_masks[rows, columns].sum() / max(len(there), 1)


@pytest.mark.extended
def test_the_loss_is_that_of_scipys_matching():
    masks = RNG.integers(0, 4, (3, 4, 6))
    masks[masks == 3] = 255
    masks[1, :] = 2
    masks[2, :] = 255  # nothing to find
    logits = RNG.normal(size=(3, 5, 4 + 24)).astype("float32")
    expected = [loss_by_scipy(mask, rows, 3) for mask, rows in zip(masks, logits)]
    loss = MaskClassificationLoss(3, reduction=None)
    np.testing.assert_allclose(np.asarray(loss(masks, logits)), expected, rtol=1e-4)


def test_cells_have_the_share_of_each_class():
    labels = np.array([[0, 0, 1, 1], [0, 2, 1, 1]])[None]
    counted = np.array([[1, 1, 1, 0], [1, 1, 1, 0]], "float32")[None]
    found = np.asarray(class_shares(labels, counted, (1, 2), 3))
    np.testing.assert_allclose(found, [[[0.75, 0, 0.25], [0, 0.5, 0]]])


def made(head="eomt", **options):
    arguments = {"head": head, "classes": 3, "image_size": 16, "auxiliary": 1.0, **SIZES, **options}
    return keras_vit.SegmentationModel("Ti/8", **arguments)


@pytest.mark.extended
def test_losses_and_encoders_that_do_not_suit_are_refused():
    with pytest.raises(ValueError, match=r"predicts masks, .* write keras_vit.training.MaskClassificationLoss\(3\)"):
        made().compile("sgd", SegmentationLoss())
    with pytest.raises(ValueError, match="has 4 classes, the model 3"):
        made().compile("sgd", MaskClassificationLoss(4))
    with pytest.raises(ValueError, match="build it with auxiliary=1.0"):
        made(auxiliary=0.0).compile("sgd", MaskClassificationLoss(3))
    with pytest.raises(ValueError, match="gives every pixel a class"):
        made("linear", auxiliary=0.0).compile("sgd", MaskClassificationLoss(3))
    for options, needed in (
        ({"positions": "rope2d"}, "positions that are added at the stem"),
        ({"token_merging": 1}, "all patches"),
        ({"fc_norm": True}, "a normalisation after its blocks"),
        ({"head_options": {"blocks": 3}}, "blocks=3: the encoder has 2"),
    ):
        with pytest.raises(ValueError, match=needed):
            made(**options)
    with pytest.raises(ValueError, match="an encoder with a ViT"):
        keras_vit.SegmentationModel("R26x1", "eomt", 2, image_size=32, width_factor=0.5)
