"""Large images of squares, a model that sees all squares of at least six of its pixels, and the truth."""

import numpy as np
from keras import Input, layers

import keras_vit

NAMES = ("disc", "square")
SIDE = 64  # of the model's images
LEAST = 6  # pixels of the model


class Seeing(keras_vit.Model):
    """Finds each number in the first channel: its box, the class in the second channel, the score in the third."""

    def finder(self, **options):
        assert options["limit"] > 0

    def detections(self, images, threshold=0.0, limit=100):
        images = np.asarray(images).astype(int)
        boxes, scores = np.zeros((len(images), limit, 4), "float32"), np.zeros((len(images), limit), "float32")
        labels = np.full((len(images), limit), -1, "int32")
        for i, image in enumerate(images):
            found = []
            for number in np.unique(image[image[..., 0] > 0, 0]):
                y, x = np.nonzero(image[..., 0] == number)
                box, (_, label, score) = (y.min(), x.min(), y.max() + 1, x.max() + 1), image[y[0], x[0]]
                if min(box[2] - box[0], box[3] - box[1]) >= LEAST and score / 255 > threshold:
                    found.append((score / 255, label, np.array(box) / SIDE))
            for j, (score, label, box) in enumerate(sorted(found, key=lambda each: -each[0])[:limit]):
                boxes[i, j], scores[i, j], labels[i, j] = box, score, label
        return boxes, scores, labels


def seeing():
    """The model."""
    x = Input((SIDE, SIDE, 3))
    model = Seeing(x, layers.Rescaling(1.0)(x))
    model.classes, model.class_names, model.check_pixels, model.score_threshold = len(NAMES), NAMES, False, 0.3
    model.preprocessing = f"decode(3)|resize({SIDE}, {SIDE}, 'nearest', False)"
    return model


def drawn(objects, size):
    """An image of `size` with objects (box, label, score), later ones above, and scores of whole pixel values."""
    image = np.zeros((*size, 3), "uint8")
    for number, ((top, left, bottom, right), label, score) in enumerate(objects, 1):
        image[top:bottom, left:right] = number, label, round(score * 255)
    return image
