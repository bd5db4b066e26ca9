"""An export's description: metadata.json for programs, README.md for people, assets/classes.txt, one name per line."""

import json
import os
from typing import Any

import keras

from keras_vit.detection.detect import finds_objects
from keras_vit.fit.checks.pixels import InputRange, normalisation
from keras_vit.io.suggest import counted
from keras_vit.prediction.preprocessing import preprocessing_text
from keras_vit.segmentation.segment import estimates_depth, names_and_colors, segments
from keras_vit.version import __version__

METADATA, README, CLASSES = "metadata.json", "README.md", os.path.join("assets", "classes.txt")
OK = "ok"  # status of a decoded image
READ = "JPEG, PNG, BMP, GIF or WebP"


def activation_name(model: keras.Model, activation: str | None) -> str | None:
    """The function from logits to probabilities, "softmax" or "sigmoid"; None for a model without classes.

    Raises:
        ValueError: for the activation of a detector, which its head determines.
    """
    if finds_objects(model):
        own = model.head_row.activation
        if activation not in (None, own):
            raise ValueError(f'activation="{activation}": the scores of "{model.name}" are by {own}. Leave it out.')
        return own
    if model.classes is None or estimates_depth(model):
        return None
    return activation or model.activation or ("sigmoid" if model.classes == 1 else "softmax")


def describe(model: keras.Model, activation: str | None) -> dict[str, Any]:
    """The description of a model, JSON, that exports of every format share."""
    scale, pixels = normalisation(model), InputRange.of(model)
    mean, std = (None, None) if scale is None else scale.of_input
    return {
        "keras_vit": __version__,
        "model": model.name,
        "parameters": int(model.count_params()),
        "image_size": list(model.image_size),
        "channels": model.channels,
        "pixels": f"{pixels}, not normalised: the model does that itself",
        "mean": mean,
        "std": std,
        "preprocessing": preprocessing_text(model),
        "classes": None if estimates_depth(model) else model.classes,
        "class_names": None if model.class_names is None else list(model.class_names),
        "activation": activation_name(model, activation),
        **(_of_pixels(model) if segments(model) else {}),
        **({"task": "detection"} if finds_objects(model) else {}),
        **({"task": "depth", "depth": model.depth} if estimates_depth(model) else {}),
    }


def _of_pixels(model):
    """Additions to a segmentation model's description: void is the value of pixels without a class in masks."""
    return {"task": "segmentation", "colors": names_and_colors(model)[1], "void": 255 if model.classes < 255 else 65535}


def _table(signatures):
    """Rows of the README's table from {name: {"purpose", "inputs", "outputs"}}."""
    for name, signature in signatures.items():
        cells = [" ".join(f"`{key}` {value}" for key, value in signature[way].items()) for way in ("inputs", "outputs")]
        yield f"| `{name}` | {cells[0]} | {cells[1]} | {signature['purpose']} |"


def _suppression(metadata):
    """Of a detector's boxes that overlap, in words; "" if all stay."""
    boxes = "boxes" if metadata["across_classes"] else "boxes of one class"
    if metadata["soft"]:
        return f"; of {boxes} that overlap, all but the best get lower scores"
    return f"; of {boxes} with an IoU above {metadata['iou']:g} the best stays" if metadata["iou"] < 1 else ""


def _of_task(metadata):
    """Points of the README about a task's outputs."""
    height, width = metadata["image_size"]
    task = metadata.get("task")
    if metadata["classes"] is not None:
        names = f"The names are in `{CLASSES}`, one a line. " if metadata["class_names"] else ""
        scores = "Scores" if task == "detection" else "Probabilities"
        yield f"- {names}{scores} are the {metadata['activation']} of logits."
    if task == "segmentation":
        yield (
            f"- `ids` are the numbers of the most probable classes of {height} x {width} pixels; their colours are in"
            f" `{METADATA}`. `mask_bytes` are PNG files of these numbers at each image's own size."
        )
    if task == "detection":
        yield (
            "- `boxes` are top, left, bottom, right as fractions of the image, highest score first. Scores are above"
            f" {metadata['threshold']:.3g}{_suppression(metadata)}. Empty places have score 0, label -1 and no name."
        )
    if task == "depth":
        yield f"- `depth` is the {metadata['depth']} depth of {height} x {width} pixels, as the model returns it."


def _example(metadata):
    """An image for the README's example, in Python."""
    if "encoded_images" in metadata["signatures"]["serving_default"]["inputs"]:
        return 'tf.constant([open("image.jpg", "rb").read()])'
    height, width = metadata["image_size"]
    return f"tf.zeros((1, {height}, {width}, {metadata['channels']}))"


def readme(title: str, metadata: dict[str, Any]) -> str:
    """A SavedModel's README, from its metadata."""
    height, width = metadata["image_size"]
    classes = "no classes" if metadata["classes"] is None else counted(metadata["classes"], "class")
    lines = [
        f"# {title}",
        "",
        (
            f"A Vision Transformer as a TensorFlow SavedModel: {metadata['parameters']:,} parameters, images of"
            f" {height} x {width} pixels in {metadata['channels']} channels, {classes}. It needs TensorFlow or"
            " TensorFlow Serving, and nothing else."
        ),
        "",
        "| signature | takes | returns | |",
        "|-|-|-|-|",
        *_table(metadata["signatures"]),
        "",
        f"- `encoded_images` are the bytes of files: {READ}. They are prepared by `{metadata['preprocessing']}`.",
        (
            f'- `status` is "{OK}", or says why an image of the batch was not decoded; its other outputs are zeros and'
            " empty strings. The others are not affected."
        ),
        (
            f"- `images` are pixels {metadata['pixels'].rpartition(', not')[0]}, or bytes 0..255 for `pixels_uint8`;"
            " the model normalises them itself. Batches have any size."
        ),
        *_of_task(metadata),
        "",
        "```python",
        "import tensorflow as tf",
        "",
        'model = tf.saved_model.load("this folder")',
        f'print(model.signatures["serving_default"]({_example(metadata)}))',
        "```",
        "",
        f"`{METADATA}` has all of this for programs. Made by keras_vit {metadata['keras_vit']}.",
    ]
    return "\n".join(lines) + "\n"


def write(folder: str, title: str, metadata: dict[str, Any]) -> None:
    """Writes metadata.json, README.md with its title and, for named classes, assets/classes.txt into a SavedModel's
    folder.
    """
    with open(os.path.join(folder, METADATA), "w", encoding="utf-8") as file:
        json.dump(metadata, file, indent=2, ensure_ascii=False)
    with open(os.path.join(folder, README), "w", encoding="utf-8") as file:
        file.write(readme(title, metadata))
    if metadata["class_names"]:
        os.makedirs(os.path.join(folder, os.path.dirname(CLASSES)), exist_ok=True)
        with open(os.path.join(folder, CLASSES), "w", encoding="utf-8") as file:
            file.writelines(f"{' '.join(name.splitlines())}\n" for name in metadata["class_names"])
