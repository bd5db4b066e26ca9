"""Masked patch prediction (arXiv 2010.11929, B.1.2): predict the mean colours of patches with corrupted embeddings."""

import dataclasses
from typing import Any

import keras

from keras_vit.pretraining.masked_losses import MaskedAccuracy, MaskedCrossEntropy, MaskedSquaredError
from keras_vit.pretraining.masked_patch_predictor import MaskedPatchPredictor
from keras_vit.pretraining.patch_masks import corrupt
from keras_vit.tasks.hidden_patches import HiddenPatches


@dataclasses.dataclass(frozen=True)
class Options:
    """Arguments of keras_vit.MaskedPatchPredictor."""

    mask_ratio: float = 0.5
    target: str = "mean_colour"


class MaskedPatches(HiddenPatches):
    """keras_vit.MaskedPatchPredictor: a ViT that sees all patches and predicts the corrupted ones."""

    Options = Options
    model_class = MaskedPatchPredictor

    def select(self, example: dict[str, Any]) -> tuple:
        return corrupt(example["image"], example["seed"], self.spec.patch_size, self.hidden, self.options.target)

    def loss(self, source: Any) -> keras.losses.Loss:
        return MaskedSquaredError() if self.options.target == "pixels" else MaskedCrossEntropy()

    def metrics(self, model: keras.Model) -> list[keras.metrics.Metric]:
        return [] if self.options.target == "pixels" else [MaskedAccuracy()]
