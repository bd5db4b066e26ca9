"""The registry of the preprocessing vocabulary: one factory an op, whose parameters are what stands in the brackets.

A factory returns a function of one image (h, w, c), or for a random op of (image, seed) with seed (2,) integers. Values stay on the
0..255 scale. Register with @op or @random_op: the function's name is the op's. The ops lie in files beside this one, by kind, which
preprocess.py imports.
"""

OPS = {}
RANDOM = set()
LABELS = set()


def op(factory):
    """Registers an op's factory: parameters -> (image -> image)."""
    OPS[factory.__name__] = factory
    return factory


def random_op(factory):
    """Registers a random op's factory: parameters -> ((image, seed) -> image)."""
    RANDOM.add(factory.__name__)
    return op(factory)


def label_op(factory):
    """Registers an op on labels, by its factory: parameters -> (label -> label)."""
    LABELS.add(factory.__name__)
    return op(factory)
