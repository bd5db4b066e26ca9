"""Serves models over HTTP on one machine: TensorFlow Serving's REST addresses, forms, and a page to drop a picture on.

    keras-vit serve deit/tiny --port=8501
    keras-vit serve digits=runs/digits_finetune photos=runs/photos --host=0.0.0.0 --api_key_file=key.txt

Arguments are run directories, checkpoints of any format or published names; NAME= in front sets a model's name in
addresses. --class_names=names.txt names the classes of a model without class names. A model with a text encoder
classifies by labels that the page asks for, and with --index finds images by text. docs/serving.md describes the
addresses; http://127.0.0.1:8501/ is the page. Needs the extra `serve`.
"""

import os
import pathlib
import re
from collections.abc import Sequence

from absl import logging

from . import flags, loading
from .without_engine import did_you_mean


def named(argument: str) -> tuple[str, str]:
    """(name in addresses, model for keras_vit.load) of NAME=MODEL, or of MODEL, named after its last part."""
    name, equals, model = argument.partition("=")
    if equals and re.fullmatch(r"[\w.-]+", name):
        return name, model
    last = pathlib.PurePosixPath(argument).name
    last = last if last.strip(".") else pathlib.Path(argument).resolve().name  # for ".", the folder's name
    return (
        re.sub(r"[^\w.-]", "_", last.removesuffix(".keras").removesuffix(".safetensors").removesuffix(".npz")),
        argument,
    )


def names_of_classes(text: str | None, models: Sequence[str]) -> dict[str, str]:
    """{model: class names for keras_vit.load} of --class_names=FILE for one model, or =MODEL=FILE,MODEL=FILE.

    Raises:
        ValueError: if a model's name is needed and missing.
    """
    if text is None:
        return {}
    if len(models) == 1 and not text.startswith(f"{models[0]}="):
        return {models[0]: text}
    found = {}
    for part in text.split(","):
        model, equals, file = part.partition("=")
        if not equals or model not in models:
            hint = did_you_mean(model, models) if equals else ""
            raise ValueError(
                f'--class_names={text}: expected MODEL=FILE, several with commas between them, got "{part}".{hint}'
                f" Models: {', '.join(models)}."
            )
        found[model] = file
    return found


def _read(class_names):
    """{model: its class names} of files or data sets by name. ValueError for a file that is missing."""
    from keras_vit.checkpoints.transfer import read_class_names

    found = {}
    for name, text in class_names.items():
        try:
            found[name] = read_class_names(text)
        except ValueError as error:
            raise ValueError(f'The class names of "{name}" cannot be read: {error}') from None
    return found


def _key(values):
    """The API key from --api_key_file or KERAS_VIT_API_KEY; None without one. ValueError if the file is empty."""
    if values.api_key_file is None:
        return os.environ.get("KERAS_VIT_API_KEY") or None
    key = pathlib.Path(values.api_key_file).read_text("utf-8").strip()
    if not key:
        raise ValueError(f"{values.api_key_file} is empty: write the API key into it.")
    return key


def _paths(arguments):
    """{name in addresses: model for keras_vit.load}; ValueError without models, or for two of one name."""
    if not arguments:
        raise ValueError("Give at least one model, such as deit/tiny or a run directory.")
    names = [named(argument) for argument in arguments]
    twice = sorted({name for name, _ in names if [n for n, _ in names].count(name) > 1})
    if twice:
        raise ValueError(f'Two models would be served as "{twice[0]}": give them names, NAME=MODEL.')
    return dict(names)


def _search(model, folder):
    """What finds images of an index by an embedding; ValueError for a model whose features are not in it."""
    from keras_vit.inference.neighbours import pixels_of, read_index

    if getattr(model, "text_encoder", None) is None or model.projection is not None:
        raise ValueError("--index needs a model with a text encoder in the space of its image features, as SigLIP's.")
    index = read_index(folder)
    index.check_model(model.image_encoder)

    def search(embedding, count):
        [found] = index.nearest(embedding[None], count)
        return [(each.name, each.similarity, pixels) for each, pixels in zip(found, pixels_of(index, found))]

    return search


