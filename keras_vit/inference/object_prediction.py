"""The objects that a model finds in all images of a source, with masks if it gives these: Parquet files, and COCO's
results as one JSON file. An interrupted job resumes.

model = keras_vit.load("runs/cells")
source = keras_vit.data.open_source("boxes:CELLS", "val")
keras_vit.inference.predict_objects(model, source, "found")
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from keras_vit.answers import Column, object_finder, object_kind
from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import digest, names_at
from keras_vit.detection.detect import Detections, class_names, shown_text
from keras_vit.inference.by_row import answers_by_row
from keras_vit.inference.fingerprint import fingerprint_of_model
from keras_vit.inference.job import owned_part
from keras_vit.inference.predict import Report, check_part
from keras_vit.inference.shards import RESULTS, Shards, file_stem, take_folder
from keras_vit.inference.tables import FORMATS, whole_file
from keras_vit.io.progress import stage
from keras_vit.io.suggest import listed

_FORMAT = FORMATS["parquet"]
_BOX = ("top", "left", "bottom", "right")
_OF_RESULTS = ("image_id", "category_id", "score", *_BOX)
_OF_MASKS = ("mask", "height", "width")  # besides, for models of masks


@dataclasses.dataclass(frozen=True)
class Ids:
    """COCO's ids of images and classes.

    Attributes:
        images: by the image's name; None to number images by their row.
        categories: of each of the model's classes.
        masked: whether objects have masks.
    """

    images: Mapping[str, int | str] | None
    categories: tuple[int, ...]
    masked: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns of the table."""
        text = self.images is not None and any(isinstance(number, str) for number in self.images.values())
        image = (Column("row", "integer"), Column("name", "text"), Column("image_id", "text" if text else "integer"))
        size = (Column("height", "integer"), Column("width", "integer"))
        found = (Column("class", "text"), Column("category_id", "integer"))
        numbers = tuple(Column(name, "numbers") for name in ("score", *_BOX))
        mask = (Column("mask", "text"),) if self.masked else ()
        return Column("split", "text"), *image, *size, *found, *numbers, *mask, Column("error", "text")


def find_ids(source: Source, model: Any) -> Ids:
    """The ids in the annotation file of a COCO source; of other sources rows from 0, and classes from 1."""
    names, known, kind = class_names(model), source.coco_ids, object_kind(model)
    masked = kind is not None and kind.has_masks
    own = tuple(range(1, len(names) + 1))
    if known is None:
        return Ids(None, own, masked)
    missing = [name for name in names if name not in known.categories]
    if missing:
        logging.warning(
            "%s has no categories %s, which the model finds: category_id numbers the model's classes from 1.",
            source.name,
            listed(missing),
        )
        return Ids(known.images, own, masked)
    return Ids(known.images, tuple(known.categories[name] for name in names), masked)


def _found(finder: Any, source, rows: Sequence[int], errors, work) -> dict[int, tuple[Detections, list[str]]]:
    """{row: (its Detections, without pixels, its masks' run lengths, if any)} of the readable images of these rows."""

    def detected(images):
        return finder.of_pixels(image for image, _ in images)

    found = {}
    for one, row in answers_by_row(detected, source, rows, finder.model.channels, errors):
        masks = [mask["counts"] for mask in one.run_lengths()] if hasattr(one, "run_lengths") else []
        empty = np.broadcast_to(np.uint8(0), one.image.shape)  # its size, and no memory
        found[row] = Detections(one.boxes, one.scores, one.labels, one.class_names, empty), masks
        work.advance(1)
    return found


def _table(split, rows, names, ids: Ids, classes, found: Mapping[int, tuple[Detections, list[str]]], errors):
    """({column: values}, {column: present}): a row for each object, or one for an image without any."""
    counts = np.array([len(found[row][0]) if row in found else 0 for row in rows])
    owner = np.repeat(np.arange(len(rows)), np.maximum(counts, 1))
    readable = np.array([row in found for row in rows])
    sizes = np.array([found[row][0].image.shape[:2] if row in found else (0, 0) for row in rows])
    there, objects = counts[owner] > 0, [found[row][0] for row in rows if row in found]
    labels, scores, boxes = np.zeros(len(owner), int), np.zeros(len(owner), "float32"), np.zeros((len(owner), 4))
    if objects:
        labels[there] = np.concatenate([one.labels for one in objects])
        scores[there] = np.concatenate([one.scores for one in objects])
        boxes[there] = np.concatenate([one.boxes for one in objects])
    numbers = rows if ids.images is None else [ids.images[name] for name in names]
    why = [None if fine else errors.get(name, "it could not be read") for fine, name in zip(readable, names)]
    own = {"row": np.array(rows), "name": np.array(names, object), "image_id": np.array(numbers)}
    table = {"split": [split] * len(owner), **{name: values[owner] for name, values in own.items()}}
    table |= {"height": sizes[owner, 0], "width": sizes[owner, 1]}
    table |= {"class": np.array(classes, object)[labels], "category_id": np.array(ids.categories)[labels]}
    table |= {"score": scores, **dict(zip(_BOX, boxes.T)), "error": np.array(why, object)[owner]}
    if ids.masked:
        table["mask"] = np.full(len(owner), None, object)
        table["mask"][there] = [counts for row in rows if row in found for counts in found[row][1]]
    present = dict.fromkeys(("split", *own), np.ones(len(owner), bool))
    present |= dict.fromkeys(("height", "width"), readable[owner]) | {"error": ~readable[owner]}
    return table, {**dict.fromkeys(table, there), **present}


