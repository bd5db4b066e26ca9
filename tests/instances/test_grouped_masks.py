"""The loss of RF-DETR-Seg: masks decide matches, and have the losses of the formulas; crowds, groups, padding."""

import itertools

import numpy as np
import pytest

from keras_vit.instances.heads.query_masks import PackedMasks
from keras_vit.training import GroupedInstanceLoss, GroupedSetPredictionLoss

S, G, Q, K, D, P = 2, 2, 3, 2, 4, 6
RANDOM = np.random.default_rng(1)
BOX, LOGITS = [0.1, 0.2, 0.6, 0.7], [0.3, -0.4]
QUERIES = RANDOM.normal(size=(1, S, G * Q, D)).astype("float32")
PLACES = RANDOM.normal(size=(1, S, P, D)).astype("float32")
MASKS = np.array([[1, 1, 0, 0.5, 0, 0], [0, 0, 1, 0, 0.25, 1]], "float32")
pytestmark = pytest.mark.usefixtures("eagerly")


def objects(kind=0):
    """(1, 3, 7 + p): two objects of the class 1, of which the second is of this kind, and padding."""
    y = np.full((1, 3, 7 + P), 0.0, "float32")
    y[..., 4] = -1
    for i, box in enumerate([BOX, [0.3, 0.3, 0.9, 0.8]]):
        y[0, i] = [*box, 1, kind if i else 0, 40, *MASKS[i]]
    return y


def rows(number=Q):
    """Predictions (1, s, g, q, 4 + k), all alike: without masks any match would do."""
    return np.tile(np.array([*BOX, *LOGITS], "float32"), (1, S, G, number, 1))


def packed(queries=QUERIES):
    return PackedMasks()(rows(), queries, PLACES)


def losses(queries, places, mask, counted=1.0):
    """5 (mean binary cross-entropy + dice loss) of each query with an object's mask."""
    p = 1 / (1 + np.exp(-queries @ places.T))  # (q, p)
    counted = counted * np.ones(P)
    entropy = -(mask * np.log(p) + (counted - mask) * np.log(1 - p)).sum(axis=1) / counted.sum()
    return 5 * (entropy + 1 - (2 * (p * mask).sum(axis=1) + 1) / ((p * counted).sum(axis=1) + mask.sum() + 1))


def test_the_best_masks_are_matched_and_learned():
    expected = 0.0
    for i, g in np.ndindex(S, G):
        own = QUERIES[0, i, g * Q : (g + 1) * Q]
        pairs = np.stack([losses(own, PLACES[0, i], mask) for mask in MASKS], axis=1)  # (q, m)
        expected += min(pairs[a, 0] + pairs[b, 1] for a, b in itertools.permutations(range(Q), 2))
    plain = GroupedInstanceLoss(K, mask_weight=0, dice_weight=0)(objects(), packed())
    assert float(plain) == pytest.approx(float(GroupedSetPredictionLoss()(objects()[..., :7], rows())), rel=1e-5)
    difference = GroupedInstanceLoss(K)(objects(), packed()) - plain
    assert float(difference) == pytest.approx(expected / (G * 2), rel=1e-5)


def test_a_crowd_is_not_matched_and_its_pixels_do_not_count():
    expected = 0.0
    for i, g in np.ndindex(S, G):
        own, counted = QUERIES[0, i, g * Q : (g + 1) * Q], 1 - MASKS[1]
        expected += losses(own, PLACES[0, i], MASKS[0], counted).min()
    plain = GroupedInstanceLoss(K, mask_weight=0, dice_weight=0)(objects(1), packed())
    difference = GroupedInstanceLoss(K)(objects(1), packed()) - plain
    assert float(difference) == pytest.approx(expected / G, rel=1e-5)


def test_images_without_objects_have_no_loss_of_masks():
    y = objects()
    y[..., 4] = -1
    plain = GroupedInstanceLoss(K, mask_weight=0, dice_weight=0)(y, packed())
    assert float(GroupedInstanceLoss(K)(y, packed())) == pytest.approx(float(plain))


def test_its_config_makes_it_again():
    loss = GroupedInstanceLoss(K, mask_weight=3.0, giou_cost=1.0)
    again = GroupedInstanceLoss.from_config(loss.get_config())
    assert again.get_config() == loss.get_config() and (again.classes, again.mask_weight, again.giou_cost) == (K, 3, 1)
    with pytest.raises(ValueError, match="GroupedInstanceLoss: dice_weight"):
        GroupedInstanceLoss(K, dice_weight=-1)
