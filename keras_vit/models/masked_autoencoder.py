"""The masked autoencoder (MAE, arXiv 2111.06377) as a functional Keras model: an image and its visible patches in, all patches out."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops

from keras_vit import layers
from keras_vit.layers.arguments import flag, integer, number
from keras_vit.layers.composed import apply_dense_config, dense_config
from keras_vit.layers.hidden_patches import KeptPatches, PatchPixels, RestoredPatches, patch_statistics
from keras_vit.layers.patches import cut
from keras_vit.layers.registration import serializable
from keras_vit.models import lora
from keras_vit.models.arguments import ViTOverrides
from keras_vit.models.checks import float_policy, model_name, plain_remat
from keras_vit.models.spec import ViTSpec, make_spec
from keras_vit.models.vit import ViT
from keras_vit.training import state
from keras_vit.training.checks.numbers import Numbers
from keras_vit.training.masked_losses import MaskedSquaredError
from keras_vit.training.model import Model

MASK_RATIO = 0.75  # section 4.1
GREY = np.array([127.5], "float32")  # of hidden patches


class Reconstruction(NamedTuple):
    """Pictures of what a model makes of images, each (b, height, width, c) uint8.

    Attributes:
        images: as they are.
        hidden: with hidden patches in grey.
        reconstructed: with hidden patches as they are predicted.
    """

    images: np.ndarray
    hidden: np.ndarray
    reconstructed: np.ndarray


def check_encoder(spec: ViTSpec, what: str) -> None:
    """Refuses the encoder of a model that is trained on hidden patches if it cannot be one.

    Raises:
        ValueError: naming each field of the spec, and why.
    """
    problems = {
        "a stem (stem, conv_stem) sees over the borders of patches, so that nothing would be hidden": spec.stem is not None
        or bool(spec.conv_stem),
        "fc_norm leaves out the normalisation that the tokens need here; load the trained encoder with fc_norm=True": spec.fc_norm,
        'pool="map" has weights that would not be trained': spec.pool == "map",
        "pre_logits has weights that would not be trained": spec.pre_logits is not None,
        "a palette has no patches of pixels to predict": spec.palette is not None,
        "token_merging and patch_dropout leave out patches of their own": spec.token_merging is not None
        or spec.patch_dropout > 0,
        f'positions="{spec.positions}", positions_at="{spec.positions_at}" are in the blocks, which do not see all patches in their places; '
        "positions here are added once, at the stem": spec.reads_grid,
    }
    found = [reason for reason, is_so in problems.items() if is_so]
    if found:
        raise ValueError(f"{what} cannot have such an encoder: {'; '.join(found)}.")


def pasted(images: np.ndarray, patches: np.ndarray, hidden: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Images (b, height, width, c) with the pixels (b, n, p*q*c) in the place of hidden patches, (b, n) booleans; uint8."""
    (b, height, width, c), (p, q) = images.shape, patch_size
    h, w = height // p, width // q
    x = np.broadcast_to(patches, (b, h * w, p * q * c)).reshape(b, h, w, p, q, c).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(images.shape)  # (b, h, p, w, q, c) -> (b, height, width, c)
    where = hidden.reshape(b, h, 1, w, 1, 1).repeat(p, 2).repeat(q, 4).reshape(b, height, width, 1)
    return np.where(where, np.clip(np.rint(x), 0, 255), images).astype("uint8")


def as_pixels(model: Model, images: Any) -> np.ndarray:
    """Images of any kind as pixels (b, height, width, c) of the model's size."""
    pixels = np.asarray(model.preprocess(images))
    return pixels[None] if pixels.ndim == 3 else pixels


