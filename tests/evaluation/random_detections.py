"""Random data sets with detections, in NumPy alone: crowds, ties, classes without objects, boxes without area."""

import numpy as np

SIDE = 256  # pixels of an image; a power of two, so that fractions are exact


def random_boxes(rng, count):
    """Boxes (count, 4) in pixels; half of the times whole ones, so that some IoUs are exactly a threshold."""
    sides = 2.0 ** rng.randint(1, 8, (count, 1)) * rng.uniform(0.5, 1, (count, 2))
    sides[rng.rand(count) < 0.1, rng.randint(2)] = 0
    start = rng.rand(count, 2) * (SIDE - sides)
    boxes = np.concatenate([start, start + sides], axis=1)
    return boxes.round() if rng.rand() < 0.5 else boxes


def random_image(rng, classes, without, most):
    """(size, objects (m, 7), boxes (d, 4), scores (d,), labels (d,)) with 0 to most[0] objects and most[1] detections.

    Args:
        rng: a RandomState.
        classes: their number.
        without: the class that has no objects, or -1.
        most: the largest numbers.
    """
    m, d = (0 if high == 0 or rng.rand() < 0.1 else rng.randint(1, high) for high in most)
    truth, labels = random_boxes(rng, m), rng.randint(0, classes, m)
    truth, labels = truth[labels != without], labels[labels != without]
    m = len(truth)
    crowd = rng.rand(m) < 0.15
    area = (truth[:, 2:] - truth[:, :2]).prod(axis=1) * rng.choice([0.7, 1], m)  # as of masks and of boxes
    boxes, guesses = random_boxes(rng, d), rng.randint(0, classes, d)
    if m:
        own = rng.randint(0, m, d)
        near = truth[own] + rng.normal(0, rng.choice([0.5, 3, 10]), (d, 4))
        near[:, 2:] = np.maximum(near[:, :2], near[:, 2:])
        boxes = np.where(rng.rand(d, 1) < 0.7, near.round() if rng.rand() < 0.3 else near, boxes)
        guesses = np.where(rng.rand(d) < 0.8, labels[own], guesses)
    scores = rng.rand(d)
    scores = (scores.round(1) if rng.rand() < 0.5 else scores).astype("float32")
    objects = np.column_stack([truth / SIDE, labels, crowd, area])
    return (SIDE, SIDE), objects, boxes / SIDE, scores, guesses


def random_data(seed):
    """(class names, images as of `random_image`) of a data set; the number of its kind is the last digit of `seed`."""
    rng, kind = np.random.RandomState(seed), seed % 10
    classes = rng.randint(1, 6)
    without = rng.randint(classes) if kind in (1, 6) else -1
    most = {3: (0, 40), 4: (25, 0), 5: (25, 300)}.get(kind, (25, 40))
    images = [random_image(rng, classes, without, most) for _ in range(rng.randint(1, 7))]
    return [f"class {i}" for i in range(classes)], images
