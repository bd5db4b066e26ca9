"""The columns of an object's row in a batch of targets (b, m, 7): for sources, mixing, losses and measures.

Boxes are top, left, bottom, right as fractions of the image; classes are numbered from 0; areas are in pixels.
"""

COLUMNS = ("top", "left", "bottom", "right", "label", "crowd", "area")
LABEL, KIND, AREA = map(COLUMNS.index, ("label", "crowd", "area"))
OBJECT, CROWD, DIFFICULT = 0, 1, 2  # kinds
PADDING = -1  # the label of rows without an object
PADDING_ROW = (0.0, 0.0, 0.0, 0.0, float(PADDING), 0.0, 0.0)
