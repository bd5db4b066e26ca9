"""What numbers in training targets mean: masks, and rows of objects. For sources, mixing, losses and measures."""

VOID = 255  # of masks: the value of pixels without a class, which losses and measures ignore and ops pad with
_WIDE_VOID = 65535

# Objects are rows of a batch (b, m, 7). Boxes are fractions of the image, classes numbered from 0, areas in pixels.
COLUMNS = ("top", "left", "bottom", "right", "label", "crowd", "area")
LABEL, KIND, AREA = map(COLUMNS.index, ("label", "crowd", "area"))
OBJECT, CROWD, DIFFICULT = 0, 1, 2  # kinds
PADDING = -1  # the label of rows without an object
PADDING_ROW = (0.0, 0.0, 0.0, 0.0, float(PADDING), 0.0, 0.0)


def void_value(classes: int) -> int:
    """The value of pixels without a class in masks of that many classes: 255, or 65535 if 255 could be a class."""
    return VOID if classes < VOID else _WIDE_VOID
