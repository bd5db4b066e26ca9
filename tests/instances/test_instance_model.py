"""InstanceModel: training on drawn scenes, what it finds, and what it refuses."""

import keras
import numpy as np
import pytest
from instance_scenes import CLASSES, scene

import keras_vit
from keras_vit.data import pack_masks
from keras_vit.instances.found import Instances, sampled
from keras_vit.instances.panoptic import merged
from keras_vit.instances.selection import BestObjects, mask_boxes

OPTIONS = {
    "head_options": {"queries": 12},
    "classes": 4,
    "image_size": 64,
    "depth": 2,
    "width": 32,
    "heads": 2,
    "mlp_dim": 64,
}


def instance_model(**changes):
    keras.utils.set_random_seed(0)
    return keras_vit.InstanceModel("Ti/8", **{**OPTIONS, **changes})


@pytest.fixture(scope="module")
def scenes():
    """Four scenes of 64 pixels: images (4, 64, 64, 3), and for each masks (m, 64, 64) and labels (m,)."""
    rng = np.random.default_rng(0)
    found = [scene(rng, 64) for _ in range(4)]
    images, masks, labels = zip(*found)
    return np.stack(images), masks, labels


@pytest.fixture(scope="module")
def trained(scenes):
    """A model that has learnt these scenes by heart, and its losses."""
    images, masks, labels = scenes
    model = instance_model(class_names=CLASSES, stuff=["star"])
    model.compile(keras_vit.training.AdamW(3e-3), keras_vit.training.InstanceLoss(4))
    targets = pack_masks(masks, labels, model.mask_grid)
    return model, model.fit(images, targets, batch_size=4, epochs=60, verbose=0).history["loss"]


def overlap(one, other):
    return (one & other).sum() / (one | other).sum()


@pytest.mark.extended
def test_training_finds_masks_and_classes(trained, scenes):
    model, losses = trained
    images, masks, labels = scenes
    assert losses[-1] < 0.35 * losses[0]
    hits = total = 0
    for found, true_masks, truth in zip(model.detect(images, threshold=0.3), masks, labels):
        for mask, label in zip(true_masks, truth):
            if CLASSES[label] != "star":
                total += 1
                hits += any(overlap(mask, found.mask(i)) > 0.5 for i in np.flatnonzero(found.labels == label))
    assert hits > 0.6 * total


@pytest.mark.extended
def test_stuff_is_no_object_and_is_a_segment(trained, scenes):
    model, _ = trained
    assert model.stuff == ("star",)
    assert 3 not in model.finder(48).predict(scenes[0], verbose=0)["labels"]
    assert 3 in model.queries().predict(scenes[0], verbose=0)["labels"]


@pytest.mark.extended
def test_a_file_keeps_the_model(trained, scenes, tmp_path):
    model, _ = trained
    model.score_threshold = 0.4
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert (again.stuff, again.score_threshold, again.class_names) == (("star",), 0.4, CLASSES)
    ours, theirs = (each.without_auxiliary().predict(scenes[0], verbose=0) for each in (model, again))
    assert sorted(ours) == ["logits", "masks"]
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-5, atol=1e-5)


