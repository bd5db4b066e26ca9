"""Classifies images: the most probable classes of each, with their names.

    keras-vit classify deit/tiny cat.jpg
    keras-vit classify siglip2/B_16-224 cat.jpg --labels="a cat,a dog" --tokenizer=tokenizer.json
    keras-vit classify runs/photos PHOTOS "more/**/*.png" --top_k=1 --csv > answers.csv

The model is a run directory, a checkpoint of any format, a published name, or an exported SavedModel, which needs only
TensorFlow. Images are files, folders and patterns; "-" reads one from standard input. Answers go to standard output,
problems to standard error; the exit code is 1 if an image cannot be read. With --labels a model with a text encoder
classifies by any names, without training. `predict` writes Parquet files, resumes, and uses several devices.
"""

import csv
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator

from . import flags, kinds, loading

_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Answer:
    """The printed answer for an image: its path, (name, probability) best first, and why there are none."""

    image: str
    best: tuple[tuple[str, float], ...] = ()
    error: str | None = None


def _by_export(folder, top_k):
    """A function [bytes] -> [(name, probability), ...] of each, best first, from an exported SavedModel."""
    import tensorflow as tf

    kinds.check_kind(folder, "classes")
    predict = tf.saved_model.load(folder).signatures["serving_default"]
    if "classes" not in predict.structured_outputs:
        raise ValueError(f"{folder} has no classes: it returns {', '.join(predict.structured_outputs)}.")

    def classify(images):
        try:
            answer = predict(tf.constant(images))
        except tf.errors.OpError:
            raise ValueError(
                "cannot be decoded: an export reads JPEG, PNG, BMP, GIF and WebP; convert other images"
            ) from None
        bad = [status.decode() for status in answer["status"].numpy() if status != b"ok"] if "status" in answer else []
        if bad:
            raise ValueError(bad[0])
        best = zip(answer["classes"].numpy(), answer["probabilities"].numpy())
        return [[(name.decode(), float(p)) for name, p in zip(*image)][:top_k] for image in best]

    return classify


def _by_model(name, top_k, class_names):
    """The same from a model for keras_vit.load."""
    from keras_vit.io.class_names import DATA_SETS
    from keras_vit.io.progress import stage

    with stage(f"Loading {name}"):
        model = loading.load(name, class_names=class_names)
    kinds.check_kind(name, "classes", model)
    if model.class_names is None:
        known = [data for data, names in DATA_SETS.items() if len(names()) == model.classes]
        hint = f", or --class_names={known[0]}" if known else ""
        print(f"{name} does not name its classes. Name them: --class_names=FILE, one a line{hint}.", file=sys.stderr)
    return lambda images: [
        [(guess.name, guess.probability) for guess in best] for best in model.classify(images, top_k=top_k, verbose=0)
    ]


def _by_texts(name, values):
    """The same from a model with a text encoder, for the classes of --labels."""
    from keras_vit.io.paths import locate, read_text
    from keras_vit.io.progress import stage

    if values.class_names:
        raise ValueError("--class_names names the classes of a head, --labels those of texts: give one of them.")
    labels, templates = values.labels.split(","), values.templates
    if len(labels) == 1 and os.path.exists(locate(labels[0])):
        labels = read_text(locate(labels[0])).splitlines()
    labels = [label.strip() for label in labels if label.strip()]
    with stage(f"Loading {name}"):
        model = loading.load(name, text=True, tokenizer=values.tokenizer)
    with stage("Reading the labels"):
        classifier = model.classifier(labels, templates)
    return lambda images: [
        [(guess.name, guess.probability) for guess in best]
        for best in classifier.classify(images, top_k=values.top_k, verbose=0)
    ]


def _paths(arguments):
    """(path or "-", None), or (argument, why there is no image), for each image that the arguments name."""
    from keras_vit.inspection.photographs import find_images

    for argument in arguments:
        try:
            yield from ((path, None) for path in (["-"] if argument == "-" else find_images(argument)))
        except FileNotFoundError as error:
            yield argument, str(error).removeprefix(f'"{argument}" is ')


def _bytes(path):
    from etils import epath

    return sys.stdin.buffer.read() if path == "-" else epath.Path(path).read_bytes()


def _one(classify, path):
    """The Answer of one image."""
    try:
        return Answer(path, tuple(classify([_bytes(path)])[0]))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Answer(path, error=reason.removeprefix("Image 0 of the list ").removeprefix("Image 0 of the list: "))


