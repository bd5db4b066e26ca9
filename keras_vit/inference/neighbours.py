"""Find the nearest images of a data set by the cosine of features from `predict`.

    index = read_index("features")
    [found] = index.nearest(features_of_cat, k=8)      # Neighbour(similarity, name, split, row), most similar first

scikit-learn searches exactly: it keeps all features in memory, 4 bytes per number, and compares each with the query.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from keras_vit.data import evaluation_batches, open_source
from keras_vit.data.sources.selection import digest, subset
from keras_vit.inference.answer_rows import AnswerRows
from keras_vit.inference.fingerprint import EXPORT, fingerprint_of_model
from keras_vit.inference.job import image_and_label
from keras_vit.inference.shards import Shards, read_descriptions
from keras_vit.inference.tables import FORMATS
from keras_vit.io.progress import stage


class Neighbour(NamedTuple):
    """An image of the index: cosine similarity to the query, name, split and row."""

    similarity: float
    name: str
    split: str
    row: int


def _scikit_learn():
    """sklearn.neighbors; ImportError with an install command."""
    try:
        import sklearn.neighbors
    except ImportError:
        raise ImportError("Search needs scikit-learn: pip install scikit-learn.") from None
    return sklearn.neighbors


def _normalised(features):
    """Rows (n, d) of length 1."""
    lengths = np.linalg.norm(features, axis=-1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1)


class Index:
    """Searchable features.

    Args:
        features: (n, d) float32.
        names, splits, rows: (n,). One per image.
        descriptions: descriptions of the jobs that wrote the features, one per split.
    """

    def __init__(self, features, names, splits, rows, descriptions: Sequence[dict[str, Any]] = ()):
        self.features, self.names, self.splits, self.rows = features, list(names), list(splits), list(rows)
        self.descriptions = {description["split"]: description for description in descriptions}

    @functools.cached_property
    def _search(self):
        return _scikit_learn().NearestNeighbors(metric="cosine", algorithm="brute").fit(_normalised(self.features))

    def check_written_by_model(self) -> None:
        """Raises ValueError for features from a Beam pipeline with an export, which no model can search."""
        for split, description in self.descriptions.items():
            if description["weights"].startswith(EXPORT):
                raise ValueError(
                    f'The features of "{split}" were computed by the export {description.get("model", "unknown")}, and'
                    " cannot be compared with those of a model. Compute them with the model itself: keras-vit predict"
                    " --answers=features, without --beam."
                )

    def check_model(self, model: Any) -> None:
        """Raises ValueError unless this model computed the features."""
        self.check_written_by_model()
        own = fingerprint_of_model(model, ("features",))
        for split, description in self.descriptions.items():
            # Earlier versions recorded only the weights.
            if any(description.get(key, value) != value for key, value in own.items()):
                raise ValueError(
                    f'The features of "{split}" were computed by another model, {description.get("model", "unknown")},'
                    " or with other weights: search with that model, or compute them again in another folder."
                )

    @property
    def preprocess(self) -> str | None:
        """Preprocessing text of the images, also for queries; None if unknown."""
        return next((description["preprocess"] for description in self.descriptions.values()), None)

    def nearest(self, features: Any, k: int = 8) -> list[list[Neighbour]]:
        """The `k` nearest images (or all, if fewer) for each of the features (b, d), most similar first."""
        distances, numbers = self._search.kneighbors(
            _normalised(np.asarray(features, "float32")), min(k, len(self.names))
        )
        return [
            [Neighbour(1 - float(d), self.names[i], self.splits[i], int(self.rows[i])) for d, i in zip(*query)]
            for query in zip(distances, numbers)
        ]

    def usual_similarities(self, most: int = 100) -> np.ndarray:
        """(m,) similarities of at most `most` images, spread over the index, to their nearest neighbours in it."""
        rows = np.unique(np.linspace(0, len(self.names) - 1, most).astype(int))
        distances, _ = self._search.kneighbors(_normalised(self.features[rows]), min(2, len(self.names)))
        return 1 - distances[:, -1]  # the first is the image itself


def _read_file(form, path):
    """The content of a file of features, as from Format.read."""
    try:
        return form.read(path, ("features", "name", "row"))
    except (pa.ArrowException, tf.errors.OpError) as error:
        raise ValueError(
            f'"{path}" is damaged: {getattr(error, "message", None) or error}. Delete it, and run the same keras-vit'
            " predict again."
        ) from None


def _read_split(folder, description):
    """{column: values} of a split's rows that have features."""
    form = FORMATS[description["format"]]
    shards = Shards(folder, description["split"], form.ending, description["rows"], description["rows_per_file"])
    missing = shards.missing()
    if missing:
        raise ValueError(
            f'"{folder}" is incomplete: {len(missing)} of the {shards.count} files of "{description["split"]}" are'
            f" missing, such as {os.path.basename(shards.path(missing[0]))}. Run the same keras-vit predict again."
        )
    if not any(column.startswith("features[") for column in description["columns"]):
        raise ValueError(
            f'"{folder}" has no features, only {", ".join(description["columns"])}: run keras-vit predict with'
            " --answers=features."
        )
    parts = []
    for i in range(shards.count):
        table, present = _read_file(form, shards.path(i))
        good = present["features"]
        if good.any():
            parts.append({"features": table["features"], "name": table["name"][good], "row": table["row"][good]})
    if not parts:
        raise ValueError(f'"{folder}" has no features of "{description["split"]}": none of its images could be read.')
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def read_index(folder: str | os.PathLike) -> Index:
    """Reads the features that `predict` has written to a folder, for all splits, without unreadable images.

    Raises:
        FileNotFoundError: no features.
        ValueError: missing files, no features in them, or features of different models or preprocessing.
    """
    folder = os.path.expanduser(os.fspath(folder))
    descriptions = read_descriptions(folder)
    if not descriptions:
        raise FileNotFoundError(
            f'"{folder}" contains no features: write them with keras-vit predict --answers=features --output={folder}.'
        )
    if any(len({d[key] for d in descriptions if key in d}) > 1 for key in ("weights", "architecture")):
        raise ValueError(f'"{folder}" contains features of different models. Write each to its own folder.')
    texts = sorted({description["preprocess"] for description in descriptions})
    if len(texts) > 1:
        raise ValueError(
            f'"{folder}" contains features of differently preprocessed images, by "{texts[0]}" and "{texts[1]}", which'
            " cannot be compared. Write each to its own folder."
        )
    with stage(f"Reading {folder}"):
        tables = [_read_split(folder, description) for description in descriptions]
    splits = [d["split"] for d, table in zip(descriptions, tables) for _ in table["name"]]
    features, names, rows = (np.concatenate([table[name] for table in tables]) for name in ("features", "name", "row"))
    return Index(features, names, splits, rows, descriptions)


