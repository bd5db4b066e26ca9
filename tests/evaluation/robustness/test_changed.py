"""Accuracy on changed images, against the model's own predictions on images that the test changes itself."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import data, dense_on_images

from keras_vit.data import from_arrays
from keras_vit.data.ops.op_registry import parse
from keras_vit.data.sources.base import fold
from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.evaluation.robustness.corruptions import ALEXNET, relative_error
from keras_vit.evaluation.robustness.salient import without_patches
from keras_vit.inspection import attention_maps

IMAGES, _ = data(6)


@pytest.fixture
def setting():
    """A model of dense layers, and six images of which it knows every other one."""
    model = dense_on_images()
    labels = model.predict_on_batch(IMAGES).argmax(-1)
    labels[::2] = (labels[::2] + 1) % 5
    return Setting(
        model, batch_size=4, source=from_arrays(IMAGES, labels, class_names=list("abcde")), preprocess="decode"
    )


def accuracy(setting, text, seed=0):
    """Top-1 of the model on images that `text` changes, image i by a seed folded from its number."""
    changed = np.stack(
        [parse(f"decode|{text}").image(tf.constant(image), fold(seed, i)) for i, image in enumerate(IMAGES)]
    )
    return (setting.model.predict_on_batch(changed).argmax(-1) == setting.source.labels).mean()


@pytest.mark.parametrize(
    ("name", "options", "op"),
    [
        (
            "corruptions",
            {"names": ("gaussian_noise", "contrast"), "strengths": (1, 5), "seed": 3},
            "corrupt('{row}', {column})",
        ),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in (
                ("shifts", {"pixels": (1, 3)}, "shift({column}={row})"),
                ("occlusion", {"shares": (0.25, 0.5)}, "drop_patches(4, {row})"),
                ("shuffled_patches", {"grids": (2, 4)}, "shuffle_patches({row})"),
            )
        ),
    ],
)
def test_each_change_is_measured_on_the_images_that_it_makes(setting, name, options, op):
    options = {**options, **({"patch": 4} if name == "occlusion" else {})}
    evaluation = make_evaluator(name, options).prepare(setting)()
    table, seed = evaluation.details["top1"], options.get("seed", 0)
    for row, columns in table.items():
        for column, top1 in columns.items():
            assert top1 == pytest.approx(accuracy(setting, op.format(row=row, column=column), seed))
        assert evaluation.measures[row] == pytest.approx(np.mean(list(columns.values())))
    assert evaluation.measures["clean"] == 0.5 and evaluation.measures["examples"] == 6
    assert evaluation.measures["mean"] == pytest.approx(np.mean([evaluation.measures[row] for row in table]))
    assert len(table) == 2 and evaluation.charts


def test_the_error_relative_to_alexnets_is_the_authors_formula():
    assert relative_error({name: 1 - error for name, error in ALEXNET.items()}) == pytest.approx(1)
    half = {name: 1 - error / 2 for name, error in ALEXNET.items()} | {"frost": 0.0}
    assert relative_error(half) == pytest.approx(0.5)
    assert relative_error({"fog": 0.5}) is None


def test_a_change_that_the_images_cannot_take_is_refused_before_anything_is_measured(setting):
    with pytest.raises(ValueError, match="cannot divide an image of 8x12"):
        make_evaluator("shuffled_patches", {"grids": (2, 7)}).prepare(setting)
    with pytest.raises(ValueError, match="needs data"):
        make_evaluator("shifts", {}).prepare(Setting(setting.model))


def test_salient_patches_are_those_with_the_largest_values():
    images = np.arange(2 * 4 * 6 * 1, dtype="uint8").reshape(2, 4, 6, 1) + 1
    maps = np.array([[[3, 1, 2], [6, 5, 4]], [[1, 1, 1], [2, 1, 1]]], "float32")
    most, least = (without_patches(images, maps, 0.5, most) for most in (True, False))
    for kept, dropped in (
        (most, [[1, 1, 1, 0, 0, 0], [0, 0, 1, 0, 1, 1]]),
        (least, [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]]),
    ):
        blocks = kept.reshape(2, 2, 2, 3, 2).transpose(0, 1, 3, 2, 4).reshape(2, 6, 4)
        np.testing.assert_array_equal((blocks > 0).all(-1), np.array(dropped, bool))
        np.testing.assert_array_equal((blocks == 0).all(-1), ~np.array(dropped, bool))
    with pytest.raises(ValueError, match="cannot divide images of 4x6"):
        without_patches(images, np.zeros((2, 3, 3)), 0.5, True)


@pytest.mark.extended
def test_salient_occlusion_takes_the_models_own_maps(tiny):
    model = tiny()
    logits = model.predict_on_batch(IMAGES)
    source = from_arrays(IMAGES, logits.argmax(-1), class_names=list("abcde"))
    options = {"shares": (0.5,), "order": "salient"}
    evaluation = make_evaluator("occlusion", options).prepare(
        Setting(model, batch_size=4, source=source, preprocess="decode")
    )()
    hidden = without_patches(IMAGES, attention_maps(model, IMAGES), 0.5, True)
    top1 = (model.predict_on_batch(hidden).argmax(-1) == logits.argmax(-1)).mean()
    hidden = dict.fromkeys(("mean", "0.5"), pytest.approx(top1))
    assert evaluation.measures == {"examples": 6, "clean": 1.0, **hidden}
    assert evaluation.details["top1"] == {"0.5": {"salient": pytest.approx(top1)}}


def test_a_share_of_no_patch_is_refused_in_every_order(tiny):
    """The model has 2 x 3 patches."""
    images = np.zeros((2, 8, 12, 3), "uint8")
    setting = Setting(tiny(), source=from_arrays(images, [0, 1], class_names=list("abcde")), preprocess="decode")
    for order in ("random", "salient", "least_salient"):
        with pytest.raises(ValueError, match="a share of 0.05 of 6 patches is less than one"):
            make_evaluator("occlusion", {"order": order, "shares": (0.5, 0.05)}).prepare(setting)


def test_an_order_that_a_model_does_not_have_is_refused(setting):
    with pytest.raises(ValueError, match="ranks patches by attention, which this model lacks"):
        make_evaluator("occlusion", {"order": "salient"}).prepare(setting)
