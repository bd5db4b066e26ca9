"""The base of `segment` and `detect`: a picture for every image, and its content on standard output."""

import csv
import dataclasses
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Shown:
    """How the answer for an image, any object, is shown.

    Attributes:
        picture: answer -> Pillow image.
        header: column names of the CSV table, after "image".
        rows: answer -> rows of the CSV table, without the image.
        line: answer -> one line of text.
    """

    picture: Callable[[Any], Any]
    header: tuple[str, ...]
    rows: Callable[[Any], Iterable[tuple]]
    line: Callable[[Any], str]


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
    """Writes the pictures and prints their content; returns the number of images that cannot be read."""
    writer, failed = csv.writer(sys.stdout, lineterminator="\n"), 0
    if values.csv:
        writer.writerow(["image", *shown.header])
    for (path, answer, why), name in zip(found, names):
        if answer is None:
            failed += 1
            print(f"{path}: {why}", file=sys.stderr)
            continue
        picture = os.path.join(values.output, name)
        _write(picture, shown.picture(answer))
        if values.csv:
            writer.writerows([path, *row] for row in shown.rows(answer))
        else:
            print(f"{path}: {shown.line(answer)} -> {picture}", flush=True)
    return failed


def run(arguments: list[str], values: Any, answers: Callable[[str], Callable], shown: Shown, example: str) -> None:
    """Writes a picture of each image into --output, and prints its content. Exits with 1 if one cannot be read.

    Args:
        arguments: the model, then images, folders and patterns.
        values: of the flags: output and csv.
        answers: the model's name -> a function from [(path, name in messages)] to an iterator of answers.
        shown: see Shown.
        example: of a command line, for the message without images.
    """
    from keras_vit.inference.masks import mask_names
    from keras_vit.io.logs import quiet
    from keras_vit.io.progress import shown as progress_shown

    if len(arguments) < 2:
        raise ValueError(f"Give a model and at least one image: {example}.")
    model, *images = arguments
    with progress_shown(), quiet():
        paths = find(images)
        names = mask_names(paths)
        there = [name for name, path in zip(names, paths) if _same(os.path.join(values.output, name), path)]
        if there:
            raise ValueError(f"--output={values.output} contains the images: {there[0]} would be replaced.")
        failed = _report(_answered(answers(model), paths), names, shown, values)
    if failed:
        if len(paths) > 1:
            print(f"{failed} of {len(paths)} images cannot be read.", file=sys.stderr)
        sys.exit(1)
