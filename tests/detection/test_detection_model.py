"""Models that find objects: training, files, detections in images of any size, refused targets and losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.detection.heads.pyramid import SimplePyramid
from keras_vit.training import DenseDetectionLoss

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

SIZES = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
OPTIONS = {"scales": (2, 1), "width": 16, "convs": 1}
SIZE = (32, 48)


def squares(n):
    """(images (n, 32, 48, 3) with a bright square or two, red or blue, none in the last; objects (n, 2, 7))."""
    rng, x, y = np.random.default_rng(0), np.zeros((n, *SIZE, 3), "uint8"), np.full((n, 2, 7), -1, "float32")
    x += rng.integers(0, 40, x.shape, dtype="uint8")
    for i in range(n - 1):
        for j in range(1 + i % 2):
            side, label = rng.integers(8, 16), rng.integers(0, 2)
            top, left = rng.integers(0, SIZE[0] - side), 24 * j + rng.integers(0, 24 - side)
            x[i, top : top + side, left : left + side] = (255, 60, 0) if label else (0, 120, 255)
            box = np.array([top, left, top + side, left + side]) / np.tile(SIZE, 2)
            y[i, j] = [*box, label, 0, side**2]
    return x, y


X, Y = squares(8)


def made(**changes):
    keras.utils.set_random_seed(0)
    arguments = {"classes": 2, "image_size": SIZE, "head_options": OPTIONS, "class_names": ["blue", "red"]}
    return keras_vit.DetectionModel("Ti/8", **{**arguments, **SIZES, **changes})


@pytest.fixture(scope="module")
def trained():
    """A model that has learned the squares, in a graph."""
    model = made()
    model.compile(keras_vit.training.AdamW(1e-2), DenseDetectionLoss(), jit_compile=False)
    model.fit(X, Y, batch_size=8, epochs=60, shuffle=False, verbose=0)
    return model


@pytest.mark.extended
def test_it_finds_the_squares_it_learned(trained):
    boxes, scores, labels = trained.detections(X, threshold=0.3, iou=0.5)
    for i, y in enumerate(Y):
        there = y[:, 4] >= 0
        found = scores[i] > 0
        assert found.sum() == there.sum() and (labels[i][~found] == -1).all()
        order, expected = np.argsort(boxes[i][found][:, 1]), np.argsort(y[there][:, 1])
        np.testing.assert_array_equal(labels[i][found][order], y[there][expected, 4])
        np.testing.assert_allclose(boxes[i][found][order], y[there][expected, :4], atol=0.06)


@pytest.mark.extended
def test_a_file_gives_the_same_outputs_bit_by_bit(trained, tmp_path):
    trained.save(tmp_path / "model.keras")
    copy = keras_vit.load(tmp_path / "model.keras")
    assert type(copy) is keras_vit.DetectionModel and copy.arguments() == trained.arguments()
    ours, theirs = trained.predict(X, verbose=0), copy.predict(X, verbose=0)
    np.testing.assert_array_equal(theirs["logits"], ours["logits"])
    np.testing.assert_array_equal(theirs["boxes"], ours["boxes"])
    larger = keras_vit.load(tmp_path / "model.keras", image_size=(48, 48))
    assert larger.output["boxes"].shape == (None, (12 * 12 + 6 * 6), 4) and larger.class_names == ("blue", "red")
    np.testing.assert_array_equal(larger.head.get_weights()[0], trained.head.get_weights()[0])


@pytest.mark.extended
def test_boxes_are_in_pixels_of_the_given_image(trained):
    large = np.asarray(tf.image.resize(X[0], (64, 144), method="nearest"))
    found = trained.detect([large, X[0]], iou=0.5)
    assert [len(one) for one in found] == [1, 1] and found[0].image.shape == (64, 144, 3)
    np.testing.assert_allclose(found[0].boxes[0], Y[0, 0, :4] * [64, 144, 64, 144], atol=7)
    np.testing.assert_allclose(found[1].boxes[0], Y[0, 0, :4] * [32, 48, 32, 48], atol=2)
    [(name, score, box)] = found[1]
    assert name == ["blue", "red"][int(Y[0, 0, 4])] and 0.3 < score < 1 and len(box) == 4
    assert repr(found[1]).startswith(f"Detections(32 x 48 pixels: {name} ")
    picture = np.asarray(found[0].picture())
    assert picture.shape == (3 * 64, 3 * 144, 3) and (picture != large.repeat(3, 0).repeat(3, 1)).any()  # enlarged


@pytest.mark.extended
@pytest.mark.parametrize("head", ["dense", "frcnn"])
def test_one_class_300_objects_and_an_image_without_any_are_learned(head):
    options = {} if head == "dense" else {"head_options": {"width": 8, "units": 8, "sides": (8,), "proposals": 5}}
    model, y = made(head=head, classes=1, class_names=["cell"], **options), np.full((2, 300, 7), -1, "float32")
    row, column = np.divmod(np.arange(300), 20)
    corner = np.stack([row / 15, column / 20], axis=1)
    y[0] = np.concatenate([corner, corner + 0.04, np.tile([0, 0, 2], (300, 1))], axis=1)
    model.compile(keras_vit.training.AdamW(3e-3), model.head_row.losses[0](), jit_compile=False)
    losses = model.fit(X[:2], y, epochs=8, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < max(losses)  # it rises while the first objects are found


@pytest.mark.extended
def test_evaluation_counts_examples_of_weight_0_not(trained):
    expected = trained.evaluate(X[:3], Y[:3], verbose=0)
    wrong, weights = np.where(np.arange(4)[:, None, None] == 3, 9.0, Y[:4]), np.array([1, 1, 1, 0.0], "float32")
    data = tf.data.Dataset.from_tensors((X[:4], wrong.astype("float32"), weights))
    assert trained.evaluate(data, verbose=0) == pytest.approx(expected, rel=1e-5)


def test_outputs_have_a_box_for_every_point_of_the_pyramid():
    model = made(head_options={**OPTIONS, "scales": (4, 2, 1, 0.5)})
    n = 16 * 24 + 8 * 12 + 4 * 6 + 2 * 3
    assert {name: x.shape for name, x in model.output.items()} == {"logits": (None, n, 2), "boxes": (None, n, 4)}
    outputs = model.predict(X[:1], verbose=0)
    np.testing.assert_allclose(np.asarray(model.head_row.scores(outputs)), 0.01, atol=0.003)
    height, width = np.diff(outputs["boxes"].reshape(-1, 2, 2), axis=1)[:, 0].T * np.array(SIZE)[:, None]
    cells = np.repeat([2, 4, 8, 16], [16 * 24, 8 * 12, 4 * 6, 2 * 3])
    np.testing.assert_allclose(height / cells, 4, rtol=0.15)
    np.testing.assert_allclose(width / cells, 4, rtol=0.15)
    centers = outputs["boxes"].reshape(-1, 2, 2).mean(axis=1)
    np.testing.assert_allclose(centers[16 * 24 + 13], np.array([6, 6]) / SIZE, atol=0.02)  # second row and column


def test_the_pyramid_has_the_papers_parts():
    pyramid = SimplePyramid(8, (4, 2, 1, 0.5))
    maps = pyramid([np.zeros((1, 4, 6, 16), "float32")])
    assert [x.shape[1:] for x in maps] == [(16, 24, 8), (8, 12, 8), (4, 6, 8), (2, 3, 8)]
    enlarged = (16 * 4 * 8 + 8) * 2 + 2 * 8 + (8 * 4 * 4 + 4)  # transposed convolutions and a norm

    def lateral(d):
        return d * 8 + 8 * 8 * 9 + 4 * 8

    assert pyramid.count_params() == enlarged + lateral(4) + lateral(8) + 2 * lateral(16)


def test_a_bit_gives_its_own_strides():
    model = keras_vit.DetectionModel(
        "R50x1", classes=2, image_size=64, units=(1, 1, 1), width_factor=0.5, head_options={"width": 8, "convs": 0}
    )
    assert model.decoder.taps == (0, 1, 2) and model.output["boxes"].shape == (None, 16 * 16 + 8 * 8 + 4 * 4, 4)


def test_outputs_are_float32_under_mixed_precision():
    outputs = made(dtype="mixed_bfloat16").predict(X[:2], verbose=0)
    assert {x.dtype.name for x in outputs.values()} == {"float32"}
    np.testing.assert_allclose(outputs["boxes"], made().predict(X[:2], verbose=0)["boxes"], atol=0.05)


def changed(column, value, row=0):
    y = Y.copy()
    y[0, row, column] = value
    return y


@pytest.mark.extended
@pytest.mark.parametrize(
    ("y", "text"),
    [
        (Y[:, :, :5], r"shape \(8, 2, 5\), expected \(images, objects, 7\)"),
        (Y[:, 0], r"shape \(8, 7\), expected \(images, objects, 7\)"),
        (changed(4, 2), "whole numbers from 0 to 1, for 2 classes, or -1 for padding, and some are from 2 to 2"),
        (changed(4, 0.5), "some are from 0.5 to 0.5"),
        (changed(2, 32.0), "fractions of the image, from 0 to 1, and some edges are from 32 to 32. Divide pixels"),
        (changed(0, 0.99), "their heights or widths are from -0"),
        (changed(5, 3), "2 for difficult, and is from 3 to 3"),
        (np.array([["a"] * 7] * 8)[:, None], "contain <?[sU]?t?r?"),
    ],
    ids=["columns", "rank", "class", "half", "pixels", "order", "crowd", "text"],
)
def test_targets_that_would_be_learned_wrongly_are_refused(trained, y, text):
    with pytest.raises(ValueError, match=text):
        trained.evaluate(X, y, verbose=0)
    with pytest.raises(ValueError, match=text):
        trained.evaluate(tf.data.Dataset.from_tensors((X, y)), verbose=0)


def test_wrong_arguments_and_losses_are_refused_by_name():
    for arguments, text in (
        ({"head": "dens"}, 'Unknown head "dens". Did you mean "dense"?'),
        ({"head_options": {"scale": 2}}, 'The head "dense": unknown option "scale". Did you mean "scales"?'),
        ({"head_options": {"scales": (1, 2)}}, "scales should be powers of two from 4 down"),
        ({"head_options": {"scales": (0.125,)}}, "halve the grid of 4x6 patches to nothing"),
        ({"classes": None}, "classes must be the number of classes that objects can have"),
        ({"class_names": ["a"]}, "class_names has 1 names for 2 classes"),
        ({"encoder": keras.Model()}, "DetectionModel: the encoder should be"),
    ):
        encoder = arguments.pop("encoder", None)
        with pytest.raises(ValueError, match=text.replace("?", r"\?").replace("(", r"\(")):
            keras_vit.DetectionModel(encoder) if encoder is not None else made(**arguments)
    model = made()
    for loss in ("mse", keras.losses.BinaryCrossentropy(from_logits=True), keras_vit.training.SegmentationLoss()):
        with pytest.raises(ValueError, match=r'"dense" cannot be trained .*keras_vit.training.DenseDetectionLoss\(\)'):
            model.compile("sgd", loss)
    model.compile("sgd", DenseDetectionLoss())
    model.mixing = keras_vit.training.Mixup(0.2, classes=2)
    with pytest.raises(ValueError, match=r"Mixup\(\) blends the labels of whole images"):
        model.fit(X, Y)
    with pytest.raises(ValueError, match="finds objects, and does not classify whole images"):
        model.classify(X)
    with pytest.raises(ValueError, match="threshold must be from 0 to 1"):
        model.detect(X[0], threshold=30)


@pytest.mark.extended
def test_boxes_of_a_letterboxed_image_are_those_of_the_image_itself(trained):
    """Padded with black to the shape that letterbox gives, an image is letterboxed without padding."""
    tall = np.zeros((64, 48, 3), "uint8")
    tall[16:48] = X[0]  # 64 x 48 fits 32 x 48 as 32 x 24
    model = made(preprocessing="decode|letterbox(32, 48)")
    model.set_weights(trained.get_weights())
    padded = np.pad(tall, [(0, 0), (24, 24), (0, 0)])
    ours, theirs = (model.detect(image, threshold=0.02, limit=5) for image in (tall, padded))
    within = np.clip(theirs.boxes - [0, 24, 0, 24], 0, [64, 48, 64, 48])
    seen = (within[:, 3] > within[:, 1]) & (within[:, 2] > within[:, 0])  # the others are in the padding
    count = seen.sum()
    assert 0 < count <= len(ours)
    np.testing.assert_allclose(ours.boxes[:count], within[seen], atol=0.1)
    np.testing.assert_allclose(ours.scores[:count], theirs.scores[seen], rtol=0.01)


def test_options_of_suppression_are_refused_where_each_object_is_found_once():
    model = made(head="yolos", head_options={"tokens": 3})
    assert model.finder(threshold=0.2, limit=5)
    for option in ({"iou": 0.5}, {"soft": True}, {"across_classes": True}):
        with pytest.raises(ValueError, match='"yolos" finds each object once.*leave out iou, soft'):
            model.finder(**option)


def test_a_token_of_yolos_is_one_object_of_its_best_class():
    model = made(head="yolos", head_options={"tokens": 5})
    rng = np.random.default_rng(0)
    model.set_weights([0.2 * rng.normal(size=w.shape) for w in model.get_weights()])
    outputs = model.predict(X[:4], verbose=0)
    _, scores, labels = (keras.ops.convert_to_numpy(each) for each in model.detections(X[:4], limit=8))
    likely = keras.ops.convert_to_numpy(keras.ops.softmax(outputs["logits"]))[..., :-1]  # (b, 5, 2)
    assert ((labels >= 0).sum(axis=1) == 5).all()
    np.testing.assert_allclose(scores[:, :5], -np.sort(-likely.max(axis=-1), axis=1), rtol=1e-5)


def test_more_objects_than_a_yolos_model_has_tokens_bring_a_warning():
    model = made(head="yolos", head_options={"tokens": 3})
    with pytest.warns(UserWarning, match="room for 4 objects in an image, and the model finds 3 at most"):
        model.target_rules().check_form((None, 4, 7), "float32")
    assert made().target_rules().most is None


@pytest.mark.extended
def test_detections_are_computed_in_the_models_own_strategy():
    strategy, options = tf.distribute.OneDeviceStrategy("/cpu:0"), {"scales": (1,), "width": 8, "convs": 0}
    with strategy.scope():
        model = made(head_options=options)
    assert model.finder().distribute_strategy is strategy
    expected = made(head_options=options).detections(X[:1])
    np.testing.assert_allclose(model.detections(X[:1])[1], expected[1], atol=1e-5)
