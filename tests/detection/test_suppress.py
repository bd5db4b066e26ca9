"""Non-maximum suppression beside a plain loop, in compiled programs and in files for other engines."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.detection.heads.suppress import CANDIDATES, Suppression, suppressed

RNG = np.random.default_rng(0)
LIMIT = 20


def random_boxes(b, n):
    corner, size = RNG.random((2, b, n, 2)).astype("float32")
    return np.concatenate([corner, corner + 0.4 * size], axis=-1)


def random_case(b, n, k, ties=False):
    """(scores (b, n, k), boxes (b, n, 4)); with `ties` few different scores, and each box twice."""
    scores, boxes = RNG.random((b, n, k)).astype("float32"), random_boxes(b, n)
    if ties:
        scores, boxes = np.round(scores * 4) / 4, np.concatenate([boxes[:, : n // 2]] * 2, axis=1)
    return scores, boxes


def overlap(a, b):
    """IoU of a box (4,) with boxes (n, 4)."""
    sides = np.minimum(a[2:], b[:, 2:]) - np.maximum(a[:2], b[:, :2])
    inner = np.prod(np.maximum(sides, 0), axis=-1)
    return inner / (np.prod(a[2:] - a[:2]) + np.prod(b[:, 2:] - b[:, :2], axis=-1) - inner)


def greedy(scores, boxes, iou, threshold, soft=False, across_classes=False):
    """[(box, score, label), ...] of an image, by the definition."""
    n, k = scores.shape
    left, found = scores.reshape(-1).astype("float64"), []
    boxes, labels = np.repeat(boxes, k, axis=0), np.tile(np.arange(k), n)
    left[np.argsort(-left, kind="stable")[CANDIDATES:]] = 0
    while left.max() > threshold and len(found) < LIMIT:
        best = int(left.argmax())
        found.append((boxes[best], left[best], labels[best]))
        rival, overlaps = across_classes | (labels == labels[best]), overlap(boxes[best], boxes)
        if soft:
            left = np.where(rival, left * np.exp(-(overlaps**2) / 0.5), left)
        else:
            left[rival & (overlaps > iou)] = 0
        left[best] = 0
    return found


@pytest.fixture(scope="module")
def compiled():
    """`suppressed` in a graph, traced once for each set of options."""
    return tf.function(suppressed, autograph=False, reduce_retracing=True)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize(
    "options",
    [{}, {"across_classes": True}, {"soft": True}, {"soft": True, "across_classes": True}],
    ids=["hard", "across", "soft", "soft-across"],
)
def test_finds_what_a_plain_loop_finds(compiled, options, ties):
    scores, boxes = random_case(8, 60, 3, ties)
    found = [x.numpy() for x in compiled(scores, boxes, iou=0.3, threshold=0.4, limit=LIMIT, **options)]
    for i, expected in enumerate(greedy(s, b, 0.3, 0.4, **options) for s, b in zip(scores, boxes)):
        d = len(expected)
        assert 0 < d and (found[1][i, d:] == 0).all() and (found[2][i, d:] == -1).all() and not found[0][i, d:].any()
        np.testing.assert_array_equal(found[0][i, :d], [box for box, _, _ in expected])
        np.testing.assert_allclose(found[1][i, :d], [score for _, score, _ in expected], rtol=1e-6)
        np.testing.assert_array_equal(found[2][i, :d], [label for _, _, label in expected])


def test_only_the_highest_1000_scores_take_part(compiled):
    scores, boxes = random_case(1, 900, 2)
    found = compiled(scores, boxes, iou=0.0, threshold=0.0, limit=LIMIT)
    expected = greedy(scores[0], boxes[0], 0.0, 0.0)
    np.testing.assert_array_equal(found[0][0, : len(expected)], [box for box, _, _ in expected])


def test_nothing_above_the_threshold_leaves_every_place_empty(compiled):
    boxes, scores, labels = compiled(*random_case(2, 5, 1), iou=0.5, threshold=1.0, limit=LIMIT)
    assert not np.any(boxes) and not np.any(scores) and np.all(labels == -1)


@pytest.fixture(scope="module")
def exported():
    """(function of logits and boxes, its inputs, its outputs as Keras gives them)."""
    layer, n, k = Suppression(iou=0.5, threshold=0.05, limit=LIMIT), 90, 3
    specs = [tf.TensorSpec((2, n, k), tf.float32), tf.TensorSpec((2, n, 4), tf.float32)]
    function = tf.function(layer, input_signature=specs, autograph=False)
    inputs = (RNG.normal(size=(2, n, k)).astype("float32"), random_boxes(2, n) * 1.2 - 0.1)
    return function, inputs, {name: x.numpy() for name, x in function(*map(tf.constant, inputs)).items()}


def test_boxes_are_clipped_to_the_image(exported):
    _, _, outputs = exported
    assert outputs["boxes"].min() == 0 and outputs["boxes"].max() == 1 and (outputs["labels"] >= 0).sum() > 10


@pytest.mark.extended
def test_onnx_runtime_finds_the_same(exported):
    onnxruntime, tf2onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("tf2onnx")
    function, inputs, outputs = exported
    model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=18)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    found = session.run(list(outputs), dict(zip(names, inputs)))
    for name, values in zip(outputs, found):
        np.testing.assert_allclose(values, outputs[name], atol=1e-6, err_msg=name)


@pytest.mark.extended
def test_litert_finds_the_same(exported):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    function, inputs, outputs = exported
    model = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], function).convert()
    run = interpreter.Interpreter(model_content=model)
    run.allocate_tensors()
    for detail in run.get_input_details():
        run.set_tensor(detail["index"], next(x for x in inputs if x.shape == tuple(detail["shape"])))
    run.invoke()
    found = [run.get_tensor(detail["index"]) for detail in run.get_output_details()]
    for name, values in outputs.items():
        alike = next(x for x in found if x.dtype == values.dtype and x.shape == values.shape)
        np.testing.assert_allclose(alike, values, atol=1e-6, err_msg=name)


@pytest.mark.extended
def test_xla_finds_the_same(exported):
    function, inputs, outputs = exported
    found = tf.function(function.python_function, jit_compile=True, autograph=False)(*map(tf.constant, inputs))
    for name, values in outputs.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)


def test_wrong_options_are_refused_by_name():
    for options, text in (
        ({"iou": 1.5}, "iou must be from 0 to 1, got 1.5"),
        ({"limit": 0}, "limit must be a positive integer"),
        ({"activation": "relu"}, 'Unknown activation "relu"'),
        ({"soft": "no"}, "soft must be True or False"),
    ):
        with pytest.raises(ValueError, match=text):
            Suppression(**options)
    layer = Suppression.from_config(Suppression("softmax", 0.4, 0.1, 7, True, True).get_config())
    assert (layer.activation, layer.iou, layer.limit, layer.soft) == ("softmax", 0.4, 7, True)
    assert keras.saving.get_registered_name(Suppression) == "keras_vit>Suppression"
