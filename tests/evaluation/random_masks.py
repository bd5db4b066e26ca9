"""Random data sets of overlapping masks with detections, in NumPy alone: crowds, ties, empty images, single pixels."""

import numpy as np

SIZE = 112, 144  # pixels of an image
SCORES = 8  # scores are shares of it, so many are equal


def shape(rng, size=SIZE):
    """A mask (h, w) bool: an ellipse or a rectangle, or one pixel."""
    rows, columns = np.ogrid[: size[0], : size[1]]
    center = rng.rand(2) * size
    if rng.rand() < 0.1:
        return (rows == int(center[0])) & (columns == int(center[1]))
    high, wide = 2.0 ** rng.uniform(1, 7, 2)
    y, x = np.abs(rows - center[0]) / high, np.abs(columns - center[1]) / wide
    return (y**2 + x**2 < 1) if rng.rand() < 0.5 else (y < 1) & (x < 1)


def layered(rng, count, size=SIZE):
    """(segments (h, w, 2) int32, masks (m, h, w) bool) of at most `count` shapes, at most two at a pixel."""
    segments, masks = np.zeros((*size, 2), "int32"), []
    for _ in range(count):
        mask = shape(rng, size)
        twice = (segments[..., 0] != segments[..., 1]) & mask
        if not mask.any() or twice.any():
            continue
        masks.append(mask)
        segments[..., 1][mask & (segments[..., 1] == 0)] = len(masks)
        segments[..., 0][mask] = len(masks)
    return segments, np.array(masks, bool).reshape(-1, *size)


def moved(rng, mask):
    """The mask a few pixels elsewhere, with a part cut off at times."""
    change = np.roll(mask, rng.randint(-3, 4, 2), (0, 1))
    if rng.rand() < 0.3:
        change = change & (np.arange(mask.shape[1]) < mask.shape[1] * rng.rand())
    return change if rng.rand() < 0.7 else mask


def random_image(rng, classes, most, crowds):
    """(segments (h, w, 2), masks (m, h, w), labels, crowd, area (m,), found masks (d, h, w), scores, labels (d,)).

    Args:
        rng: a RandomState.
        classes: their number.
        most: objects and detections.
        crowds: the share of crowds.
    """
    counts = [0 if high == 0 or rng.rand() < 0.1 else rng.randint(1, high) for high in most]
    segments, masks = layered(rng, counts[0])
    labels, crowd = rng.randint(0, classes, len(masks)), rng.rand(len(masks)) < crowds
    area = masks.sum((1, 2)) * rng.choice([0.7, 1], len(masks))
    found, guesses = [], []
    for _ in range(counts[1]):
        own = rng.randint(len(masks)) if len(masks) and rng.rand() < 0.8 else -1
        mask = shape(rng) if own < 0 else moved(rng, masks[own])
        if mask.any():
            found.append(mask)
            guesses.append(labels[own] if own >= 0 and rng.rand() < 0.9 else rng.randint(classes))
    scores, detections = rng.randint(1, SCORES + 1, len(found)) / SCORES, np.array(found, bool).reshape(-1, *SIZE)
    return segments, masks, labels, crowd, area, detections, scores, np.array(guesses, int)


def random_data(seed):
    """(number of classes, images as of `random_image`); the kind of data is the last digit of `seed`."""
    rng, kind = np.random.RandomState(seed), seed % 10
    classes = rng.randint(1, 4)
    most = {3: (0, 12), 4: (12, 0), 5: (6, 160)}.get(kind, (12, 20))
    crowds = {6: 1.0, 7: 0.5}.get(kind, 0.15)
    return classes, [random_image(rng, classes, most, crowds) for _ in range(rng.randint(1, 4))]