def features_of(model: Any, pixels: np.ndarray, batch_size: int = 64) -> np.ndarray:
    """Features (n, d) of pixels (n, height, width, c)."""
    answers = AnswerRows(model, ("features",))
    return np.concatenate([answers(pixels[i : i + batch_size])["features"] for i in range(0, len(pixels), batch_size)])


def pixels_of(index: Index, found: Sequence[Neighbour]) -> list[np.ndarray]:
    """Reads the neighbours' preprocessed images, each (height, width, c) uint8, from the data again.

    Raises:
        ValueError: the data is unknown or has changed.
    """
    pixels = {}
    for split in {neighbour.split for neighbour in found}:
        description = index.descriptions[split]
        if "data" not in description:
            raise ValueError(
                f'The index does not record where the images of "{split}" are: pass about={{"data": ...}} to predict.'
            )
        source = open_source(description["data"], split, description.get("data_dir"))
        if digest(source) != description["names"]:
            raise ValueError(
                f"{source.name} has changed since the features were written: compute them again in another folder."
            )
        numbers = sorted({neighbour.row for neighbour in found if neighbour.split == split})
        batches = evaluation_batches(subset(source, numbers), description["preprocess"], 64, select=image_and_label)
        images = [image for batch, *_ in batches for image in batch.numpy()]
        pixels |= {(split, number): image for number, image in zip(numbers, images)}
    return [pixels[neighbour.split, neighbour.row] for neighbour in found]
