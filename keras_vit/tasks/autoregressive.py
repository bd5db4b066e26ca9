"""Next-pixel prediction, without labels (iGPT: Chen et al., "Generative Pretraining from Pixels", ICML 2020)."""

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from keras_vit.data import fit_palette, nearest_colors, sample_pixels
from keras_vit.data.sources.base import Source
from keras_vit.io.progress import stage
from keras_vit.io.suggest import check_known, counted
from keras_vit.pretraining.image_gpt import COLORS, ImageGPT
from keras_vit.tasks.classification import spec_overrides, variant
from keras_vit.tasks.task import Score, Task

PALETTES = ("kmeans", "grid")
_PIXELS = 128  # pixels per palette colour for k-means


@dataclasses.dataclass(frozen=True)
class AutoregressiveOptions:
    """Options in `config.objective`.

    Attributes:
        palette: str. "kmeans" finds colours in the training images, as in the paper; "grid" spaces them evenly.
    """

    palette: str = "kmeans"

    def __post_init__(self):
        check_known(self.palette, "config.objective.palette=", PALETTES)


class Autoregressive(Task):
    """Predicts each pixel's colour from those before: a ViT of patch size 1 with config.model.palette colours."""

    score = Score("loss", title="nats per pixel", higher_is_better=False)
    Options = AutoregressiveOptions
    _model: Any = None  # its palette defines the labels

    def select(self, example):
        """Returns (image, colours of its pixels (n,)). The palette is read while the pipeline is built, so a resumed
        run keeps its palette.
        """
        with tf.init_scope():  # variables have no values in the pipeline's graph
            palette = self._model.palette
        return example["image"], nearest_colors(example["image"], palette)

    def model(self, source):
        self._model = super().model(source)
        return self._model

    def check_model(self, model, source):
        if not isinstance(model, ImageGPT):
            raise ValueError(f"Next-pixel prediction needs a keras_vit.ImageGPT, got a {type(model).__name__}.")
        self._model = model

    def build(self, source):
        config = self.config
        overrides = spec_overrides(config)
        palette = overrides.pop("palette", COLORS)
        if self.options.palette == "kmeans" and isinstance(source, Source):  # plans have no images
            with stage(f"Finding {palette} colours"):
                pixels = sample_pixels(source, config.data.eval_preprocess, _PIXELS * palette, config.seed)
                palette = fit_palette(pixels, palette, config.seed)
        return ImageGPT(
            variant(config),
            image_size=config.model.image_size,
            channels=config.model.channels,
            palette=palette,
            preprocessing=config.data.eval_preprocess,
            remat=config.model.remat,
            dtype=config.dtype,
            **overrides,
        )

    def loss(self, source):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="loss")

    def summary(self, measures):
        loss = measures["loss"]
        return f"{loss:.4f} nats ({loss / math.log(2):.4f} bits) per pixel, {counted(measures['examples'], 'example')}"
