"""Masked patch prediction (arXiv 2010.11929, appendix B.1.2): predicts patches with replaced embeddings."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_vit import layers
from keras_vit.layers.arguments import choice
from keras_vit.layers.embedding.mask_tokens import PatchPixels, ReplacedPatches
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import float_policy, model_name, output_policy, plain_remat
from keras_vit.models.spec import ViTSpec
from keras_vit.models.vit import ViT
from keras_vit.pretraining.masked_losses import MaskedCrossEntropy, MaskedSquaredError
from keras_vit.pretraining.masked_model import (
    GREY,
    MaskedModel,
    Reconstruction,
    after_embedding,
    as_pixels,
    check_mask_ratio,
    pasted,
)

if TYPE_CHECKING:
    from keras_vit.fit.checks.numbers import Numbers
    from keras_vit.models.overrides import ViTOverrides

MASK_RATIO = 0.5  # 15% was slightly worse in the paper
TARGETS = ("mean_colour", "thumbnail", "pixels")
_SIDE = 4  # of a thumbnail


def check_target(target: Any, patch_size: tuple[int, int]) -> str:
    """A row of TARGETS; ValueError if unknown, or for thumbnails of patches with sides that are not multiples of 4."""
    target = choice(target, "target", TARGETS)
    if target == "thumbnail" and any(side % _SIDE for side in patch_size):
        raise ValueError(
            f'target="thumbnail" needs patches with sides that are multiples of {_SIDE} pixels, got {patch_size}.'
        )
    return target


@serializable
class MaskedPatchPredictor(MaskedModel):
    """A ViT that predicts the content of corrupted patches.

    Args:
        variant: of the encoder, as in ViT; without a stem, token merging, fc_norm and pre_logits.
        image_size, channels, preprocessing, remat, dtype: as in ViT.
        mask_ratio: share of corrupted patches.
        target: "mean_colour", 3 bits per channel, 512 classes of RGB; "thumbnail", the patch as 4 x 4 such colours; or
            "pixels", a regression of all its pixels, normalised by the model's mean and std.
        name: of the model.
        **overrides: any field of ViTSpec.

    Inputs: {"image": pixels 0..255 (b, height, width, c), "source": the number of the patch that gives each embedding
    (b, n), integers, -1 for the learned one}, from `masked`. Outputs, float32: logits (b, n, 8 ** c), or (b, n, 16, 8
    ** c) for thumbnails, for keras_vit.training.MaskedCrossEntropy; for pixels (b, 2, n, p * q * c), predicted and true
    ones, for MaskedSquaredError.

    Raises:
        ValueError: as in ViT, for an unsuitable encoder, or an unknown target.
    """

    def __init__(
        self,
        variant: str | ViTSpec | Mapping[str, Any],
        image_size: int | tuple[int, int] = 224,
        channels: int = 3,
        mask_ratio: float = MASK_RATIO,
        target: str = "mean_colour",
        preprocessing: str | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "masked_patches",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[ViTOverrides]",
    ):
        spec = self.encoder_spec(variant, **overrides)
        policy, remat = float_policy(dtype), plain_remat(remat)
        vit = ViT(spec, image_size, None, channels, preprocessing=preprocessing, remat=remat, dtype=policy)
        self.mask_ratio, self.target = check_mask_ratio(mask_ratio), check_target(target, spec.patch_size)
        source = keras.Input((vit.grid[0] * vit.grid[1],), dtype="int32", name="source")
        outputs = _predicted(_encode_corrupted(vit, source, policy), vit, self.target, policy)
        name = model_name(name, "masked_patches")
        super().__init__({"image": vit.input, "source": source}, outputs, name=name)
        self._hold(vit, preprocessing, remat, policy)
        self.objectives = (MaskedSquaredError if target == "pixels" else MaskedCrossEntropy,)

    @property
    def numbers(self) -> dict[str, "Numbers"]:
        """The valid values of the input "source"."""
        from keras_vit.fit.checks.numbers import Numbers

        n = self.grid[0] * self.grid[1]
        return {"source": Numbers(n, -1, n - 1)}

    def masked(
        self, images: Any, seed: int = 0, mask_ratio: float | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """(x, y) for `fit`, `evaluate` and `predict`, from images as in `preprocess`.

        Args:
            images: one or several.
            seed: selects the corrupted patches, and how.
            mask_ratio: share of corrupted patches; None for the model's.

        Returns:
            {"image": (b, height, width, c), "source": (b, n)}, and the loss's y: classes, -1 where nothing is
                predicted, or for pixels (b, n), 1 for each corrupted patch.
        """
        from keras_vit.pretraining import patch_masks

        size, count = self.spec.patch_size, self.hidden_count(mask_ratio)
        return patch_masks.each(
            lambda image, seed: patch_masks.corrupt(image, seed, size, count, self.target),
            as_pixels(self, images),
            seed,
        )

    def reconstruct(
        self, images: Any, mask_ratio: float | None = None, seed: int = 0, batch_size: int = 32
    ) -> Reconstruction:
        """Images with corrupted patches in grey, and with the model's predictions of these, in its colours or pixels.

        Args:
            images, seed, mask_ratio: as in `masked`.
            batch_size: images at once.
        """
        x, y = self.masked(images, seed, mask_ratio)
        outputs = np.asarray(self.predict(x, batch_size=batch_size, verbose=0), "float32")
        hidden = y.astype(bool) if self.target == "pixels" else (y >= 0).reshape(*y.shape[:2], -1)[..., 0]
        size = self.spec.patch_size
        grey = pasted(x["image"], GREY, hidden, size)
        return Reconstruction(x["image"], grey, pasted(x["image"], self._painted(outputs), hidden, size))

    def _painted(self, outputs):
        """Predictions as pixels (b, n, p*q*c)."""
        from keras_vit.pretraining.patch_masks import class_colour

        p, q = self.spec.patch_size
        if self.target == "pixels":
            mean, std = (
                np.resize(np.asarray(value, "float32"), outputs.shape[-1]) for value in (self.spec.mean, self.spec.std)
            )
            return outputs[:, 0] * std + mean
        colours = class_colour(outputs.argmax(-1), self.channels).astype("float32")  # (b, n, c) or (b, n, 16, c)
        side = _SIDE if self.target == "thumbnail" else 1
        colours = colours.reshape(*colours.shape[:2], side, side, self.channels)
        colours = colours.repeat(p // side, axis=2).repeat(q // side, axis=3)  # (b, n, p, q, c)
        return colours.reshape(*colours.shape[:2], -1)

    def arguments(self) -> dict:
        return {**self._shared_arguments(), "mask_ratio": self.mask_ratio, "target": self.target}


def _encode_corrupted(vit, source, policy):
    """The image's patches, some embeddings replaced, through the ViT's own layers: (b, prefix + n, d)."""
    replaced = ReplacedPatches(dtype=policy, name="replaced_patches")
    x = replaced(vit.get_layer("patch_encoder").output, source)
    tokens = ("class_token", "distillation_token", "position_embedding", "registers")
    for name in (*tokens, "pre_norm", "embedding_dropout"):
        if any(layer.name == name for layer in vit.layers):
            x = vit.get_layer(name)(x)
    return after_embedding(vit, x)


def _predicted(tokens, vit, target, policy):
    """The model's outputs from tokens (b, prefix + n, d)."""
    spec, channels = vit.spec, vit.channels
    x = tokens[:, spec.prefix :]
    values = spec.patch_size[0] * spec.patch_size[1] * channels
    colours = 8**channels
    units = {"mean_colour": colours, "thumbnail": _SIDE**2 * colours, "pixels": values}[target]
    x = keras.layers.Dense(units, dtype=output_policy(policy, "patch_head"), name="patch_head")(x)
    if target == "mean_colour":
        return x
    if target == "thumbnail":
        return keras.layers.Reshape((x.shape[1], _SIDE**2, colours), dtype=policy.variable_dtype, name="thumbnails")(x)
    pixels = layers.PixelNormalization(spec.mean, spec.std, dtype="float32", name="target_normalization")(vit.input)
    return ops.stack([x, PatchPixels(spec.patch_size, name="targets")(pixels)], axis=1)  # (b, 2, n, p*q*c)
