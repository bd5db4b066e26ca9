"""Finds objects in images: pictures with boxes, and a line or rows of CSV for each image.

    keras-vit detect runs/cells photo.jpg --output=look
    keras-vit detect runs/cells PHOTOS "more/**/*.png" --output=look --threshold=0.5 --csv > boxes.csv

The model is a run directory or a checkpoint of a detector. Images are files, folders and patterns. Each picture,
OUTPUT/NAME.png, shows the image with boxes, names and scores. Boxes in CSV are in pixels of the upright image.
What is found goes to standard output, problems to standard error; the exit code is 1 if an image cannot be read.
"""

import collections

from . import flags, loading, pictures, shared_flags


def _finder(name, values):
    """A function [(path, name)] -> an iterator of Detections, by the model `name`; ValueError if it finds none."""
    from keras_vit.io.progress import stage
    from keras_vit.training.prediction.detect import Finder

    with stage(f"Loading {name}"):
        model = loading.load(name)
    if not hasattr(model, "detections"):
        raise ValueError(f"{name} does not find objects. For classes of images: keras-vit classify {name}.")
    return Finder(model, 1, {"threshold": model.score_threshold, **shared_flags.finding(values)})


def _line(found):
    counts = collections.Counter(found.names)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"


def _rows(found):
    return [(name, f"{score:.4g}", *(f"{side:.1f}" for side in box)) for name, score, box in found]


def main(arguments):
    values = flags.FLAGS
    shown = pictures.Shown(
        picture=lambda found: found.picture(),
        header=("class", "score", "top", "left", "bottom", "right"),
        rows=_rows,
        line=_line,
    )
    example = "keras-vit detect runs/cells photo.jpg --output=look"
    pictures.run(arguments, values, lambda model: _finder(model, values), shown, example)


def run():
    flags.path("output", None, "The folder of the pictures; existing ones are replaced.", required=True)
    flags.boolean("csv", False, "Prints CSV, a row per object.")
    shared_flags.define_finding()
    flags.launch(main, takes="MODEL IMAGE [IMAGE ...]", loads=True)


if __name__ == "__main__":
    run()
