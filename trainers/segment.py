"""Segments images: pictures with a colour for every class or segment, and the share of each.

    keras-vit segment runs/streets street.jpg --output=look
    keras-vit segment runs/streets PHOTOS "more/**/*.png" --window=slide --csv > shares.csv

The model is a run directory, a checkpoint, or an exported SavedModel of a segmentation model, or a model of objects
with masks, which gives each pixel to an object or a region of stuff. Images are files, folders
and patterns. With --output each picture, OUTPUT/NAME.png, shows the image under its classes' colours, with a legend;
--alpha=1 shows colours alone. Shares go to standard output as text, CSV or JSON, problems to standard error; the exit
code is 1 if an image cannot be read. `predict` writes masks, resumes, and uses several devices.
"""

import os

from . import flags, kinds, loading, pictures, shared_flags

_KINDS = ("masks", "instances")


def _model(name):
    """The loaded model; ValueError if it does not segment."""
    from keras_vit.io.progress import stage

    with stage(f"Loading {name}"):
        model = loading.load(name)
    kinds.check_kind(name, _KINDS, model)
    return model


def _by_export(folder, values):
    """A function [(path, name)] -> an iterator of Segmentations, by an exported SavedModel."""
    import json

    import numpy as np
    import tensorflow as tf
    from etils import epath

    from keras_vit.data import parse
    from keras_vit.segmentation.segment import Segmentation

    loading.refuse(f"{folder} is an export")
    kinds.check_kind(folder, "masks")
    if shared_flags.windows(values) != {"window": "whole", "overlap": values.overlap, "scale": None, "flips": False}:
        raise ValueError(f"{folder} is an export, which sees images whole: leave out --window and --flips.")
    about = json.loads(epath.Path(folder, "metadata.json").read_text())
    masks = tf.saved_model.load(folder).signatures["encoded_masks"]
    names = tuple(about["class_names"] or map(str, range(about["classes"])))
    colors, decode = tuple(map(tuple, about["colors"])), parse(f"decode({about['channels']}, whole=True)")

    def segment(images):
        for path, _ in images:
            encoded = epath.Path(path).read_bytes()
            found = masks(tf.constant([encoded]))
            if (status := found["status"].numpy()[0]) != b"ok":
                raise ValueError(status.decode())
            dtype = tf.uint8 if len(names) < 255 else tf.uint16
            classes = tf.io.decode_png(found["mask_bytes"][0], dtype=dtype).numpy()[..., 0]
            yield Segmentation(np.asarray(classes), names, colors, decode.image(encoded).numpy())

    return segment


def _segmenter(name, values):
    """The same by any model."""
    from keras_vit.answers import find

    if kinds.is_export(name):
        return _by_export(os.path.expanduser(name), values)
    model = _model(name)
    [kind] = [kind for kind in model.answers if kind in _KINDS]
    return find(kind).segmenter(model, values.batch_size, **shared_flags.windows(values))


def _line(segmentation):
    best = ", ".join(f"{share.name} {share.share:.1%}" for share in segmentation.shares[:5]) or "nothing"
    return f"{best}{', ...' if len(segmentation.shares) > 5 else ''}"


def _fields(segmentation):
    return {"classes": [{"name": share.name, "share": share.share} for share in segmentation.shares]}


def main(arguments):
    values = flags.FLAGS
    shown = pictures.Shown(
        picture=lambda segmentation: segmentation.picture(values.alpha),
        header=("class", "share"),
        rows=lambda segmentation: [(share.name, f"{share.share:.6g}") for share in segmentation.shares],
        line=_line,
        fields=_fields,
    )
    example = "keras-vit segment runs/streets street.jpg --output=look"
    pictures.run(arguments, values, lambda model: _segmenter(model, values), shown, example)


def run():
    pictures.define_output("image and class")
    flags.number("alpha", 0.5, "The share of the colours in a picture.", lowest=0, highest=1)
    flags.integer("batch_size", 4, "Windows at a time.", lowest=1)
    flags.only_with("alpha", "output", bool, "--output")
    shared_flags.define_windows()
    flags.launch(main, takes="MODEL IMAGE [IMAGE ...]", loads=True)


if __name__ == "__main__":
    run()
