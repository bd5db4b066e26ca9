"""Reconstructions by a masked image model: pictures, and their signal-to-noise ratio."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from keras_vit.evaluation.data import OnSource, open_data, sheet, spread_images
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.pretraining.masked_model import MaskedModel, Reconstruction


def picture(made: Reconstruction) -> np.ndarray:
    """Three rows: originals, hidden patches in grey, reconstructions. (height, width, 3) uint8, small ones enlarged."""
    return sheet(np.concatenate([made.images, made.hidden, made.reconstructed]), len(made.images))


def signal_to_noise(made: Reconstruction) -> float:
    """Peak signal-to-noise ratio of the reconstructed pixels in dB: 10 log10(255^2 / mean squared error)."""
    painted = (made.hidden != made.images) | (made.reconstructed != made.images)
    painted = np.broadcast_to(painted.any(axis=-1, keepdims=True), made.images.shape)
    error = np.square(made.reconstructed.astype("float64") - made.images)[painted].mean() if painted.any() else 0.0
    return float(10 * np.log10(255**2 / max(error, 1e-3)))


@register("reconstructions")
@dataclasses.dataclass(frozen=True)
class Reconstructions(OnSource):
    """Pictures of images with hidden patches and their predictions by a MaskedAutoencoder or MaskedPatchPredictor.

    Attributes:
        source, split, preprocess: as in OnSource.
        images: number of images, spread evenly over the source.
        mask_ratio: share of hidden patches; None for the model's own.
        seed: seed of the hidden patches, the same at each step.
    """

    score: ClassVar[str] = "psnr"
    caption: ClassVar[str] = (
        "Each column shows an image, the image with hidden patches in grey, and the model's reconstruction of them."
        " psnr: peak signal-to-noise ratio of the reconstructed pixels in dB; higher is better."
    )

    images: int = 12
    mask_ratio: float | None = None
    seed: int = 0

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        model = setting.model
        if not isinstance(model, MaskedModel):
            raise ValueError(
                'The evaluator "reconstructions" needs a keras_vit.MaskedAutoencoder or MaskedPatchPredictor, got a '
                f"{type(model).__name__}."
            )
        if self.images < 1:
            raise ValueError(f"images={self.images}: expected 1 or more.")
        setting, source, preprocess = open_data(self, setting)
        images = spread_images(source, preprocess, self.images)

        def evaluate():
            # A copy on one device: a dozen images need no distribution.
            alone = model if setting.strategy.engine is None else model.clone()
            made = alone.reconstruct(images, self.mask_ratio, self.seed)
            details = {"mask_ratio": self.mask_ratio or model.mask_ratio, "seed": self.seed}
            return Evaluation(
                {"psnr": signal_to_noise(made), "images": len(images)}, details, pictures={"images": picture(made)}
            )

        return evaluate
