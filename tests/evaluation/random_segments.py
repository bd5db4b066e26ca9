"""Random panoptic data sets in NumPy alone: void, crowds, nothing true or found, single pixels, void alone."""

import numpy as np

SIZE = 24, 32  # pixels of an image


def painted(rng, count):
    """Segments (h, w) of at most `count` rectangles over each other, numbered from 1 without gaps; 0 elsewhere."""
    segments = np.zeros(SIZE, "int64")
    for number in range(1, count + 1):
        high, wide = (2 ** rng.uniform(0, 4.5, 2)).astype(int)
        top, left = rng.randint(0, SIZE[0]), rng.randint(0, SIZE[1])
        segments[top : top + high, left : left + wide] = number
    return np.unique(np.append(segments, 0), return_inverse=True)[1][:-1].reshape(SIZE)


def moved(rng, segments):
    """Segments a pixel or two elsewhere, some of them gone, numbered from 1 without gaps; and their old numbers."""
    found = np.roll(segments, rng.randint(-2, 3, 2), (0, 1)) if rng.rand() < 0.8 else segments.copy()
    found[np.isin(found, np.flatnonzero(rng.rand(segments.max() + 1) < 0.15))] = 0
    old = np.setdiff1d(np.unique(found), [0])
    return np.searchsorted(old, found) * (found > 0) + (found > 0), old


def random_image(rng, classes, most, crowds):
    """(segments (h, w), labels, crowd (s,), found segments (h, w), labels (r,)) of at most `most` segments."""
    truth = painted(rng, rng.randint(0, most + 1) if rng.rand() < 0.9 else 0)
    labels = rng.randint(0, classes, truth.max())
    crowd = rng.rand(len(labels)) < crowds
    found, old = moved(rng, truth)
    if rng.rand() < 0.2:
        found, old = painted(rng, rng.randint(0, most + 1)), None
    guesses = rng.randint(0, classes, found.max())
    if old is not None and len(old):
        guesses = np.where(rng.rand(len(old)) < 0.85, labels[old - 1], guesses)
    return truth, labels, crowd, found, guesses


def random_data(seed):
    """(number of classes, how many of the first are stuff, images); the kind of data is the last digit of `seed`."""
    rng, kind = np.random.RandomState(seed), seed % 10
    classes = rng.randint(1, 6)
    crowds = {6: 1.0, 7: 0.5}.get(kind, 0.1)
    images = [random_image(rng, classes, {3: 1, 4: 30}.get(kind, 12), crowds) for _ in range(rng.randint(1, 5))]
    if kind == 5:  # void alone, or nothing found
        images = [(0 * image[0], image[1][:0], image[2][:0], *image[3:]) for image in images[:1]]
        images += [(*random_image(rng, classes, 12, crowds)[:3], np.zeros(SIZE, int), np.zeros(0, int))]
    return classes, rng.randint(0, classes + 1), images
