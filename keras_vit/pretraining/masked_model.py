"""The base of masked pre-training models: valid encoders, numbers of hidden patches, pictures of them."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import keras
import numpy as np

from keras_vit.fit.checks.pixels import InputRange
from keras_vit.fit.model import Model
from keras_vit.layers.arguments import number
from keras_vit.models.classifier import ModelOfArguments
from keras_vit.models.spec import ViTSpec, make_spec
from keras_vit.models.vit import ViT

if TYPE_CHECKING:
    from keras_vit.models.overrides import ViTOverrides

GREY = np.array([127.5], "float32")  # of hidden patches


class Reconstruction(NamedTuple):
    """Pictures of a model's view of images, each (b, height, width, c) uint8.

    Attributes:
        images: the originals.
        hidden: with hidden patches in grey.
        reconstructed: with hidden patches as predicted.
    """

    images: np.ndarray
    hidden: np.ndarray
    reconstructed: np.ndarray


def check_encoder(spec: ViTSpec, what: str) -> None:
    """Refuses an encoder that cannot be trained on hidden patches; ValueError with each field of the spec, and why."""
    problems = {
        "a stem (stem, conv_stem) sees over the borders of patches, so that nothing would be hidden": (
            spec.stem is not None or bool(spec.conv_stem)
        ),
        "fc_norm leaves out the normalisation that the tokens need here; load the trained encoder with fc_norm=True": (
            spec.fc_norm
        ),
        "final_norm=False leaves out the normalisation that the tokens need here": not spec.final_norm,
        'pool="map" has weights that would not be trained': spec.pool == "map",
        "pre_logits has weights that would not be trained": spec.pre_logits is not None,
        "a palette has no patches of pixels to predict": spec.palette is not None,
        "token_merging and patch_dropout leave out patches of their own": (
            spec.token_merging is not None or spec.patch_dropout > 0
        ),
        f'positions="{spec.positions}", positions_at="{spec.positions_at}" are in the blocks, which do not see all'
        " patches in their places; positions here are added once, at the stem": spec.positions_in_blocks,
        f'attention="{spec.attention}" needs all patches in their places': spec.has_pattern,
        f"windows={spec.windows} need all patches": spec.windows > 1,
    }
    found = [reason for reason, is_so in problems.items() if is_so]
    if found:
        raise ValueError(f"{what} cannot have such an encoder: {'; '.join(found)}.")


def pasted(images: np.ndarray, patches: np.ndarray, hidden: np.ndarray, patch_size: tuple[int, int]) -> np.ndarray:
    """Images (b, height, width, c), uint8, with the pixels (b, n, p*q*c) for hidden patches, (b, n) booleans."""
    (b, height, width, c), (p, q) = images.shape, patch_size
    h, w = height // p, width // q
    x = np.broadcast_to(patches, (b, h * w, p * q * c)).reshape(b, h, w, p, q, c).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(images.shape)  # (b, h, p, w, q, c) -> (b, height, width, c)
    where = hidden.reshape(b, h, 1, w, 1, 1).repeat(p, 2).repeat(q, 4).reshape(b, height, width, 1)
    return np.where(where, np.clip(np.rint(x), 0, 255), images).astype("uint8")


def as_pixels(model: Model, images: Any) -> np.ndarray:
    """Images of any kind as pixels (b, height, width, c) at the model's size."""
    pixels = np.asarray(model.preprocess(images))
    if pixels.dtype != np.uint8:
        raise ValueError(
            f'"{model.name}" is for images {InputRange.of(model)}: make or load it with mean and std on the 0..255'
            " scale."
        )
    return pixels[None] if pixels.ndim == 3 else pixels


def check_mask_ratio(value: Any, name: str = "mask_ratio") -> float:
    """A share of patches between 0 and 1, both excluded; ValueError for anything else."""
    value = number(value, name)
    if not 0 < value < 1:
        raise ValueError(f"{name} should be above 0 and below 1, got {value}.")
    return value


def hidden_count(patches: int, share: float) -> int:
    """The number of hidden patches; visible ones are rounded down, as in MAE's code. ValueError for a single patch."""
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


class MaskedModel(ModelOfArguments):
    """The base of masked pre-training models: built from their arguments, with a ViT as encoder."""

    spec: ViTSpec
    image_size: tuple[int, int]
    mask_ratio: float
    weighs_examples = True
    labels_are_classes = False

    def _hold(self, vit: ViT, preprocessing: str | None, remat: Any, policy: Any) -> None:
        """Sets the attributes that a model of one image derives from its input; `vit` is the encoder inside."""
        # Its layers are the model's: as an attribute that Keras tracks they would be there twice.
        self.__dict__["_encoder"] = vit
        self.spec, self.image_size, self.channels = vit.spec, vit.image_size, vit.channels
        self.preprocessing, self.remat, self.dtype_policy = preprocessing, remat, policy

    def get_encoder(self) -> ViT:
        """The encoder of whole images: a ViT without a head, of this model's own layers."""
        return self._encoder

    @property
    def grid(self) -> tuple[int, int]:
        """The patch grid (h, w)."""
        return self.get_encoder().grid

    def hidden_count(self, mask_ratio: float | None = None) -> int:
        """The number of hidden patches per image; `mask_ratio` None for the model's."""
        return hidden_count(
            self.grid[0] * self.grid[1], self.mask_ratio if mask_ratio is None else check_mask_ratio(mask_ratio)
        )

    @classmethod
    def encoder_spec(cls, variant: str | ViTSpec | Mapping[str, Any], **overrides: "Unpack[ViTOverrides]") -> ViTSpec:
        """The encoder's spec for these constructor arguments; ValueError as in make_spec, or if it is unsuitable."""
        spec = make_spec(variant, **overrides)
        check_encoder(spec, cls.__name__)
        return spec

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
