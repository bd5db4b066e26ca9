"""RF-DETR-Seg's mask branch: the original's masks, groups and packing, training, detections, refusals."""

import json
import pathlib

import keras
import numpy as np
import pytest
from original_query_masks import BLOCKS, CELLS, QUERIES, SIZE, WIDTH, inputs
from small_models import NAMED

import keras_vit
from keras_vit.checkpoints.formats.lw_detr_names import MASKS, mask_map
from keras_vit.instances.heads.query_masks import MaskBranch, PackedMasks, unpacked_masks
from keras_vit.training import AdamW, GroupedInstanceLoss, InstanceLoss

GOLDEN = json.loads(pathlib.Path(__file__).with_name("query_masks.json").read_text())
SIZES = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16, "image_size": (32, 48), "classes": 3, "class_names": NAMED}
OPTIONS = {"queries": 5, "groups": 3, "layers": 2, "width": 16, "heads": 2, "map_heads": 4, "mlp_dim": 16, "blocks": 1}
GRID = (8, 12)


def made(options=OPTIONS, **fields):
    keras.utils.set_random_seed(0)
    return keras_vit.InstanceModel("Ti/8", head="rf_detr", head_options=options, **{**SIZES, **fields})


@pytest.fixture(scope="module")
def model():
    return made()


def scenes():
    """Images (4, 32, 48, 3) of one or two coloured rectangles, and their targets (4, 3, 7 + 96)."""
    x, y = np.full((4, 32, 48, 3), 60, "uint8"), np.zeros((4, 3, 7 + 96), "float32")
    y[..., 4] = -1
    for i in range(4):
        for j, (top, left, h, w) in enumerate([(0, 4 * i, 12, 16), (16, 24, 16, 8 + 4 * i)][: 1 + (i > 0)]):
            rows, columns = slice(top, top + h), slice(left, left + w)
            x[i, rows, columns] = (220, 30, 90) if j else (30, 200, 30)
            mask = np.zeros((32, 48))
            mask[rows, columns] = 1
            y[i, j, :7] = top / 32, left / 48, (top + h) / 32, (left + w) / 48, j + 1, 0, h * w
            y[i, j, 7:] = mask.reshape(8, 4, 12, 4).mean(axis=(1, 3)).reshape(-1)
    return x, y


def overlaps(model):
    """The mask IoU of each object of `scenes` with the query most certain of its class."""
    x, y = scenes()
    outputs = {name: np.array(value) for name, value in model(x).items()}
    for logits, masks, rows in zip(outputs["logits"], outputs["masks"], y):
        for row in rows[rows[:, 4] >= 0]:
            found = masks[..., logits[:, int(row[4])].argmax()].reshape(-1) > 0
            yield (found & (row[7:] > 0.5)).sum() / (found | (row[7:] > 0.5)).sum()


def test_masks_of_layers_and_proposals_are_the_originals():
    arrays, x, queries = inputs(GOLDEN["shapes"])
    branch = MaskBranch((CELLS, CELLS), BLOCKS, name="masks")
    branch.build((None, SIZE, SIZE, WIDTH), (None, QUERIES, WIDTH))
    variables, entries = {f"head/{v.path}": v for v in branch.weights}, mask_map(BLOCKS)
    assert {MASKS + name for name in arrays} == entries.keys() and len(variables) == len(entries)
    for name, array in arrays.items():
        entry = entries[MASKS + name]
        (values,) = entry.unpack(array, [variables[entry.ours[0]].shape])
        variables[entry.ours[0]].assign(values)
    factors = branch(np.moveaxis(x, 1, -1), list(queries))
    for y, places, expected in zip(*factors, GOLDEN["masks"], strict=True):
        masks = np.array(y)[0] @ np.array(places)[0].T  # (q, p)
        np.testing.assert_allclose(masks, np.reshape(expected, (QUERIES, -1)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_is_packed_comes_out(groups):
    random = np.random.default_rng(0)
    shapes = ((2, 3, groups, 5, 4 + 6), (2, 3, groups * 5, 9), (2, 3, 14, 9))
    parts = [random.normal(size=shape).astype("float32") for shape in shapes]
    found = unpacked_masks(PackedMasks()(*parts), 6, 14)
    for part, expected in zip(found, parts):
        np.testing.assert_array_equal(part, expected.reshape(part.shape))


@pytest.mark.extended
@pytest.mark.usefixtures("eagerly")
def test_training_has_groups_and_inference_the_first_alone(model):
    x = scenes()[0][:2]
    outputs, trained = model(x), model(x, training=True)
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        **{"logits": (2, 5, 3), "boxes": (2, 5, 4), "masks": (2, *GRID, 5)},
        "prediction": (2, 3, 1, 5 + 96, 4 + 3 + 16 + 1),
    }
    (rows, queries, places), others = (unpacked_masks(y["prediction"], 3, 96) for y in (outputs, trained))
    for ours, theirs in zip((rows, queries), others):
        np.testing.assert_allclose(theirs[:, :, :1], ours, atol=1e-4)
    np.testing.assert_array_equal(np.concatenate([outputs["boxes"], outputs["logits"]], axis=-1), rows[:, 1, 0])
    masks = np.array(queries[:, 1, 0]) @ np.array(places[:, 1]).swapaxes(1, 2)  # (b, q, p)
    np.testing.assert_allclose(masks.swapaxes(1, 2).reshape(2, *GRID, 5), outputs["masks"], atol=1e-4)
    alone = model.without_auxiliary()
    assert alone.output.keys() == {"logits", "boxes", "masks"}
    np.testing.assert_array_equal(alone(x)["masks"], outputs["masks"])


@pytest.mark.extended
def test_it_learns_masks():
    model = made({**OPTIONS, "layers": 1, "groups": 1})
    x, y = scenes()
    before = np.mean(list(overlaps(model)))
    start = {v.path: np.array(v) for v in model.head.masks.trainable_variables}
    model.compile(AdamW(1e-2), GroupedInstanceLoss(3), jit_compile=False)
    history = model.fit(x, y, epochs=60, batch_size=4, verbose=0).history["loss"]
    assert history[-1] < history[0] / 4
    assert np.mean(list(overlaps(model))) > max(0.8, before + 0.3)
    still = [v.path for v in model.head.masks.trainable_variables if np.array_equal(v, start[v.path])]
    assert not still


@pytest.mark.extended
def test_it_detects_by_the_sigmoid_of_classes(model):
    found = model.detect(np.zeros((40, 60, 3), "uint8"), threshold=0.0)
    assert len(found) == 15 and set(found.names) == set(NAMED)  # each query with each class
    assert (np.diff(found.scores) <= 0).all() and found.masks.shape == (15, 40, 60)
    outputs = model(np.zeros((1, 32, 48, 3), "uint8"))
    scores = 1 / (1 + np.exp(-np.array(outputs["logits"])))
    np.testing.assert_allclose(found.scores, np.sort(scores.reshape(-1))[::-1], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_stride": 0}, "mask_stride"),
        ({"mask_strides": 2}, 'unknown option "mask_strides".*"mask_stride"'),
        ({"queries": 25}, "queries=25: the maps have 24 places"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        made({**OPTIONS, **options})


def test_another_loss_is_refused(model):
    with pytest.raises(
        ValueError, match=r'"rf_detr" cannot be trained with the loss InstanceLoss.*GroupedInstanceLoss\(3\)'
    ):
        model.compile("sgd", InstanceLoss(3))