class MaskedModel(Model):
    """What the models share that learn from hidden patches: they are built from their arguments, and hold a ViT, their encoder."""

    spec: ViTSpec
    image_size: tuple[int, int]
    mask_ratio: float
    weighs_examples = made_from_arguments = True
    labels_are_classes = False

    def _hold(self, vit: ViT, preprocessing: str | None, remat: Any, policy: Any) -> None:
        """Takes what a model of one image would find out from its input; `vit` is the encoder, whose layers the model has."""
        self.__dict__["_encoder"] = vit  # its layers are the model's: as an attribute that Keras tracks they would be there twice
        self.spec, self.image_size, self.channels = vit.spec, vit.image_size, vit.channels
        self.preprocessing, self.remat, self.dtype_policy = preprocessing, remat, policy

    def get_encoder(self) -> ViT:
        """The encoder, of whole images: a ViT without a head, of this model's own layers."""
        return self._encoder

    @property
    def grid(self) -> tuple[int, int]:
        """The patch grid (h, w)."""
        return self.get_encoder().grid

    def hidden_count(self, mask_ratio: float | None = None) -> int:
        """How many patches of an image are hidden; `mask_ratio` None for the model's."""
        return hidden_count(self.grid[0] * self.grid[1], self.mask_ratio if mask_ratio is None else check_mask_ratio(mask_ratio))

    @classmethod
    def encoder_spec(cls, variant: str | ViTSpec | Mapping[str, Any], **overrides: Unpack[ViTOverrides]) -> ViTSpec:
        """The spec of the encoder that the constructor makes of these arguments.

        Raises:
            ValueError: as make_spec does, or for an encoder that cannot be one.
        """
        spec = make_spec(variant, **overrides)
        check_encoder(spec, cls.__name__)
        return spec

    def arguments(self) -> dict:
        """The constructor's arguments, as JSON, that make an equal model with other weights."""
        raise NotImplementedError

    def _shared_arguments(self):
        return {
            "variant": dataclasses.asdict(self.spec),
            "image_size": self.image_size,
            "channels": self.channels,
            "preprocessing": self.preprocessing,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }

    def get_config(self):
        return {**self.arguments(), **dense_config(self), **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = {**config, "dtype": keras.dtype_policies.get(config["dtype"])}
        quantization, adapted, training = (config.pop(name, None) for name in ("quantization", "lora", state.KEY))
        model = cls(**config)
        apply_dense_config(model, quantization, adapted)
        if adapted:
            lora.freeze_all_but_lora(model)
        state.restore(model, training)
        return model


@serializable
class MaskedAutoencoder(MaskedModel):
    """A masked autoencoder: an encoder of the visible patches alone, and a small decoder that predicts the pixels of all patches.

    Args:
        variant: of the encoder, as of ViT; without a stem, token merging, fc_norm and pre_logits.
        image_size, channels, preprocessing, remat, dtype: as of ViT. `remat=True` is for the decoder's blocks, too.
        mask_ratio: the share of the patches that are hidden; the number of visible ones, m, is a whole number below the rest.
        normalise_targets: whether each patch's pixels are normalised by its own mean and deviation before they are compared, as in
            the paper's best models.
        decoder_depth, decoder_width, decoder_heads, decoder_mlp_dim: of the decoder's blocks; `decoder_mlp_dim` None for 4 * width.
        decoder_positions: of the decoder, a kind of layers.AddPositionEmbs.
        name: of the model.
        **overrides: any field of ViTSpec. `positions` is "sincos2d_mae" where `variant` is a name.

    Inputs: {"image": pixels 0..255 (b, height, width, c), "kept": numbers of the visible patches (b, m), integers}.
    Output: (b, 2, n, p * q * c) float32, the predicted and the true pixels of all patches, normalised; the loss is
    keras_vit.training.MaskedSquaredError. `masked` makes both from images. Decoder blocks are named `decoder_block_00`...

    Raises:
        ValueError: as ViT does, or for an encoder that cannot be one.
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
        remat: bool = False,
        name: str | None = "masked_autoencoder",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: Unpack[ViTOverrides],
    ):
        spec = self.encoder_spec(variant, **overrides)
        policy, remat = float_policy(dtype), plain_remat(remat)
        self.mask_ratio = check_mask_ratio(mask_ratio)
        self.normalise_targets = flag(normalise_targets, "normalise_targets")
        self.decoder_depth = integer(decoder_depth, "decoder_depth")
        self.decoder_width = integer(decoder_width, "decoder_width")
        self.decoder_heads = integer(decoder_heads, "decoder_heads")
        self.decoder_mlp_dim = 4 * self.decoder_width if decoder_mlp_dim is None else integer(decoder_mlp_dim, "decoder_mlp_dim")
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
    def numbers(self) -> dict[str, Numbers]:
        """What the input "kept" may hold."""
        n = self.grid[0] * self.grid[1]
        return {"kept": Numbers(n - self.hidden_count(), 0, n - 1, once=True)}

    @classmethod
    def encoder_spec(cls, variant: str | ViTSpec | Mapping[str, Any], **overrides: Unpack[ViTOverrides]) -> ViTSpec:
        positions: Any = {"positions": "sincos2d_mae"} if isinstance(variant, str) else {}
        return super().encoder_spec(variant, **{**positions, **overrides})

    def _decode(self, tokens, kept, vit, remat, policy):
        """Encoded visible tokens (b, prefix + m, d) to the pixels of all patches (b, n, p*q*c)."""
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
                gelu=spec.gelu,
                epsilon=spec.epsilon,
                remat=remat is True,
                dtype=policy,
                name=f"decoder_block_{i:02d}",
            )
            x = block(x)
        x = keras.layers.LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="decoder_norm")(x)
        values = spec.patch_size[0] * spec.patch_size[1] * vit.channels
        x = keras.layers.Dense(values, dtype=policy.variable_dtype, name="decoder_pred")(x)
        return x[:, spec.prefix :]

    def masked(self, images: Any, seed: int = 0, mask_ratio: float | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """(x, y) for `fit`, `evaluate` and `predict`, from images of any kind that `preprocess` takes.

        Args:
            images: one or several.
            seed: of which patches are hidden.
            mask_ratio: the share that is hidden; None for the model's.

        Returns:
            {"image": (b, height, width, c), "kept": (b, m)}, and (b, n), 1 for each hidden patch.
        """
        from keras_vit.training import hiding

        n, hidden = self.grid[0] * self.grid[1], self.hidden_count(mask_ratio)
        return hiding.each(lambda image, seed: hiding.hide(image, seed, n, n - hidden), as_pixels(self, images), seed)

    def _with_mask_ratio(self, mask_ratio):
        """A copy of the model for another number of visible patches."""
        copy = type(self)(**{**self.arguments(), "mask_ratio": mask_ratio, "dtype": self.dtype_policy})
        copy.set_weights(self.get_weights())
        return copy

    def reconstruct(self, images: Any, mask_ratio: float | None = None, seed: int = 0, batch_size: int = 32) -> Reconstruction:
        """Images with some patches hidden, and with these as the model predicts them.

        If the model learns normalised targets, a predicted patch gets the true one's mean and deviation: it does not predict these.

        Args:
            images, seed, mask_ratio: as of `masked`.
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


def check_mask_ratio(value: Any, name: str = "mask_ratio") -> float:
    """A share of patches between 0 and 1, both excluded.

    Raises:
        ValueError: for anything else.
    """
    value = number(value, name)
    if not 0 < value < 1:
        raise ValueError(f"{name} should be above 0 and below 1, got {value}.")
    return value


def hidden_count(patches: int, share: float) -> int:
    """How many of the patches are hidden: all less the whole number of the rest, as in MAE's code, but at least one, and not all.

    Raises:
        ValueError: for an image of a single patch.
    """
    if patches < 2:
        raise ValueError(
            "An image of a single patch has none to predict from the others: choose a smaller patch or a larger image."
        )
    return min(max(patches - int(patches * (1 - share)), 1), patches - 1)


def after_embedding(vit: ViT, tokens: keras.KerasTensor) -> keras.KerasTensor:
    """Tokens through a ViT's own blocks and last normalisation: (b, n, d) -> (b, n, d)."""
    for layer in vit.layers:
        if layer.name.startswith("block_") or layer.name == "encoder_norm":
            tokens = layer(tokens)
    return tokens


def _encode_visible(vit, kept, policy):
    """The visible patches through the ViT's own layers: (b, prefix + m, d)."""
    embedded = vit.get_layer("embedding_dropout").output
    return after_embedding(vit, KeptPatches(vit.spec.prefix, dtype=policy, name="kept_patches")(embedded, kept))
