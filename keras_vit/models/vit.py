"""The Vision Transformer (arXiv 2010.11929) as a functional Keras model: pixels 0..255 in, logits out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit.layers.blocks.transformer import TransformerBlock
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.registration import serializable
from keras_vit.models import taps
from keras_vit.models.checks import class_count, float_policy, image_input, model_name, plain_remat
from keras_vit.models.classifier import Classifier
from keras_vit.models.encoder import embed, encode
from keras_vit.models.families import Family
from keras_vit.models.heads.label_head import classify
from keras_vit.models.spec import ViTSpec, make_spec
from keras_vit.models.variants import NAMES, VARIANTS, nearest_variant, parse

if TYPE_CHECKING:
    from keras_vit.models.overrides import ViTOverrides


@serializable
class ViT(Classifier):
    """A Vision Transformer.

    Args:
        variant: size and patch size such as "B/16" (sizes Ti, S, B, L, So400m, H, g, G; any patch size), hybrid such as
            "R50+B/16", or ViTSpec.
        image_size: pixels, a number or (height, width).
        classes: number of classes; None for a model without a head, which returns features.
        channels: of the image.
        class_names: in order; `.keras` and SavedModel files carry them.
        preprocessing: text of the evaluation preprocessing (docs/data.md), which an exported model applies to image
            files.
        remat: rematerialise all blocks and a hybrid's stem (True), or the blocks with these numbers, to save memory in
            training.
        name: of the model, and of its input: "image", or "left_image" for a model called "left". None for a new one:
            vit_1, vit_2...
        dtype: a Keras policy such as "mixed_bfloat16".
        **overrides: any field of ViTSpec: depth, dropout, pool, positions, registers, ...

    Input: pixels 0..255, (b, height, width, channels), uint8 or float; the model normalises. Output: logits (b,
    classes), float32 under mixed precision too. Blocks are named `block_00`...

    Raises:
        ValueError: for an unknown variant or argument, or an image that is not a whole number of patches.
    """

    spec: ViTSpec

    def __init__(
        self,
        variant: str | ViTSpec | Mapping[str, Any],
        image_size: int | tuple[int, int] = 224,
        classes: int | None = 1000,
        channels: int = 3,
        class_names: Sequence[str] | None = None,
        preprocessing: str | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "vit",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[ViTOverrides]",
    ):
        spec = make_spec(variant, **overrides)
        policy, classes, remat = float_policy(dtype), class_count(classes), plain_remat(remat)
        name = model_name(name, "vit")
        image = image_input(image_size, channels, name, "vit")
        grid = grid_size(image.shape[1:3], spec.stride)
        tokens, sizes = encode(
            embed(image, spec, remat is True, policy), spec, remat, policy, grid=grid, return_sizes=True
        )
        features, outputs = classify(tokens, spec, classes, policy, sizes)
        super().__init__(image, features, outputs, spec, classes, class_names, preprocessing, remat, name, policy)

    @property
    def grid(self) -> tuple[int, int]:
        """The patch grid (h, w)."""
        return grid_size(self.image_size, self.spec.stride)

    @property
    def tokens(self) -> keras.KerasTensor:
        """The encoder's output, symbolic (b, n, d): the last block's, normalised unless by fc_norm or not at all."""
        return taps.tokens(self)


VIT = Family(
    name="ViT",
    title="Vision Transformer",
    tag="vision-transformer",
    spec=ViTSpec,
    model=ViT,
    block=TransformerBlock,
    encoded="encoder_norm",
    names=NAMES,
    parse=parse,
    nearest=nearest_variant,
    variants=VARIANTS,
)
