"""The page's functions, under Node.js: pixels, masks, boxes and texts as the package computes them."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

import keras_vit
from keras_vit.answers.answer import as_rows
from keras_vit.data import parse
from keras_vit.data.ops.frame import frame
from keras_vit.image_text.zero_shot import TEMPLATES
from keras_vit.instances.found import Instances
from keras_vit.instances.panoptic import merged
from keras_vit.io.tokenizer import KINDS, _without_punctuation
from keras_vit.segmentation.sliding_windows import resized
from keras_vit.serving.web import page_folder
from keras_vit.serving.web.page_steps import page_steps

NODE = shutil.which("node")
pytestmark = [pytest.mark.processes, pytest.mark.skipif(NODE is None, reason="needs Node.js")]
HERE = pathlib.Path(__file__).parent
PAGE = pathlib.Path(page_folder.__file__).with_name("page")


def call(*calls):
    """The results of (module, function, *arguments)."""
    asked = [{"module": module, "name": name, "args": args} for module, name, *args in calls]
    command = [NODE, str(HERE / "page_functions.mjs"), str(PAGE)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def floats(array):
    return {"$": "floats", "data": np.asarray(array, "float32").reshape(-1).tolist()}


def canvas(image):
    """An image (h, w, 3) as a canvas has it, RGBA."""
    opaque = np.concatenate([image, np.full((*image.shape[:2], 1), 255, "uint8")], -1)
    return {"data": {"$": "bytes", "data": opaque.reshape(-1).tolist()}, "height": len(image), "width": image.shape[1]}


TEXTS = [
    "decode|resize(20)|central_crop(16, 24)",
    "decode|resize(16, 24, method='bicubic')",
    "decode|resize(40, 50, 'bicubic', False)|crop_border(3)",
    "decode|resize(30, 20, antialias=False)",
    "decode|resize(9, 70, method='nearest')|pad_to(80)",
    "decode|letterbox(32)",
    "decode|letterbox(24, 40, place='corner', method='bicubic')",
    "decode|central_crop(90)|multiply(0.5)",
]


def test_pixels_and_frames_are_those_of_the_preprocessing():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, shape, "uint8") for shape in ((37, 61, 3), (80, 45, 3), (16, 24, 3))]
    cases = [(text, image) for text in TEXTS for image in images]
    edges = rng.integers(0, 256, (58, 44, 3), "uint8")  # between two pixels, where float32 decides which is the nearest
    cases.append(("decode|letterbox(24, 30, method='nearest')", edges))
    found = call(*(("pixels.js", "prepared", canvas(image), page_steps(text, "m")) for text, image in cases))
    for (text, image), (result, shown) in zip(cases, found):
        expected = parse(text).image(image).numpy()
        pixels = np.reshape(result["data"], (result["height"], result["width"], 3))
        assert pixels.shape == expected.shape, text
        differences = np.abs(pixels - expected.astype("float32"))
        allowed = (
            0.05 if "False" in text else 2e-3
        )  # without antialiasing TensorFlow looks bicubic weights up in a table
        assert differences.max() <= 1 and differences.mean() < allowed, (text, image.shape, differences.max())
        np.testing.assert_allclose(shown, frame(text, *image.shape[:2]), atol=1e-4, err_msg=text)


def test_grey_and_other_ranges():
    image = np.array([[[10, 20, 30], [255, 255, 255]]], "uint8")
    scale = {"factor": [1 / 255], "offset": [-0.5]}
    [[grey, _], moved] = call(
        ("pixels.js", "prepared", canvas(image), page_steps("decode(1)", "m")),
        ("pixels.js", "inRange", {"data": floats([0, 255]), "channels": 1}, scale),
    )
    assert grey["channels"] == 1 and grey["data"] == [18, 255]
    np.testing.assert_allclose(moved, [-0.5, 0.5], atol=1e-6)


def test_a_map_of_classes_is_that_of_segment():
    logits = np.random.default_rng(0).normal(size=(6, 8, 4)).astype("float32")
    [found] = call(("answer_rows.js", "classMap", {"data": floats(logits), "dims": [1, 6, 8, 4]}, [25, 31]))
    expected = np.concatenate(list(resized([logits], (6, 8), (25, 31)))).argmax(-1)
    assert np.mean(np.reshape(found, (25, 31)) != expected) < 0.005  # floats decide between close ones


def mask_of(counts, size):
    """The mask (h, w) of run lengths down the columns."""
    inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return inside.reshape(size[::-1]).T


@pytest.mark.parametrize("shown", [(0.0, 0.0, 1.0, 1.0), (-0.25, 0.0, 1.25, 1.0)])
def test_masks_of_objects_are_those_of_detect(shown):
    rng, size = np.random.default_rng(0), (40, 60)
    grids = rng.normal(size=(3, 7, 9)).astype("float32")
    boxes = np.array([(0, 0, 40, 60), (5.5, 10.2, 22.1, 40.7), (30, 0, 40, 20)], "float32")
    frames, names = np.tile(np.array(shown, "float32"), (3, 1)), ("a",)
    blank = np.zeros((*size, 3), "uint8")
    expected = Instances(boxes, np.ones(3), np.zeros(3, int), names, blank, grids, frames).masks
    found = call(
        *(
            ("answer_rows.js", "runLengths", floats(grid), [7, 9], box.tolist(), list(shown), list(size))
            for grid, box in zip(grids, boxes)
        )
    )
    for counts, mask in zip(found, expected):
        assert sum(counts) == size[0] * size[1]
        assert np.mean(mask_of(counts, size) != mask) < 0.002


@pytest.mark.parametrize("shown", [(0.0, 0.0, 1.0, 1.0), (0.0, -0.2, 1.0, 1.2)])
def test_scenes_are_those_of_segment(shown):
    rng, size, names = np.random.default_rng(0), (40, 60), ["sky", "road", "car", "dog"]
    coarse = rng.normal(-4, 4, (20, 3, 4)).repeat(3, 1).repeat(3, 2)
    grids = (coarse + rng.normal(0, 0.3, coarse.shape)).astype("float32")
    scores, labels = rng.uniform(0.7, 1, 20).astype("float32"), rng.integers(-1, 4, 20).astype("int32")
    kept = (labels >= 0) & (scores > 0.8)
    expected, found, _ = merged(grids[kept], scores[kept], labels[kept], (0, 1), size, shown, overlap=0.5)
    masks = {"data": floats(grids.transpose(1, 2, 0)), "dims": [1, 9, 12, 20]}
    given = masks, floats(scores), labels.tolist(), [0, 1], list(shown), list(size)
    about = {"answers": ["instances"], "class_names": names, "classes": 4, "stuff": ["sky", "road"]}
    outputs = {"masks": masks, "scores": {"data": floats(scores)}, "labels": {"data": labels.tolist()}}
    scene, row = call(
        ("answer_rows.js", "merged", *given, 0.8, 0.5),
        ("answer_rows.js", "answerRow", outputs, about, list(shown), list(size)),
    )
    numbers = {-1: 0, **{query: i for i, query in enumerate(scene["kept"], 1)}}
    there = np.array([numbers[query] for query in scene["map"]]).reshape(size)
    assert len(found) > 3 and [labels[i] for i in scene["kept"]] == found.tolist()
    assert np.mean(there != expected) < 0.002
    segments, found, _ = merged(grids[kept], scores[kept], labels[kept], (0, 1), size, shown)
    shares = sorted((np.bincount(segments.ravel(), minlength=len(found) + 1)[1:] / segments.size).tolist())
    np.testing.assert_allclose(sorted(row["shares"]), shares, atol=2e-3)
    assert sorted(row["classes"]) == sorted(names[i] for i in found)


def test_rows_are_the_json_of_the_service():
    logits = np.random.default_rng(0).normal(size=8).astype("float32")
    about = {"answers": ["classes"], "class_names": None, "classes": 8}
    objects = {"answers": ["objects"], "class_names": ["cat", "dog"], "classes": 2}
    outputs = {
        "boxes": {"data": floats([0.25, 0, 0.5, 0.5, 0, 0, 0, 0]), "dims": [1, 2, 4]},
        "scores": {"data": floats([0.5, 0]), "dims": [1, 2]},
        "labels": {"data": floats([1, -1]), "dims": [1, 2]},
    }
    several = {"parts": {"what": {**about, "answer": "classes"}, "where": {**objects, "answer": "objects"}}}
    joined = {"what_probabilities": {"data": floats(logits), "dims": [1, 8]}}
    joined |= {f"where_{name}": value for name, value in outputs.items()}
    classes, found, depth, both = call(
        ("answer_rows.js", "answerRow", {"probabilities": joined["what_probabilities"]}, about, [0, 0, 1, 1], [10, 20]),
        ("answer_rows.js", "answerRow", outputs, objects, [0, -0.5, 1, 1.5], [10, 20]),
        (
            "answer_rows.js",
            "answerRow",
            {"depth": {"data": floats(range(6)), "dims": [1, 2, 3]}},
            {"answers": ["depth"]},
        ),
        ("answer_rows.js", "answerRow", joined, several, [0, -0.5, 1, 1.5], [10, 20]),
    )
    assert classes["classes"] == [str(i) for i in np.argsort(-logits)[:5]]
    assert found["classes"] == ["dog"] and found["scores"] == [0.5] and found["labels"] == [1]
    np.testing.assert_allclose(found["boxes"], [[2.5, 0, 5, 10]])  # of -0.5 to 1.5 of the width the part inside
    assert depth == as_rows({"depth": np.arange(6.0).reshape(1, 2, 3)})[0]
    assert both == {"what": classes, "where": found}


def test_texts_are_cleaned_and_padded_as_by_the_tokenizers():
    text = "Two  cats, and a DOG's!"
    about = {"length": 30, "start": [1], "end": 2, "pad": 3}
    rows = call(*(("texts.js", "tokens", text, {**about, "kind": kind}) for kind in KINDS))
    for kind, row in zip(KINDS, rows):
        clean = {"clip": text, "siglip2": text.lower(), "siglip": _without_punctuation(text)}[kind]
        assert row == [1, *clean.encode(), 2, *[3] * (28 - len(clean))]
    [cut] = call(("texts.js", "tokens", "abc" * 20, {**about, "kind": "clip"}))
    assert len(cut) == 30 and cut[-1] == 2


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_labels_fit_as_in_zero_shot(activation):
    size = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    image = keras_vit.ViT("B/8", image_size=16, classes=None, preprocessing="decode|resize(16, 16)", **size)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=128, length=8, outputs=8, **size)
    model = keras_vit.DualEncoder(image, text, activation)
    model.tokenizer = lambda texts: np.array([list(each.encode()[-8:].ljust(8)) for each in texts], "int32")
    labels, picture = ["a cat", "an emu"], np.random.default_rng(0).integers(0, 256, (16, 16, 3), "uint8")
    embeddings = [
        [row.tolist() for row in model.encode_text([TEMPLATES["photo"][0].replace("{}", each)])] for each in labels
    ]
    about = {"scale": model.scale, "bias": model.bias, "activation": activation}
    means = call(*(("texts.js", "mean", each) for each in embeddings))
    [found] = call(("texts.js", "fitting", model.encode_image(picture)[0].tolist(), means, about))
    expected = {each.name: each.probability for each in model.zero_shot(picture, labels)}
    np.testing.assert_allclose(found, [expected[label] for label in labels], atol=1e-5)
