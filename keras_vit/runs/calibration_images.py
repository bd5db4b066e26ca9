"""Images to calibrate a model's int8 file on: by default the training images of its run."""

from typing import Any

import keras
import numpy as np

from keras_vit.data import open_source
from keras_vit.data.sources.base import Source
from keras_vit.data.usual_splits import usual_splits
from keras_vit.evaluation.data import default_preprocessing, spread_images
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.runs.evaluate import own_data

IMAGES = 256


def calibration_source(model: str, calibration: str | None = None, data_dir: str | None = None) -> Source:
    """The training images of `calibration`, or else of the run in `model`.

    Args:
        model: a run directory, or what else `keras_vit.load` takes.
        calibration: a source, as config.data.source; None for the run's own.
        data_dir: folder with prepared data, and base of relative paths.

    Raises:
        ValueError: without `calibration`, for a model that is not a run, or a run with data that cannot be opened.
    """
    if calibration is not None:
        return open_source(calibration, usual_splits(calibration, data_dir)[0], data_dir)
    own = own_data(model)
    if own is None:
        raise ValueError(
            f"{model} is not a run directory, so its training images are unknown: pass --calibration, images like"
            " those that the model will see, such as --calibration=PHOTOS."
        )
    try:
        return open_source(own.data["source"], own.data["train"], data_dir)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"The training images of {model} cannot be opened. {error} Pass other images with --calibration."
        ) from None


def calibration_images(model: keras.Model, source: Any, count: int = IMAGES) -> np.ndarray:
    """Pixels (n, h, w, c) of at most `count` images spread over a source, prepared by the model's own preprocessing.

    Raises:
        ValueError: for a model that does not take images.
    """
    if getattr(model, "image_size", None) is None:
        raise ValueError(
            f'"{model.name}" does not take images of a fixed size. Texts calibrate in Python, as token ids:'
            ' keras_vit.export(model, path, quantization="int8_static", calibration=tokenizer(texts)).'
        )
    images = model if len(model.inputs) == 1 else model.get_encoder()  # a DualEncoder also takes texts
    text = model.preprocessing or default_preprocessing(images)
    return InputRange.of(images).of_bytes(spread_images(source, text, count))
