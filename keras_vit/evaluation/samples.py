"""Images sampled by an ImageGPT, and its completions of images from their upper half."""

import dataclasses
from typing import ClassVar

import numpy as np

from keras_vit.evaluation.data import OnSource, open_data, sheet, spread_images
from keras_vit.evaluation.registry import Evaluation, register
from keras_vit.pretraining.image_gpt import ImageGPT

_COLUMNS = 8  # images in a row


@register("samples")
@dataclasses.dataclass(frozen=True)
class Samples(OnSource):
    """Draws samples of an ImageGPT and completions of evaluation images, with the same seed at each step.

    Attributes:
        source, split, preprocess: as in OnSource.
        count: number of samples.
        images: number of images to complete, spread over the source.
        completions: number of completions per image.
        rows: number of rows to keep of each image; None for half of them.
        temperature, top_k, seed: as in ImageGPT.sample.
    """

    score: ClassVar[str] = "samples"
    caption: ClassVar[str] = (
        "Drawn: samples of the model. Completions: each row shows an image, the part that the model sees, and its"
        " completions of it."
    )

    count: int = 24
    images: int = 6
    completions: int = 3
    rows: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0

    def prepare(self, setting):
        model = setting.model
        if not isinstance(model, ImageGPT):
            raise ValueError(f'The evaluator "samples" needs a keras_vit.ImageGPT, got a {type(model).__name__}.')
        if min(self.count, self.images, self.completions) < 1:
            raise ValueError(
                f"count={self.count}, images={self.images}, completions={self.completions}: each must be 1 or more."
            )
        setting, source, preprocess = open_data(self, setting)
        originals = spread_images(source, preprocess, self.images)

        def evaluate():
            # A copy on one device: sampling is not distributed.
            drawer = model if setting.strategy.engine is None else model.clone()
            pictures = {"drawn": self._drawn(drawer), "completions": self._completions(drawer, originals)}
            return Evaluation({"samples": self.count}, self._options(), pictures=pictures)

        return evaluate

    def _options(self):
        return {"temperature": self.temperature, "top_k": self.top_k, "seed": self.seed}

    def _drawn(self, model):
        return sheet(model.sample(self.count, **self._options()), _COLUMNS)

    def _completions(self, model, originals):
        """A picture with a row per image: the image, its kept rows in the palette's colours, and its completions."""
        kept = model.pixels(model.colors(originals))
        kept[:, model.image_size[0] // 2 if self.rows is None else self.rows :] = 255
        made = model.sample(prompt=originals.repeat(self.completions, axis=0), rows=self.rows, **self._options())
        made = made.reshape(len(originals), self.completions, *made.shape[1:])
        rows = np.concatenate([originals[:, None], kept[:, None], made], axis=1)  # (m, 2 + completions, h, w, c)
        return sheet(rows.reshape(-1, *rows.shape[2:]), rows.shape[1])