def _results(path: str, masked: bool) -> Iterator[str]:
    """The objects in a file of rows, each as COCO's JSON."""
    table, present = _FORMAT.read(path, _OF_RESULTS + (_OF_MASKS if masked else ()))
    images = table["image_id"][present["score"]].tolist()
    sides = np.stack([table[name] for name in _BOX], 1).astype("float64").round(3).tolist() if images else []
    scores, categories = table["score"].astype("float64").round(6).tolist(), table["category_id"].tolist()
    for i, (image, category, score, (top, left, bottom, right)) in enumerate(zip(images, categories, scores, sides)):
        box = [left, top, round(right - left, 3), round(bottom - top, 3)]
        result = {"image_id": image, "category_id": category, "bbox": box, "score": score}
        if masked:
            size = [int(table[name][present["score"][present[name]]][i]) for name in ("height", "width")]
            result["segmentation"] = {"size": size, "counts": table["mask"][i]}
        yield json.dumps(result)


def results_path(folder: str, split: str) -> str:
    """Path of a split's results in COCO's form. Table readers skip names that begin with "_"."""
    return os.path.join(folder, f"_{file_stem(split)}{RESULTS}")


def _write_results(files: Shards, masked: bool) -> None:
    """Writes the results of complete files as one JSON file, a list of objects; memory has a file's rows at a time."""
    with whole_file(results_path(files.folder, files.split)) as temporary, temporary.open("w") as out:
        before = "[\n"
        for number in range(files.count):
            for text in _results(files.path(number), masked):
                out.write(before + text)
                before = ",\n"
        out.write("\n]\n" if before != "[\n" else "[]\n")


def _description(finder: Any, source, files: Shards, ids: Ids):
    """The origin of the rows in a folder."""
    model = finder.model
    return {
        "split": files.split,
        "rows": source.size,
        "rows_per_file": files.rows,
        "format": "parquet",
        "batch_size": finder.batch_size,
        "preprocess": shown_text(model),
        "columns": [str(column) for column in ids.columns],
        "finding": finder.options,
        **({} if finder.tiling is None else {"tiles": finder.tiling.sides, "tile_overlap": finder.tiling.overlap}),
        "category_ids": ids.categories,
        **fingerprint_of_model(model, ()),
        "model_class_names": list(class_names(model)),
        "names": digest(source),
    }


def _write(files: Shards, missing, finder: Any, source, ids: Ids, errors, about: str) -> int:
    """Writes the missing files; returns the number of objects in them."""
    classes, count = class_names(finder.model), 0
    images = sum(len(files.range(number)) for number in missing)
    with errors.raised(), stage(f"Detecting objects in {source.name}", images, "images") as work:
        for number in missing:
            rows = files.range(number)
            found = _found(finder, source, rows, errors, work)
            table, present = _table(files.split, rows, names_at(source, rows), ids, classes, found, errors.names)
            _FORMAT.write(files.path(number), ids.columns, table, present, about)
            count += int(present["score"].sum())
    return count


def predict_objects(
    model: Any,
    source: Source,
    folder: str | os.PathLike,
    *,
    split: str = "train",
    batch_size: int = 8,
    rows_per_file: int = 10_000,
    part: tuple[int, int] = (0, 1),
    broken_limit: int | None = None,
    about: dict[str, Any] | None = None,
    **finding: Any,
) -> Report:
    """Writes the objects in every image of a source to Parquet files; skips files that exist.

    A row is an object: split, row (the image's number), name, image_id, height, width, class, category_id, score, and
    top, left, bottom, right in pixels of the upright image. An image without objects has one row without an object; so
    has an unreadable image, with the reason in `error`. Of models of masks `mask` has COCO's compressed run lengths, at
    the size height, width. When all files of a split are there, _SPLIT_coco.json has the same objects for pycocotools'
    `loadRes`. Ids are those of COCO's annotation file; of other sources `image_id` is
    `row`, and `category_id` counts the model's classes from 1.

    Args:
        model: a DetectionModel or InstanceModel, created in the scope of its strategy.
        source: a data source; its own boxes, if any, are not read.
        folder: local or in a bucket; other splits of the same data can share it.
        split: name of the split in the files.
        batch_size: images, or tiles, per batch, over all devices.
        rows_per_file: largest number of images in a file.
        part: (index, count) to share work among processes or machines: this one writes files index, index + count, ...
        broken_limit: largest number of unreadable images in this part, written now; None for no limit.
        about: further information for JSON.
        **finding: threshold, iou, limit, soft, across_classes, tiles, tile_overlap, as in the model's `detect`.

    Returns:
        A Report; its rows are objects.

    Raises:
        ValueError: for another model, options out of range, rows of another job in the folder, or too many unreadable
            images.
        OSError: if the folder is not writable.
    """
    check_part(part)
    finder = object_finder(model, batch_size, **finding)
    folder, about = os.path.expanduser(os.fspath(folder)), about or {}
    files, ids = Shards(folder, split, _FORMAT.ending, source.size, rows_per_file), find_ids(source, model)
    description = {**_description(finder, source, files, ids), **about}
    with owned_part(files, part):
        take_folder(files, description, free=tuple(about))
        missing, own = files.missing(part), range(part[0], files.count, part[1])
        errors = ExampleErrors(source.size if broken_limit is None else broken_limit)
        text = json.dumps(description, ensure_ascii=False)
        count = _write(files, missing, finder, source, ids, errors, text)
        if not files.missing():
            _write_results(files, ids.masked)
    return Report(count, (len(missing), len(own) - len(missing), files.count), dict(errors.names))
