"""Finds objects in images: pictures with boxes, and a line of text, CSV or JSON.

    keras-vit detect runs/cells photo.jpg --output=look
    keras-vit detect runs/cells PHOTOS "more/**/*.png" --threshold=0.5 --csv > boxes.csv
    keras-vit detect runs/cells slide.png --tiles=640 --output=look

The model is a run directory or a checkpoint of a detector, or of a model of objects with masks. Images are files,
folders and patterns. With --output each picture, OUTPUT/NAME.png, shows the image with boxes, names, scores and masks.
Boxes in CSV and JSON, top, left, bottom and right, are in pixels of the upright image; masks, in JSON, are COCO's run
lengths at its size. --tiles finds small objects in large images by overlapping tiles. What is found goes to standard
output, problems to standard error; the exit code is 1 if an image cannot be read.
"""

import collections

from . import flags, kinds, loading, pictures, shared_flags

_KINDS = ("objects", "instances")


def _finder(name, values):
    """A function [(path, name)] -> an iterator of Detections, by the model `name`; ValueError if it finds none."""
    from keras_vit.answers import object_finder
    from keras_vit.io.progress import stage

    if kinds.is_export(name):
        kinds.check_kind(name, _KINDS)
    with stage(f"Loading {name}"):
        model = loading.load(name)
    kinds.check_kind(name, _KINDS, model)
    batch_size = 8 if values.tiles else 1
    return object_finder(model, batch_size, **shared_flags.finding(values), **shared_flags.tiles(values))


def _line(found):
    counts = collections.Counter(found.names)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"


def _rows(found):
    return [(name, f"{score:.4g}", *(f"{side:.1f}" for side in box)) for name, score, box in found]


def _fields(found):
    objects = [{"name": name, "score": score, "box": list(box)} for name, score, box in found]
    masks = found.run_lengths() if hasattr(found, "run_lengths") else [None] * len(objects)
    return {"objects": [{**one, **({"mask": mask} if mask else {})} for one, mask in zip(objects, masks)]}


def main(arguments):
    values = flags.FLAGS
    shown = pictures.Shown(
        picture=lambda found: found.picture(),
        header=("class", "score", "top", "left", "bottom", "right"),
        rows=_rows,
        line=_line,
        fields=_fields,
    )
    example = "keras-vit detect runs/cells photo.jpg --output=look"
    pictures.run(arguments, values, lambda model: _finder(model, values), shown, example)


def run():
    pictures.define_output("object")
    shared_flags.define_finding()
    shared_flags.define_tiles()
    flags.launch(main, takes="MODEL IMAGE [IMAGE ...]", loads=True)


if __name__ == "__main__":
    run()
