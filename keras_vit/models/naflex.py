"""A Vision Transformer for images of any aspect in one batch, as SigLIP 2's NaFlex models (arXiv 2502.14786)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras
from keras import ops

from keras_vit import layers
from keras_vit.layers.arguments import integer
from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.positions.any_grid import AnyGridPositions
from keras_vit.layers.positions.embeddings import LEARNED
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import check_count, class_count, float_policy, model_name, plain_names, plain_remat
from keras_vit.models.classifier import ModelOfArguments
from keras_vit.models.encoder import encode, patch_encoder, with_tokens
from keras_vit.models.heads.label_head import classify
from keras_vit.models.spec import ViTSpec, make_spec
from keras_vit.models.vit import ViT

if TYPE_CHECKING:
    from keras_vit.models.overrides import ViTOverrides


def _check(spec):
    """Refuses what needs one grid for all images: ValueError."""
    wrong = {
        f'positions="{spec.positions}", which are no learned table': spec.positions not in LEARNED,
        f'rope="{spec.rope}"': spec.rope is not None,
        f'positions_at="{spec.positions_at}"': spec.positions_at != "stem",
        f'attention="{spec.attention}"': spec.has_pattern,
        f"windows={spec.windows}": spec.windows > 1,
        "a stem": spec.stem is not None or bool(spec.conv_stem),
        f"palette={spec.palette}": spec.palette is not None,
        "token_merging": spec.token_merging is not None,
        "patch_dropout": spec.patch_dropout > 0,
    }
    for name, given in wrong.items():
        if given:
            raise ValueError(f"NaFlexViT takes images on different grids, which does not go with {name}: leave it out.")


def _embed(pixels, grids, spec, grid, policy):
    """Patches' pixels (b, n, p, q, c) and grids (b, 2) to the first block's input, with a mask of the tokens there."""
    n, *patch = pixels.shape[1:]
    x = layers.PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(pixels)
    x = ops.reshape(x, (-1, *patch))  # (b, n, p, q, c) -> (b*n, p, q, c)
    x = patch_encoder(spec, "dense", policy)(x)  # (b*n, 1, d)
    x = ops.reshape(x, (-1, n, spec.width))  # (b, n, d)
    positions = AnyGridPositions(
        grid, spec.positioned, spec.positions, stddev=spec.position_std, dtype=policy, name="position_embedding"
    )
    return with_tokens(x, spec, lambda tokens: positions([tokens, grids]), policy)


@serializable
class NaFlexViT(ModelOfArguments):
    """A Vision Transformer for images of any aspect: each keeps its own, and a batch holds different ones.

        vit = keras_vit.load("hf://google/siglip2-base-patch16-naflex")
        model = keras_vit.NaFlexViT.from_vit(vit, patches=256)
        features = model({"patches": patches, "grid": grids})  # of keras_vit.data.to_patches

    Its weights are a ViT's. The position table is interpolated to each image's grid, and padding is masked in attention
    and pooling, so that it has no effect.

    Args:
        variant: as in ViT; learned positions, no stem, and attention among all patches.
        patches: number n of patches to which every image is padded.
        grid: the position table's, a number or (rows, columns).
        classes, channels, class_names, remat, dtype: as in ViT.
        name: of the model.
        **overrides: any field of ViTSpec.

    Inputs, by name: "patches", pixels 0..255 (b, n, p, q, c), row by row from the first; "grid", (b, 2) integers, the
    rows and columns of each image. Output: logits (b, classes), float32, or features.

    Raises:
        ValueError: for an unknown variant or argument, or a spec that needs one grid for all images.
    """

    spec: ViTSpec

    def __init__(
        self,
        variant: str | ViTSpec | Mapping[str, Any],
        patches: int = 256,
        grid: int | tuple[int, int] = 16,
        classes: int | None = 1000,
        channels: int = 3,
        class_names: Sequence[str] | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "naflex_vit",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[ViTOverrides]",
    ):
        spec, policy, classes, remat = (
            make_spec(variant, **overrides),
            float_policy(dtype),
            class_count(classes),
            plain_remat(remat),
        )
        _check(spec)
        class_names = None if class_names is None else plain_names(class_names)
        check_count(class_names, classes)
        patches, grid = integer(patches, "patches"), pair(grid, "grid")
        inputs = {
            "patches": keras.Input((patches, *spec.patch_size, channels), dtype="float32", name="patches"),
            "grid": keras.Input((2,), dtype="int32", name="grid"),
        }
        tokens = encode(_embed(inputs["patches"], inputs["grid"], spec, grid, policy), spec, remat, policy)
        _, outputs = classify(tokens, spec, classes, policy)
        super().__init__(inputs, outputs, name=model_name(name, "naflex_vit"))
        self.dtype_policy, self.spec, self.remat = policy, spec, remat
        self.classes, self.class_names = classes, class_names
        self.patches, self.grid = patches, grid

    @classmethod
    def from_vit(cls, vit: ViT, patches: int = 256, name: str | None = "naflex_vit") -> Self:
        """The model with a copy of a ViT's weights, such as those of a NaFlex file.

        Args:
            vit: its position table, of its grid, is interpolated.
            patches, name: as in the constructor.
        """
        model = cls(
            vit.spec, patches, vit.grid, vit.classes, vit.channels, vit.class_names, vit.remat, name, vit.dtype_policy
        )
        values = {weight.path: weight for weight in vit.weights}
        for weight in model.weights:
            weight.assign(values[weight.path])
        model.activation = vit.activation
        return model

    def arguments(self) -> dict:
        return {
            "variant": dataclasses.asdict(self.spec),
            "patches": self.patches,
            "grid": self.grid,
            "classes": self.classes,
            "channels": self.input["patches"].shape[-1],
            "class_names": self.class_names,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
