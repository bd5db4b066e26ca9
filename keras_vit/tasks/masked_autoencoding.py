"""Masked autoencoding (MAE, arXiv 2111.06377): predict the pixels of hidden patches from a few visible ones."""

import dataclasses
from typing import Any

import keras

from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.pretraining.masked_losses import MaskedSquaredError
from keras_vit.pretraining.patch_masks import hide
from keras_vit.tasks.hidden_patches import HiddenPatches


@dataclasses.dataclass(frozen=True)
class Options:
    """Arguments of keras_vit.MaskedAutoencoder, with the paper's values and ImageNet decoder."""

    mask_ratio: float = 0.75
    normalise_targets: bool = True
    decoder_depth: int = 8
    decoder_width: int = 512
    decoder_heads: int = 16
    decoder_mlp_dim: int | None = None


class MaskedAutoencoding(HiddenPatches):
    """keras_vit.MaskedAutoencoder: a ViT that encodes the visible patches, and a small decoder to discard later."""

    Options = Options
    model_class = MaskedAutoencoder

    def select(self, example: dict[str, Any]) -> tuple:
        return hide(example["image"], example["seed"], self.patches, self.patches - self.hidden)

    def loss(self, source: Any) -> keras.losses.Loss:
        return MaskedSquaredError()