def answers(classify: Callable, paths: list[tuple[str, str | None]]) -> Iterator[list[Answer]]:
    """The Answers of images, batch by batch, in order."""
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        try:
            found = iter(classify([_bytes(path) for path, missing in batch if missing is None and path != "-"]))
            yield [
                Answer(path, error=missing)
                if missing
                else _one(classify, path)
                if path == "-"
                else Answer(path, tuple(next(found)))
                for path, missing in batch
            ]
        except (OSError, ValueError):  # one by one, to find which
            yield [Answer(path, error=missing) if missing else _one(classify, path) for path, missing in batch]


def _percent(probability):
    return f"{probability:.1%}".rjust(6)


def _print_aligned(batches, count):
    """Prints one image's classes below each other, several images' in columns."""
    for batch in batches:
        good = [answer for answer in batch if answer.best]
        if count == 1 and good:
            print(good[0].image)
            print("\n".join(f"  {_percent(p)}  {name}" for name, p in good[0].best))
            continue
        width = max((len(answer.image) for answer in good), default=0)
        columns = [max(len(name) for name, _ in column) for column in zip(*(answer.best for answer in good))]
        for answer in good:
            cells = [f"{_percent(p)} {name.ljust(w)}" for (name, p), w in zip(answer.best, columns)]
            print(f"{answer.image.ljust(width)}  {'  '.join(cells)}".rstrip(), flush=True)


def _print_json(batches):
    rows = [
        {
            "image": answer.image,
            "classes": [{"name": name, "probability": p} for name, p in answer.best],
            "error": answer.error,
        }
        for batch in batches
        for answer in batch
    ]
    print(json.dumps(rows, indent=1, ensure_ascii=False))


def _print_csv(batches, top_k):
    writer = csv.writer(sys.stdout)
    numbers = range(1, top_k + 1)
    writer.writerow(["image", *(f"{part}_{i}" for i in numbers for part in ("class", "probability")), "error"])
    for batch in batches:
        for answer in batch:
            cells = [cell for name, p in answer.best for cell in (name, f"{p:.6g}")]
            writer.writerow([answer.image, *cells, *[""] * (2 * top_k - len(cells)), answer.error or ""])


def _reported(batches, failed):
    """The batches; problems go to stderr and into the list `failed`."""
    for batch in batches:
        for answer in batch:
            if answer.error:
                failed.append(answer)
                print(f"{answer.image}: {answer.error}", file=sys.stderr)
        yield batch


def main(arguments):
    from keras_vit.io.logs import quiet
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    model, *images = [values.model, *arguments] if values.model else arguments or [None]
    if not model or not images:
        raise ValueError("Give a model and at least one image: keras-vit classify deit/tiny cat.jpg.")
    if values.json and values.csv:
        raise ValueError("Give --json or --csv, not both.")
    with shown(), quiet():
        if kinds.is_export(model):
            if values.labels:
                raise ValueError(f"--labels: {model} is an export with fixed classes. Give the model itself.")
            if values.class_names:
                raise ValueError(f"--class_names: {model} is an export, which has its names. Export the model again.")
            loading.refuse(f"{model} is an export")
            classify = _by_export(os.path.expanduser(model), values.top_k)
        elif values.labels:
            classify = _by_texts(model, values)
        else:
            classify = _by_model(model, values.top_k, values.class_names)
        paths, failed = list(_paths(images)), []
        batches = _reported(answers(classify, paths), failed)
        if values.json:
            _print_json(batches)
        elif values.csv:
            _print_csv(batches, values.top_k)
        else:
            _print_aligned(batches, len(paths))
    if failed:
        if len(paths) > 1:
            print(f"{len(failed)} of {len(paths)} images cannot be read.", file=sys.stderr)
        sys.exit(1)


def run():
    flags.string("model", None, "The model, if it is not the first argument.")
    flags.integer("top_k", 3, "Classes per image.", lowest=1)
    flags.string(
        "class_names",
        None,
        "A file with one class name a line, or imagenet, cifar10 or cifar100; by default the model's own.",
    )
    flags.string(
        "labels",
        None,
        "Names of classes, joined by commas, or a file with one a line: zero-shot, by the model's text encoder.",
    )
    flags.string(
        "templates", "photo", 'The texts for --labels: label, photo, clip or clip7, or a text with "{}" for the label.'
    )
    flags.path("tokenizer", None, "The tokenizer.json of the texts; by default the one next to the model.")
    for name in ("templates", "tokenizer"):
        flags.only_with(name, "labels", bool, "--labels")
    flags.boolean("json", False, "Prints JSON.")
    flags.boolean("csv", False, "Prints CSV, a row per image.")
    flags.launch(main, takes="MODEL IMAGE [IMAGE ...]", loads=True)


if __name__ == "__main__":
    run()