def _served(paths, class_names, values):
    """The loaded models; ValueError if one cannot be served."""
    from keras_vit.io.progress import stage
    from keras_vit.serving.http.served import Served

    models = []
    for name, path in paths.items():
        with stage(f"Loading {path}"):
            try:
                model = loading.load(path, class_names=class_names.get(name))
            except ValueError as error:
                if name not in class_names:
                    raise
                raise ValueError(f'"{name}" cannot be loaded with these --class_names: {error}') from None
        try:
            search = None if values.index is None else _search(model, values.index)
            models.append(Served(name, model, values.top_k, values.activation, values.engine, search))
        except ValueError as error:
            raise ValueError(f"{path} cannot be served: {error}") from None
    return models


def serve(arguments, values):
    """Serves until SIGTERM or SIGINT, then finishes pending requests."""
    paths, key = _paths(arguments), _key(values)
    class_names = names_of_classes(values.class_names, tuple(paths))
    try:
        from keras_vit.serving.http.app import application
        from keras_vit.serving.http.bodies import Limits
        from keras_vit.serving.http.server import bind, in_address, run
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "tensorflow":
            raise
        raise ImportError(f"{error.name} is not installed: {flags.pip_install('serve')}.") from None
    with bind(values.host, values.port) as bound:  # before the models load, which is slow
        limits = Limits(values.megabytes, values.images, values.megapixels, values.seconds, values.megabytes_together)
        models = _served(paths, _read(class_names), values)
        app = application(models, limits, values.batch, values.wait_ms / 1e3, values.queue, values.requests, key)
        address = f"http://{in_address(values.host)}:{values.port}/"
        logging.info("%s serves %s, and is still compiling: images get a 503 meanwhile.", address, ", ".join(paths))
        run(app, bound, values.drain_seconds, values.seconds)


def main(arguments):
    from keras_vit.io.progress import shown

    with shown():
        serve(arguments, flags.FLAGS)


def run():
    flags.string("host", "127.0.0.1", "The address to listen on; 0.0.0.0 accepts requests from other machines.")
    flags.integer("port", 8501, "The port to listen on.", lowest=1, highest=65_535)
    flags.integer("top_k", 5, "How many classes are returned for each image.", lowest=1)
    flags.string("activation", None, "softmax or sigmoid, from logits to probabilities; by default the model's own.")
    flags.string(
        "class_names",
        None,
        "A file with the names of the classes, one a line, or imagenet, cifar10 or cifar100; of several models"
        " MODEL=FILE,MODEL=FILE; by default the models' own.",
    )
    flags.string(
        "engine",
        None,
        "The engine that computes the models: openvino, or openvino_bfloat16; by default TensorFlow, or JAX.",
    )
    flags.path("index", None, "Images to search by text: a folder of features, as predict writes it; by default none.")
    flags.path(
        "api_key_file", None, "A file with the key that requests must carry; by default KERAS_VIT_API_KEY, or none."
    )
    flags.integer("batch", 16, "The largest batch of images.", lowest=1)
    flags.integer("wait_ms", 5, "The longest time in milliseconds that an image waits for others.", lowest=0)
    flags.integer("queue", 512, "Images that may wait for each model; more are answered with 503.", lowest=1)
    flags.integer("requests", 256, "The largest number of requests at a time; more are answered with 503.", lowest=1)
    flags.integer("megabytes", 32, "The largest size of a request.", lowest=1)
    flags.integer(
        "megabytes_together",
        512,
        "The size of all requests at a time, and never less than --megabytes; more are answered with 503.",
        lowest=1,
    )
    flags.integer("megapixels", 64, "The largest size of an image.", lowest=1, highest=178)
    flags.integer("images", 64, "The largest number of images in a request; never more than --queue.", lowest=1)
    flags.integer("seconds", 30, "Time for a request to arrive, and then for its answer.", lowest=1)
    flags.integer("drain_seconds", 30, "After SIGTERM, the time to finish open requests.", lowest=1)
    flags.launch(main, takes="MODEL [MODEL ...]", loads=True)


if __name__ == "__main__":
    run()
