"""The base of `segment` and `detect`: each image's content on standard output, and pictures."""

import csv
import dataclasses
import io
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import flags


@dataclasses.dataclass(frozen=True)
class Shown:
    """How the answer for an image, any object, is shown.

    Attributes:
        picture: answer -> Pillow image.
        header: column names of the CSV table, after "image".
        rows: answer -> rows of the CSV table, without the image.
        line: answer -> one line of text.
        fields: answer -> its part of the JSON object of an image.
    """

    picture: Callable[[Any], Any]
    header: tuple[str, ...]
    rows: Callable[[Any], Iterable[tuple]]
    line: Callable[[Any], str]
    fields: Callable[[Any], dict[str, Any]]


def define_output(row: str) -> None:
    """The flags --output, --csv and --json; `row` says what a row of CSV is for."""
    flags.path("output", None, "The folder of pictures; existing ones are replaced. By default none are drawn.")
    flags.boolean("csv", False, f"Prints CSV, a row per {row}.")
    flags.boolean("json", False, "Prints JSON.")


def find(arguments: list[str]) -> list[str]:
    """The images that the arguments name; ValueError or FileNotFoundError if one names none."""
    from keras_vit.inspection.photographs import find_images

    return list(dict.fromkeys(path for argument in arguments for path in find_images(argument)))


def _answered(answers: Callable, paths: list[str]) -> Iterator[tuple[str, Any, str | None]]:
    """(path, answer or None, why there is none) of each image; `answers` maps [(path, name)] to an iterator."""
    for path in paths:
        try:
            yield path, next(answers([(path, "It")])), None
        except (OSError, ValueError) as error:
            yield path, None, (error.strerror if isinstance(error, OSError) and error.strerror else str(error))


def _write(path: str, picture: Any) -> None:
    """Writes a Pillow image as a PNG file."""
    from keras_vit.io.atomic import write_bytes

    file = io.BytesIO()
    picture.save(file, "PNG")
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, file.getvalue())


def _same(written: str, path: str) -> bool:
    """Whether the file to write is the image itself."""
    return os.path.exists(written) and os.path.exists(path) and os.path.samefile(written, path)


def _report(found, names, shown, values):
    """Prints the images' content and writes the pictures; returns the number of images that cannot be read."""
    writer, objects, failed = csv.writer(sys.stdout, lineterminator="\n"), [], 0
    if values.csv:
        writer.writerow(["image", *shown.header])
    for (path, answer, why), name in zip(found, names):
        if values.json:
            objects.append({"image": path, **({} if answer is None else shown.fields(answer)), "error": why})
        if answer is None:
            failed += 1
            print(f"{path}: {why}", file=sys.stderr)
            continue
        picture = os.path.join(values.output, name) if values.output else None
        if picture:
            _write(picture, shown.picture(answer))
        if values.csv:
            writer.writerows([path, *row] for row in shown.rows(answer))
        elif not values.json:
            print(f"{path}: {shown.line(answer)}{f' -> {picture}' if picture else ''}", flush=True)
    if values.json:
        print(json.dumps(objects, indent=1, ensure_ascii=False))
    return failed


def run(arguments: list[str], values: Any, answers: Callable[[str], Callable], shown: Shown, example: str) -> None:
    """Prints each image's content, and writes a picture of it into --output. Exits with 1 if one cannot be read.

    Args:
        arguments: the model, then images, folders and patterns.
        values: of the flags of `define_output`.
        answers: the model's name -> a function from [(path, name in messages)] to an iterator of answers.
        shown: see Shown.
        example: of a command line, for the message without images.
    """
    from keras_vit.inference.image_files import file_names
    from keras_vit.io.logs import quiet
    from keras_vit.io.progress import shown as progress_shown

    if len(arguments) < 2:
        raise ValueError(f"Give a model and at least one image: {example}.")
    if values.json and values.csv:
        raise ValueError("Give --json or --csv, not both.")
    model, *images = arguments
    with progress_shown(), quiet():
        paths = find(images)
        names = file_names(paths)
        folder = values.output
        there = [name for name, path in zip(names, paths) if folder and _same(os.path.join(folder, name), path)]
        if there:
            raise ValueError(f"--output={values.output} contains the images: {there[0]} would be replaced.")
        failed = _report(_answered(answers(model), paths), names, shown, values)
    if failed:
        if len(paths) > 1:
            print(f"{failed} of {len(paths)} images cannot be read.", file=sys.stderr)
        sys.exit(1)
