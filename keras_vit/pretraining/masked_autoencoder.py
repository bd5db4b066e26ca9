"""The masked autoencoder (MAE, arXiv 2111.06377): an image and its visible patches in, all patches out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_vit import layers
from keras_vit.layers.arguments import flag, integer
from keras_vit.layers.embedding.mask_tokens import KeptPatches, PatchPixels, RestoredPatches, patch_statistics
from keras_vit.layers.embedding.patches import cut
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import float_policy, model_name, output_policy, plain_remat
from keras_vit.models.spec import ViTSpec
from keras_vit.models.vit import ViT
from keras_vit.pretraining.masked_losses import MaskedSquaredError
from keras_vit.pretraining.masked_model import (
    GREY,
    MaskedModel,
    Reconstruction,
    after_embedding,
    as_pixels,
    check_mask_ratio,
    hidden_count,
    pasted,
)

if TYPE_CHECKING:
    from keras_vit.fit.checks.numbers import Numbers
    from keras_vit.models.overrides import ViTOverrides

MASK_RATIO = 0.75  # section 4.1


@serializable
class MaskedAutoencoder(MaskedModel):
    """An encoder of the visible patches alone, and a small decoder that predicts all patches' pixels.

    Args:
        variant: of the encoder, as in ViT; without a stem, token merging, fc_norm and pre_logits.
        image_size, channels, preprocessing, remat, dtype: as in ViT. `remat=True` includes the decoder's blocks.
        mask_ratio: share of hidden patches; the number of visible ones, m, is rounded down.
        normalise_targets: normalise each patch's pixels by its own mean and deviation before comparison, as in the
            paper's best models.
        decoder_depth, decoder_width, decoder_heads, decoder_mlp_dim: of the decoder's blocks; `decoder_mlp_dim` None
            for 4 * width.
        decoder_positions: of the decoder, a kind of layers.AddPositionEmbs.
        name: of the model.
        **overrides: any field of ViTSpec. `positions` defaults to "sincos2d_mae" if `variant` is a name.

    Inputs: {"image": pixels 0..255 (b, height, width, c), "kept": numbers of the visible patches (b, m), integers},
    from `masked`. Output: (b, 2, n, p * q * c) float32, all patches' predicted and true pixels, normalised, for
    keras_vit.training.MaskedSquaredError. Decoder blocks are named `decoder_block_00`...

    Raises:
        ValueError: as in ViT, or for an unsuitable encoder.
    """

    objectives = (MaskedSquaredError,)

    def __init__(
        self,
        variant: str | ViTSpec | Mapping[str, Any],
        image_size: int | tuple[int, int] = 224,
        channels: int = 3,
        mask_ratio: float = MASK_RATIO,
        normalise_targets: bool = True,
        decoder_depth: int = 8,
        decoder_width: int = 512,
        decoder_heads: int = 16,
        decoder_mlp_dim: int | None = None,
        decoder_positions: str = "sincos2d_mae",
        preprocessing: str | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "masked_autoencoder",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[ViTOverrides]",
    ):
        spec = self.encoder_spec(variant, **overrides)
        policy, remat = float_policy(dtype), plain_remat(remat)
        self.mask_ratio = check_mask_ratio(mask_ratio)
        self.normalise_targets = flag(normalise_targets, "normalise_targets")
        self.decoder_depth = integer(decoder_depth, "decoder_depth")
        self.decoder_width = integer(decoder_width, "decoder_width")
        self.decoder_heads = integer(decoder_heads, "decoder_heads")
        self.decoder_mlp_dim = (
            4 * self.decoder_width if decoder_mlp_dim is None else integer(decoder_mlp_dim, "decoder_mlp_dim")
        )
        self.decoder_positions = decoder_positions
        vit = ViT(spec, image_size, None, channels, preprocessing=preprocessing, remat=remat, dtype=policy)
        n = vit.grid[0] * vit.grid[1]
        kept = keras.Input((n - hidden_count(n, self.mask_ratio),), dtype="int32", name="kept")
        tokens = _encode_visible(vit, kept, policy)
        predicted = self._decode(tokens, kept, vit, remat, policy)
        pixels = layers.PixelNormalization(spec.mean, spec.std, dtype="float32", name="target_normalization")(vit.input)
        targets = PatchPixels(spec.patch_size, self.normalise_targets, name="targets")(pixels)
        outputs = ops.stack([predicted, targets], axis=1)  # (b, 2, n, p*q*c)
        super().__init__({"image": vit.input, "kept": kept}, outputs, name=model_name(name, "masked_autoencoder"))
        self._hold(vit, preprocessing, remat, policy)

    @property
    def numbers(self) -> dict[str, "Numbers"]:
        """The valid values of the input "kept"."""
        from keras_vit.fit.checks.numbers import Numbers

        n = self.grid[0] * self.grid[1]
        return {"kept": Numbers(n - self.hidden_count(), 0, n - 1, once=True)}

    @classmethod
    def encoder_spec(cls, variant: str | ViTSpec | Mapping[str, Any], **overrides: "Unpack[ViTOverrides]") -> ViTSpec:
        positions: Any = {"positions": "sincos2d_mae"} if isinstance(variant, str) else {}
        return super().encoder_spec(variant, **{**positions, **overrides})

    def _decode(self, tokens, kept, vit, remat, policy):
        """Encoded visible tokens (b, prefix + m, d) to all patches' pixels (b, n, p*q*c)."""
        spec, (h, w) = vit.spec, vit.grid
        x = keras.layers.Dense(self.decoder_width, dtype=policy, name="decoder_embed")(tokens)
        x = RestoredPatches(h * w, spec.prefix, dtype=policy, name="decoder_patches")(x, kept)
        positions = layers.AddPositionEmbs(
            (h, w), spec.prefix, self.decoder_positions, dtype=policy, name="decoder_position_embedding"
        )
        x = positions(x)
        for i in range(self.decoder_depth):
            block = layers.TransformerBlock(
                heads=self.decoder_heads,
                mlp_dim=self.decoder_mlp_dim,
                qkv_bias=spec.qkv_bias,
                mlp_activation=spec.mlp_activation,
                epsilon=spec.epsilon,
                remat=remat is True,
                dtype=policy,
                name=f"decoder_block_{i:02d}",
            )
            x = block(x)
        x = keras.layers.LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="decoder_norm")(x)
        values = spec.patch_size[0] * spec.patch_size[1] * vit.channels
        x = keras.layers.Dense(values, dtype=output_policy(policy, "decoder_pred"), name="decoder_pred")(x)
        return x[:, spec.prefix :]

    def masked(
        self, images: Any, seed: int = 0, mask_ratio: float | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """(x, y) for `fit`, `evaluate` and `predict`, from images as in `preprocess`.

        Args:
            images: one or several.
            seed: selects the hidden patches.
            mask_ratio: share of hidden patches; None for the model's.

        Returns:
            {"image": (b, height, width, c), "kept": (b, m)}, and (b, n), 1 for each hidden patch.
        """
        from keras_vit.pretraining import patch_masks

        n, hidden = self.grid[0] * self.grid[1], self.hidden_count(mask_ratio)
        return patch_masks.each(
            lambda image, seed: patch_masks.hide(image, seed, n, n - hidden), as_pixels(self, images), seed
        )

    def _with_mask_ratio(self, mask_ratio):
        """A copy of the model for another number of visible patches."""
        copy = type(self)(**{**self.arguments(), "mask_ratio": mask_ratio, "dtype": self.dtype_policy})
        copy.set_weights(self.get_weights())
        return copy

    def reconstruct(
        self, images: Any, mask_ratio: float | None = None, seed: int = 0, batch_size: int = 32
    ) -> Reconstruction:
        """Images with some patches hidden, and with the model's predictions of these.

        If targets are normalised, a predicted patch gets the true one's mean and deviation, which the model does not
        predict.

        Args:
            images, seed, mask_ratio: as in `masked`.
            batch_size: images at once.
        """
        x, y = self.masked(images, seed, mask_ratio)
        model = self if mask_ratio is None else self._with_mask_ratio(mask_ratio)
        values = np.asarray(model.predict(x, batch_size=batch_size, verbose=0), "float32")[:, 0]  # (b, n, p*q*c)
        spec, images = self.spec, x["image"]
        mean, std = (np.resize(np.asarray(value, "float32"), values.shape[-1]) for value in (spec.mean, spec.std))
        if self.normalise_targets:
            true = (ops.convert_to_numpy(cut(images.astype("float32"), spec.patch_size)) - mean) / std
            centre, deviation = (ops.convert_to_numpy(value) for value in patch_statistics(true))
            values = values * deviation + centre
        hidden = y.astype(bool)
        grey = pasted(images, GREY, hidden, spec.patch_size)
        return Reconstruction(images, grey, pasted(images, values * std + mean, hidden, spec.patch_size))

    def arguments(self) -> dict:
        return {
            **self._shared_arguments(),
            "mask_ratio": self.mask_ratio,
            "normalise_targets": self.normalise_targets,
            "decoder_depth": self.decoder_depth,
            "decoder_width": self.decoder_width,
            "decoder_heads": self.decoder_heads,
            "decoder_mlp_dim": self.decoder_mlp_dim,
            "decoder_positions": self.decoder_positions,
        }


def _encode_visible(vit, kept, policy):
    """The visible patches through the ViT's own layers: (b, prefix + m, d)."""
    embedded = vit.get_layer("embedding_dropout").output
    return after_embedding(vit, KeptPatches(vit.spec.prefix, dtype=policy, name="kept_patches")(embedded, kept))
