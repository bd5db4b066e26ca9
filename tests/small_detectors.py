"""A detector that finds what its images say in numbers, and a source of such images with objects."""

import dataclasses

import numpy as np
from keras import Input, layers

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import Setting, make_evaluator

NAMES = ("cat", "dog")
SCALE = 250  # pixel values of 1
SIZE = (100, 200)  # of the original images


class WrittenBoxes(keras_vit.Model):
    """Each row of an image is a detection: top, left, bottom, right, score, 1 + class (0 for none), two zeros."""

    def detections(self, images, limit=100):
        rows = np.asarray(self.predict_on_batch(images))[:, :limit, :, 0]  # (b, d, 8)
        return rows[..., :4] / SCALE, rows[..., 4] / SCALE, rows[..., 5].astype("int32") - 1


def detector(rows=4):
    """The model, for images of at most `rows` detections."""
    x = Input((rows, 8, 1))
    made = WrittenBoxes(x, layers.Rescaling(1.0)(x))
    made.classes, made.class_names, made.check_pixels = len(NAMES), NAMES, False
    return made


def written(examples, rows=4):
    """A source of examples [(objects [(box, label, crowd)], detections [(box, label, score)])], best score first."""
    images = np.zeros((len(examples), rows, 8, 1), "uint8")
    for image, (_, detections) in zip(images, examples):
        for row, (box, label, score) in zip(image, detections, strict=False):
            row[:6, 0] = [*np.round(SCALE * np.array([*box, score])), label + 1]
    most = max(len(objects) for objects, _ in examples)
    boxes, others = np.zeros((len(examples), most, 4), "float32"), np.zeros((3, len(examples), most), "float32")
    for i, (objects, _) in enumerate(examples):
        for j, (box, label, crowd) in enumerate(objects):
            boxes[i, j], others[:, i, j] = box, (label, crowd, 2e4 * (box[2] - box[0]) * (box[3] - box[1]))
    features = {"boxes": boxes, "size": np.tile(np.int32(SIZE), (len(examples), 1))}
    features |= dict(
        zip(("labels", "crowd", "area"), (others[0].astype("int32"), others[1].astype("int32"), others[2]))
    )
    return dataclasses.replace(from_arrays(images, features=features), class_names=NAMES, most_objects=most)


def random_examples(count=7):
    """Examples for `written`, on a grid of whole pixel values, so that engines agree to the bit."""
    rng, examples = np.random.RandomState(0), []
    for _ in range(count):
        start = rng.randint(0, 150, (4, 2))
        boxes = np.concatenate([start, start + rng.randint(20, 100, (4, 2))], axis=1) / SCALE
        objects = [(box, rng.randint(2), rng.choice([0, 0, 0, 1])) for box in boxes[: rng.randint(5)]]
        scores = np.sort(rng.randint(1, SCALE, 3))[::-1] / SCALE
        moved = np.clip(boxes[:3] + rng.randint(-9, 10, (3, 4)) / SCALE, 0, 1)
        examples.append((objects, [(box, rng.randint(2), score) for box, score in zip(moved, scores)]))
    return examples


def measured(strategy, batch_size):
    """[measures, confusion matrix] of the random examples under a strategy."""
    with strategy.scope():
        model = detector()
    setting = Setting(model, strategy, batch_size, source=written(random_examples()), preprocess="decode(1)")
    found = make_evaluator("detection", {"pictures": 0}).prepare(setting)()
    return [found.measures, found.details["confusion"]]
