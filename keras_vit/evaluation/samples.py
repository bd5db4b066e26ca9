"""What an ImageGPT draws: images of its own, and completions of images of which it sees the upper half."""

import dataclasses

import numpy as np

from keras_vit.data import evaluation_batches
from keras_vit.data.sources.selection import subset
from keras_vit.evaluation.registry import Evaluation, Evaluator, register
from keras_vit.evaluation.sources import source_of
from keras_vit.models import ImageGPT

_SMALLEST = 64  # pixels that an image in a picture has at least


def tiled(rows: np.ndarray, gap: int = 2) -> np.ndarray:
    """Images in rows as one picture: (rows, columns, h, w, c) uint8 -> (height, width, 3), enlarged where they are small, white between them."""
    rows = np.broadcast_to(rows, (*rows.shape[:-1], 3)) if rows.shape[-1] == 1 else rows
    larger = -(-_SMALLEST // min(rows.shape[2:4]))
    rows = rows.repeat(larger, axis=2).repeat(larger, axis=3)
    rows = np.pad(rows, ((0, 0), (0, 0), (0, gap), (0, gap), (0, 0)), constant_values=255)
    r, k, h, w, c = rows.shape
    return rows.transpose(0, 2, 1, 3, 4).reshape(r * h, k * w, c)[:-gap, :-gap]  # (r, k, h, w, c) -> (r*h, k*w, c)


@register("samples")
@dataclasses.dataclass(frozen=True)
class Samples(Evaluator):
    """Pictures of an ImageGPT's samples, and of evaluation images beside what it makes of their upper half; the first drawn are the same at each step.

    Attributes:
        source, split: the images to complete; None for those of the run.
        preprocess: their preprocessing text; None for the run's or the model's.
        count: how many samples.
        images: how many images are completed, spread over the source.
        completions: how many completions of each.
        rows: how many rows of each image are kept; None for half of them.
        temperature, top_k, seed: as in ImageGPT.sample.
    """

    source: str | None = None
    split: str = "test"
    preprocess: str | None = None
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
            raise ValueError(f'The evaluator "samples" needs a keras_vit.ImageGPT, which draws images; got a {type(model).__name__}.')
        if min(self.count, self.images, self.completions) < 1:
            raise ValueError(f"count={self.count}, images={self.images}, completions={self.completions}: each must be 1 or more.")
        setting, source, preprocess = source_of(self, setting)
        places = np.linspace(0, source.size - 1, min(self.images, source.size)).astype(int)
        batches = evaluation_batches(subset(source, np.unique(places)), preprocess, len(np.unique(places)), select=lambda e: (e["image"], 0))

        def evaluate():
            # A copy on one device, since sampling is not shared out among several.
            drawer = model if setting.strategy.engine is None else model.clone()
            options = {"temperature": self.temperature, "top_k": self.top_k, "seed": self.seed}
            drawn = drawer.sample(self.count, **options)
            originals = next(iter(batches.as_numpy_iterator()))[0]
            completed = drawer.sample(prompt=originals.repeat(self.completions, axis=0), rows=self.rows, **options)
            kept = drawer.pixels(drawer.colors(originals))
            kept[:, drawer.image_size[0] // 2 if self.rows is None else self.rows :] = 255
            rows = np.concatenate([originals[:, None], kept[:, None], completed.reshape(len(kept), -1, *kept.shape[1:])], axis=1)
            columns = min(8, len(drawn))
            whole = drawn[: len(drawn) // columns * columns]
            pictures = {"samples": tiled(whole.reshape(-1, columns, *whole.shape[1:])), "completions": tiled(rows.astype("uint8"))}
            return Evaluation({"samples": len(drawn)}, {"temperature": self.temperature, "top_k": self.top_k, "seed": self.seed}, {}, pictures)

        return evaluate