def test_the_loss_of_perfect_masks_is_that_of_the_definition():
    """An object on two of four cells and one query: the probability of its class is 1/2, the logits of its mask 2."""
    y = np.zeros((1, 2, 11), "float32")
    y[0, 0] = [0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    y[0, 1, 4] = -1
    rows = np.array([[[0, 0, 2, 2, -2, -2]]], "float32")  # (b, q, k + 1 + p)
    p = 1 / (1 + np.exp(-2.0))
    dice = 1 - (2 * 2 * p + 1) / (2 * p + 2 * (1 - p) + 2 + 1)
    expected = 2 * np.log(2) + 5 * -np.log(p) + 5 * dice
    assert float(keras_vit.training.InstanceLoss(1)(y, rows)) == pytest.approx(expected, rel=1e-5)


def test_pixels_of_a_crowd_do_not_count():
    """A crowd on the last cell: whatever the mask is there, the loss is the same."""
    y = np.zeros((2, 2, 11), "float32")
    y[:, 0] = [0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    y[:, 1] = [0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1]
    rows = np.array([[[0, 0, 2, 2, -2, -2]], [[0, 0, 2, 2, -2, 9]]], "float32")
    one, other = keras_vit.training.InstanceLoss(1, reduction=None)(y, rows).numpy()
    assert one == pytest.approx(other, rel=1e-6)


def test_images_without_objects_teach_no_object():
    y = np.zeros((1, 1, 11), "float32")
    y[..., 4] = -1
    quiet, loud = (np.array([[[logit, 0, 0, 0, 0, 0]]], "float32") for logit in (-5.0, 5.0))
    loss = keras_vit.training.InstanceLoss(1)
    assert float(loss(y, quiet)) < 0.1 < float(loss(y, loud))


@pytest.mark.parametrize("pixel", [(0, 0), (3, 5), (7, 7)])
def test_boxes_of_one_cell_reach_to_where_the_logits_change_sign(pixel):
    """Between a centre of 1 and its neighbours of -1 the logits are 0 halfway; at the border nothing follows."""
    masks = np.full((1, 1, 8, 8), -1.0, "float32")
    masks[0, 0, pixel[0], pixel[1]] = 1.0
    top, left, bottom, right = np.asarray(mask_boxes(masks))[0, 0] * 8
    assert (top, left, bottom, right) == pytest.approx((*pixel, pixel[0] + 1, pixel[1] + 1), abs=1e-5)


def test_an_empty_mask_is_no_object():
    logits, masks = np.zeros((1, 3, 2), "float32"), np.full((1, 4, 4, 3), -1.0, "float32")
    masks[0, 1:3, 1:3, 2] = 3.0
    found = BestObjects(limit=3)(logits, masks)
    assert np.asarray(found["labels"]).tolist() == [[0, -1, -1]]
    quality = 1 / (1 + np.exp(-3.0))
    assert np.asarray(found["scores"])[0] == pytest.approx([0.5 * quality, 0, 0], rel=1e-5)


def test_masks_are_resized_as_keras_resizes():
    rng = np.random.default_rng(1)
    grid = rng.normal(size=(6, 5)).astype("float32")
    expected = keras.ops.image.resize(grid[..., None], (31, 22), "bilinear", data_format="channels_last")
    whole = sampled(grid, (0.0, 0.0, 1.0, 1.0), (31, 22), range(31), range(22))
    np.testing.assert_allclose(whole, np.asarray(expected)[..., 0], atol=1e-5)
    part = sampled(grid, (0.0, 0.0, 1.0, 1.0), (31, 22), range(4, 9), range(7, 20))
    np.testing.assert_allclose(part, whole[4:9, 7:20], atol=1e-6)


def objects_with_masks(size=(40, 60)):
    """Two objects: the second, with the lower score, lies half behind the first."""
    grids = np.full((2, 4, 6), -2.0, "float32")
    grids[0, 1:3, 1:3] = grids[1, 1:3, 2:5] = 2.0
    boxes = np.array([[10, 10, 30, 30], [10, 20, 30, 50]], "float32")
    frames = np.tile(np.array([0, 0, 1, 1], "float32"), (2, 1))
    image = np.full((*size, 3), 200, "uint8")
    return Instances(boxes, np.array([0.9, 0.8], "float32"), np.array([0, 1]), ("cat", "dog"), image, grids, frames)


def test_instances_give_masks_at_the_image_size():
    found = objects_with_masks()
    assert found.masks.shape == (2, 40, 60)
    assert [found.mask(i).tolist() == found.masks[i].tolist() for i in range(2)] == [True, True]
    rows, columns, inside = found.part(0)
    assert inside.sum() == found.mask(0).sum() == found.masks[0, rows, columns].sum() > 300
    number = found.map()
    assert (number[found.mask(0)] == 1).all() and (number[found.mask(1) & ~found.mask(0)] == 2).all()
    assert [len(mask["counts"]) > 4 and mask["size"] == [40, 60] for mask in found.run_lengths()] == [True, True]
    assert overlap(found.mask(0, (20, 30)), found.mask(0)[::2, ::2]) > 0.8
    assert found.picture().size == (360, 240)  # enlarged, so that labels do not cover the objects
    assert repr(found) == "Instances(40 x 60 pixels: cat 90%, dog 80%)"


def test_some_of_the_instances_have_their_masks():
    found = objects_with_masks()
    assert found[0] == next(iter(found)) and found[-1].name == "dog"
    second, none = found[found.labels == 1], found[2:]
    assert second.names == ("dog",) and (second.mask(0) == found.mask(1)).all()
    assert len(none) == 0 and none.masks.shape == (0, 40, 60)
    with pytest.raises(IndexError):
        found[2]


def test_panoptic_merging_gives_a_pixel_to_one_segment():
    """By Mask2Former's rules: the stronger query takes the common cells, one that keeps too little is left out, and
    stuff of one class is one segment.
    """
    grids = np.full((4, 4, 8), -9.0, "float32")
    grids[0, :2, :4] = grids[1, :2, 2:4] = 9.0  # the second is hidden behind the first
    grids[2, 2:, :2] = grids[3, 2:, 6:] = 9.0  # two parts of one stuff
    scores, labels = np.array([0.95, 0.9, 0.9, 0.85], "float32"), np.array([0, 0, 1, 1])
    segments, kept, of_segments = merged(grids, scores, labels, (1,), (4, 8))
    expected = [[1] * 4 + [0] * 4] * 2 + [[2] * 2 + [0] * 4 + [2] * 2] * 2
    assert segments.tolist() == expected
    assert (kept.tolist(), of_segments.tolist()) == ([0, 1], pytest.approx([0.95, 0.9]))
    assert merged(grids[2:], scores[2:], labels[2:], (), (4, 8))[1].tolist() == [1, 1]  # two things


def test_parts_of_large_images_are_merged_as_the_whole():
    """By the definition: products of all queries at all pixels."""
    rng, size = np.random.default_rng(0), (230, 310)
    y, x = np.mgrid[:12, :16]
    middle, side = 14 * rng.random((60, 2, 1, 1)), rng.random((60, 1, 1))
    grids = (9 - 9 * np.hypot(y - middle[:, 0], x - middle[:, 1]) / (1 + 8 * side)).astype("float32")
    scores = rng.permutation(60).astype("float32") / 60
    logits = np.stack([sampled(grid, (0.0, 0.0, 1.0, 1.0), size, range(230), range(310)) for grid in grids])
    owner = (scores[:, None, None] / (1 + np.exp(-logits.astype("float64")))).argmax(0)
    expected = [(owner == i) & (logits[i] >= 0) for i in np.argsort(-scores)]
    expected = [mask for mask in expected if mask.any()]
    segments, _, kept = merged(grids, scores, np.zeros(60, int), (), size, overlap=0.0)
    assert len(kept) == len(expected) > 10
    assert all((mask == (segments == i)).all() for i, mask in enumerate(expected, 1))


def test_nothing_found_is_an_answer():
    segments, labels, scores = merged(np.zeros((0, 4, 4), "float32"), np.zeros(0), np.zeros(0, int), (), (5, 7))
    assert (segments.shape, segments.any(), len(labels), len(scores)) == ((5, 7), False, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": "emot"}, 'Did you mean "eomt"'),
        ({"stuff": ["sky"]}, "'sky' is not a class. Valid: 0, 1, 2, 3"),
        ({"auxiliary": -1}, "auxiliary"),
        ({"head_options": {"querys": 3}}, 'Did you mean "queries"'),
        ({"score_threshold": 2}, "from 0 to 1"),
    ],
)
def test_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        instance_model(**arguments)


def test_wrong_losses_and_targets_are_refused():
    model = instance_model()
    with pytest.raises(ValueError, match=r"loss=keras_vit.training.InstanceLoss\(4\)"):
        model.compile("adam", keras_vit.training.DenseDetectionLoss())
    with pytest.raises(ValueError, match="has 3 classes, the model 4"):
        model.compile("adam", keras_vit.training.InstanceLoss(3))
    with pytest.raises(ValueError, match=r"build it with\s+auxiliary=1"):
        instance_model(auxiliary=0).compile("adam", keras_vit.training.InstanceLoss(4))
    model.compile("adam", keras_vit.training.InstanceLoss(4))
    images, rows = np.zeros((2, 64, 64, 3), "uint8") + 9, np.zeros((2, 1, 7), "float32")
    with pytest.raises(ValueError, match="These are boxes without masks"):
        model.fit(images, rows, verbose=0)
    h, w = model.mask_grid
    with pytest.raises(ValueError, match="from 0 to 1, and some are from 255 to 255"):
        model.fit(images, np.full((2, 1, 7 + h * w), [0, 0, 1, 1, 0, 0, 0, *[255] * h * w], "float32"), verbose=0)


def test_options_of_detect_are_refused():
    model = instance_model()
    image = np.zeros((64, 64, 3), "uint8")
    for options, message in (({"limit": 0}, "limit"), ({"threshold": 2}, "threshold"), ({"tiles": 0}, "tiles")):
        with pytest.raises(ValueError, match=message):
            model.detect(image, **options)
    with pytest.raises(ValueError, match="overlap"):
        model.segment(image, overlap=3)


def test_a_segmentation_model_of_eomt_becomes_one_of_instances():
    """The semantic map, by its definition, from the instances' logits and masks of the same layers."""
    options = {**OPTIONS, "class_names": CLASSES}
    semantic = keras_vit.SegmentationModel("Ti/8", head="eomt", **options)
    model = keras_vit.InstanceModel.from_segmentation(semantic, stuff=["star"])
    image = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype("float32")
    found, logits = model.predict_on_batch(image), semantic.predict_on_batch(image)
    p = np.asarray(keras.ops.softmax(found["logits"]))[0, :, :-1]  # (q, k)
    masks = keras.ops.image.resize(found["masks"], (64, 64), "bilinear", data_format="channels_last")
    scores = np.asarray(keras.ops.sigmoid(masks))[0] @ p  # (h, w, k)
    np.testing.assert_allclose(logits[0], np.log(scores), atol=1e-4)
    assert (model.stuff, model.class_names) == (("star",), CLASSES)
    other = keras_vit.SegmentationModel("Ti/8", head="linear", classes=4, image_size=64, depth=2)
    with pytest.raises(ValueError, match='has the head "linear"'):
        keras_vit.InstanceModel.from_segmentation(other)


SQUARE = np.ones((1, 8, 8), bool)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([SQUARE], [[0]], 16), r"grid is \(height, width\) in cells, such as model.mask_grid, got 16"),
        (([SQUARE], [[0]], (0, 2)), "grid is"),
        (([SQUARE], [[0]], (2, 2), 2.5), "limit is a number of rows, 1 or more, got 2.5"),
        (([SQUARE], [[0], [1]], (2, 2)), "masks and labels of the same images, got 1 and 2"),
        (([SQUARE], [["cat"]], (2, 2)), "labels are class numbers from 0, got 'cat'"),
        (([SQUARE], [0], (2, 2)), r"1 masks need labels \(1,\), got \(\)"),
        (([SQUARE, SQUARE], [[0], [0]], (2, 2), None, [[0]]), "crowd has the values of 1 images"),
        (([[SQUARE[0], SQUARE[0, :4]]], [[0, 0]], (2, 2)), "its masks have several sizes"),
        (([np.zeros((1, 0, 0))], [[0]], (2, 2)), r"expected masks \(m, h, w\)"),
    ],
)
def test_masks_to_pack_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pack_masks(*arguments)


@pytest.mark.extended
def test_a_batch_without_objects_trains():
    model = instance_model(depth=1)
    model.compile(keras_vit.training.AdamW(1e-3), keras_vit.training.InstanceLoss(4))
    targets = pack_masks([[], []], [[], []], model.mask_grid)
    assert targets.shape == (2, 1, 7 + 16 * 16) and (targets[..., 4] == -1).all()
    history = model.fit(np.full((2, 64, 64, 3), 99, "uint8"), targets, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]
    assert pack_masks([], [], (4, 4)).shape == (0, 1, 7 + 16)
