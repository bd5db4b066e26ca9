"""A job over many images: its rows, preprocessing, columns and files."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.answers import Column
from keras_vit.data import ExampleErrors, evaluation_batches
from keras_vit.data.batches import example_spec
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import digest, names_at, subset
from keras_vit.inference.shards import Shards, file_stem
from keras_vit.inference.tables import FORMATS, Format
from keras_vit.io.lock import owned
from keras_vit.io.suggest import check_known

NO_LABEL = -1


def image_and_label(example: dict[str, Any]) -> tuple:
    """(image, label) of an example; label NO_LABEL if it has none."""
    return example["image"], tf.cast(example.get("label", NO_LABEL), tf.int64)


def format_named(name: str) -> Format:
    """The Format of that name; ValueError if it is unknown."""
    check_known(name, "format", FORMATS)
    return FORMATS[name]


@dataclasses.dataclass(frozen=True)
class Job:
    """A job that writes a row for each image of a split.

    Columns: split, row (its number), name, label (if the source has classes), answers, and error: why the image could
    not be read, or null.

    Attributes:
        source: data source of the images.
        split: name of the split in the files.
        preprocess: preprocessing text.
        batch_size: images per batch.
        format: a name of FORMATS.
        answers: columns of the answers.
        shards: output files, made of whole batches, so that batches stay the same after an interruption.
    """

    source: Source
    split: str
    preprocess: str
    batch_size: int
    format: str
    answers: Sequence[Column]
    shards: Shards

    @classmethod
    def plan(
        cls,
        source: Source,
        folder: str,
        split: str,
        preprocess: str,
        batch_size: int,
        rows: int,
        format: str,
        answers: Sequence[Column],
    ) -> "Job":
        """A job with files of `rows` rows, rounded up to whole batches; ValueError if one exceeds Parquet's limit."""
        rows = -(-rows // batch_size) * batch_size
        longest = max((column for column in answers), key=lambda column: column.length or 1)
        if min(rows, source.size) * (longest.length or 1) >= 2**31:
            raise ValueError(
                f"rows_per_file={rows:,} of {longest} exceeds a file's limit of 2^31 numbers: use fewer rows per file."
            )
        shards = Shards(folder, split, format_named(format).ending, source.size, rows)
        return cls(source, split, preprocess, batch_size, format, tuple(answers), shards)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order."""
        label = (Column("label", "integer"),) if self.source.class_names else ()
        place = (Column("split", "text"), Column("row", "integer"), Column("name", "text"))
        return *place, *label, *self.answers, Column("error", "text")

    @property
    def form(self) -> Format:
        """Format of the files."""
        return FORMATS[self.format]

    def check_images(self, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless preprocessed images have this shape, (height, width, c). Reads no data."""
        given = tuple(example_spec(self.source, self.preprocess, image_and_label, training=False)[0].shape)
        if given != shape:
            raise ValueError(
                f'The preprocessing "{self.preprocess}" gives images of {given}, the model takes {shape}: change the'
                " preprocessing."
            )

    def description(self, fingerprint: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
        """The job's identity for JSON, with the model's `fingerprint` and further information `about` the job."""
        return {
            "split": self.split,
            "rows": self.source.size,
            "rows_per_file": self.shards.rows,
            "format": self.format,
            "batch_size": self.batch_size,
            "preprocess": self.preprocess,
            "columns": [str(column) for column in self.columns],
            **fingerprint,
            "class_names": list(self.source.class_names),
            "names": digest(self.source),
            **about,
        }

    def batches(
        self, rows: Sequence[int], errors: ExampleErrors
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Batches of (images (b, height, width, c) uint8, labels (n,), good (n,) bool); pads the last images."""
        left = len(rows)
        chosen = self.source if left == self.source.size else subset(self.source, rows)  # the whole is traced already
        for images, labels, weights in evaluation_batches(
            chosen, self.preprocess, self.batch_size, errors=errors, select=image_and_label
        ):
            n = min(left, self.batch_size)
            yield images.numpy(), labels.numpy()[:n], weights.numpy()[:n] > 0
            left -= n

    def write(
        self,
        number: int,
        labels: np.ndarray,
        good: np.ndarray,
        answers: dict[str, np.ndarray],
        errors: dict[str, str],
        about: str,
    ):
        """Writes file `number`: each row's label, whether its image was read, answers, and {name: error}."""
        rows = self.shards.range(number)
        names = names_at(self.source, rows)
        why = [None if fine else errors.get(name, "it could not be read") for fine, name in zip(good, names)]
        table = {
            "split": [self.split] * len(rows),
            "row": np.array(rows),
            "name": names,
            "label": labels,
            "error": why,
            **answers,
        }
        present = {column.name: good for column in self.columns} | dict.fromkeys(
            ("split", "row", "name"), np.ones(len(rows), bool)
        )
        self.form.write(self.shards.path(number), self.columns, table, {**present, "error": ~good}, about)

    def broken(self, numbers: Sequence[int]) -> dict[str, str]:
        """{name: reason} of the unreadable images in these files."""
        found = {}
        for number in numbers:
            table, present = self.form.read(self.shards.path(number), ("name", "error"))
            found |= dict(zip(table["name"][present["error"]], table["error"]))
        return found


@contextlib.contextmanager
def owned_part(files: Any, part: tuple[int, int]) -> Iterator[None]:
    """A context that locks this part of the job that writes `files`, so that no other process does it."""
    place = os.path.join(files.folder, f"_{file_stem(files.split)}-part-{part[0]}-of-{part[1]}")
    with owned(place):
        yield
    if "://" not in place:
        with contextlib.suppress(OSError):  # left behind by a killed process
            os.rmdir(place)
