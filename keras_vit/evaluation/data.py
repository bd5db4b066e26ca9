"""Data for evaluators: sources, preprocessing, and images for pictures."""

import dataclasses
from typing import Any

import numpy as np
from absl import logging

from keras_vit.data import evaluation_batches, image_and_label, open_source
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.folder import folders_read_once
from keras_vit.data.sources.selection import subset
from keras_vit.data.usual_splits import usual_splits
from keras_vit.evaluation.registry import Evaluator, Setting, evaluator_name
from keras_vit.inspection import tiles


def default_preprocessing(model) -> str:
    """The model's own text, or else big_vision's: resize to 8/7 of the image size (256 for 224), central crop."""
    if getattr(model, "preprocessing", None):
        return model.preprocessing
    height, width, channels = model.input_shape[1:]
    larger = [round(side * 8 / 7) for side in (height, width)]
    resize = f"resize({larger[0]})" if height == width else f"resize({larger[0]}, {larger[1]})"
    return f"decode({channels})|{resize}|central_crop({height}, {width})"


def _default_split(source, split, data_dir):
    """`split`, or the source's usual substitute for a missing test split."""
    found = usual_splits(source, data_dir)[1] if split == "test" else split
    if found != split:
        logging.info('%s has no test split: evaluating on %s. To use another, set split="...".', source, found)
    return found


@dataclasses.dataclass(frozen=True)
class OnSource(Evaluator):
    """Base class of evaluators on the run's evaluation data, or on another source.

    Attributes:
        source: data source, as in config.data.source; None for the run's.
        split: split of that source, "test" by default.
        preprocess: preprocessing text; None for the run's, or else the model's.
    """

    source: str | None = None
    split: str | None = None
    preprocess: str | None = None


def open_data(evaluator: Any, setting: Setting, split: str = "test") -> tuple[Setting, Any, str]:
    """(setting, source, preprocessing text) of an evaluator with the options source, split and preprocess.

    `split` is the default; a source without a test split uses its usual substitute.

    Raises:
        ValueError: neither evaluator nor run has data, or the evaluator has a split but no source.
    """
    source, preprocess = setting.source, setting.preprocess
    if evaluator.source is not None:
        setting = dataclasses.replace(setting, select=image_and_label)
        with folders_read_once():
            split = evaluator.split or _default_split(evaluator.source, split, setting.data_dir)
            source, preprocess = open_source(evaluator.source, split, setting.data_dir), None
    elif evaluator.split is not None:
        raise ValueError(
            f'The evaluator "{evaluator_name(evaluator)}" has split="{evaluator.split}" but no source. Set source=, or'
            " leave out split to use the run's evaluation data."
        )
    if source is None:
        name = evaluator_name(evaluator)
        raise ValueError(f'The evaluator "{name}" needs data: set its source, {name}(source="..."), or pass --data.')
    return setting, source, evaluator.preprocess or preprocess or default_preprocessing(setting.model)


_SMALLEST = 64  # smallest side, in pixels, of an image in a picture


def spread_images(source: Source, preprocess: str, count: int) -> np.ndarray:
    """At most `count` readable images (n, h, w, c) uint8, evenly spread over a source; ValueError without any."""
    places = np.unique(np.linspace(0, source.size - 1, min(count, source.size)).astype(int))
    batches = evaluation_batches(
        subset(source, places), preprocess, len(places), select=lambda example: (example["image"], 0)
    )
    [(images, _, weights)] = batches.as_numpy_iterator()
    images = images[weights > 0].astype("uint8")
    if not len(images):
        raise ValueError(f"None of the {len(places)} images of {source.name} can be read.")
    return images


def sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Arranges images (m, h, w, c) uint8 in rows of `columns` on white, enlarging small ones: (height, width, 3)."""
    colours = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    larger = -(-_SMALLEST // min(images.shape[1:3]))
    whole = tiles.sheet(tiles.enlarged(colours, larger), columns)
    return np.where(whole[..., 3:] == 0, 255, whole[..., :3]).astype("uint8")
