"""An export's description: metadata.json for programs, README.md for people, assets/classes.txt, one name per line."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit.answers import ANSWERS, Answer, find
from keras_vit.answers.classes import CLASSES_FILE
from keras_vit.fit.checks.pixels import InputRange, normalisation
from keras_vit.io.suggest import counted
from keras_vit.prediction.decoding_in_graph import OK, READ
from keras_vit.prediction.preprocessing import preprocessing_text
from keras_vit.version import __version__

METADATA, README = "metadata.json", "README.md"


def describe(model: keras.Model, answers: Sequence[Answer]) -> dict[str, Any]:
    """The description of a model and its bound answers, JSON, that exports of every format share."""
    scale, pixels = normalisation(model), InputRange.of(model)
    mean, std = (None, None) if scale is None else scale.of_input
    description = {
        "keras_vit": __version__,
        "model": model.name,
        "parameters": int(model.count_params()),
        "image_size": list(model.image_size),
        "channels": model.channels,
        "pixels": f"{pixels}, not normalised: the model does that itself",
        "mean": mean,
        "std": std,
        "preprocessing": preprocessing_text(model),
        "answers": [answer.kind for answer in answers],
    }
    for answer in answers or (Answer(model),):
        description |= answer.about()
    return description


def kinds_in(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of an export's answers, from its metadata; exports of 0.5.0 state a task."""
    if "answers" in metadata:
        return tuple(metadata["answers"])
    tasks = {answer.task: kind for kind, answer in ANSWERS.items() if answer.task}
    return (tasks.get(metadata.get("task")) or ("features" if metadata.get("classes") is None else "classes"),)


def _table(signatures):
    """Rows of the README's table from {name: {"purpose", "inputs", "outputs"}}."""
    for name, signature in signatures.items():
        cells = [" ".join(f"`{key}` {value}" for key, value in signature[way].items()) for way in ("inputs", "outputs")]
        yield f"| `{name}` | {cells[0]} | {cells[1]} | {signature['purpose']} |"


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
        *(note for kind in metadata["answers"] for note in find(kind).notes(metadata)),
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
        os.makedirs(os.path.join(folder, os.path.dirname(CLASSES_FILE)), exist_ok=True)
        with open(os.path.join(folder, CLASSES_FILE), "w", encoding="utf-8") as file:
            file.writelines(f"{' '.join(name.splitlines())}\n" for name in metadata["class_names"])
