"""What users should know of a run's image files before it starts: long images, and formats that an export refuses.

Reads the names of some files and the headers of fewer, so that large data cost no more than small.
"""

import re
from collections.abc import Iterator

import numpy as np

from keras_vit.data.sources.base import RandomAccess, Source
from keras_vit.data.sources.image_files import FORMATS, infer_format, read_header
from keras_vit.data.sources.selection import subset
from keras_vit.data.sources.written_table import image_files
from keras_vit.io.logs import printable

_NAMES, _HEADERS = 2000, 200  # files looked at, of each kind
_LONG = 3  # from this ratio of its sides a square shows too little of an image
EXPORTED = "JPEG, PNG, BMP, GIF and WebP"


def _some_files(source, most):
    """At most `most` local image files of a source, evenly spread; [] for sources of other kinds."""
    if not isinstance(source, RandomAccess) or source.names is None:
        return []
    places = np.unique(np.linspace(0, source.size - 1, min(most, source.size)).astype(int))
    return [path for path in image_files(subset(source, places)) if "://" not in path]


def not_exported(source: Source) -> dict[str, str]:
    """{format: one of its files} of those of a source's formats that an exported SavedModel does not read."""
    found = {}
    for path in _some_files(source, _NAMES):
        kind = infer_format(path)
        if kind and FORMATS[kind].module:
            found.setdefault(kind, printable(path))
    return dict(sorted(found.items()))


def _longest(source):
    """(path, width, height) of the longest image, by its sides' ratio, if it is long, else None."""
    headers = ((path, read_header(path)) for path in _some_files(source, _HEADERS))
    rows = [(path, *header[0][::-1]) for path, header in headers if header and min(header[0]) > 0]
    most = max(rows, key=lambda row: max(row[1:]) / min(row[1:]), default=None)
    return most if most and max(most[1:]) > _LONG * min(most[1:]) else None


def _long_image_note(path, width, height, evaluation):
    """A sentence about an image that a square shows badly."""
    about, crop = f"{printable(path)} has {width} x {height} pixels", re.search(r"central_crop\((\d+)\)", evaluation)
    if not crop:
        return f"{about}: to fit the model it is squeezed. To keep the details of such images, cut them into pieces."
    whole = f"decode|resize({crop[1]}, {crop[1]})"
    return (
        f"{about}, and the evaluation sees only the middle of it. Cut such images into pieces, or squeeze them:"
        f' --config.data.eval_preprocess="{whole}" --config.data.train_preprocess="{whole}|random_flip".'
    )


def file_notes(source: Source, evaluation: str) -> Iterator[str]:
    """Sentences about the image files of a training split, preprocessed for evaluation by a text."""
    longest = _longest(source)
    if longest:
        path, width, height = longest
        yield _long_image_note(path, width, height, evaluation)
    formats = not_exported(source)
    if formats:
        yield (
            f"Some images are {' and '.join(formats)}, such as {next(iter(formats.values()))}. An exported SavedModel"
            f" reads only {EXPORTED}; keras-vit classify and serve read all."
        )
