"""iGPT (Chen et al., "Generative Pretraining from Pixels", ICML 2020): predicts pixels from earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.fit import checks
from keras_vit.io.suggest import check_known
from keras_vit.layers.arguments import is_integer
from keras_vit.layers.dense import Dense
from keras_vit.layers.positions.embeddings import KINDS
from keras_vit.layers.registration import serializable
from keras_vit.models import taps
from keras_vit.models.checks import model_name, output_policy
from keras_vit.models.classifier import ModelOfArguments
from keras_vit.models.spec import ViTSpec, make_spec
from keras_vit.models.vit import ViT

# Section 3.3 of the paper; all with 512 colours.
VARIANTS = {
    "iGPT-S": {"depth": 24, "width": 512, "mlp_dim": 2048, "heads": 8},
    "iGPT-M": {"depth": 36, "width": 1024, "mlp_dim": 4096, "heads": 8},
    "iGPT-L": {"depth": 48, "width": 1536, "mlp_dim": 6144, "heads": 16},
}
COLORS = 512
# The fields that make a ViT an iGPT: the class token is the start token.
_FIELDS = {"causal": True, "class_token": True, "pool": "gap", "registers": 0, "fc_norm": False, "pre_logits": None}


def image_gpt_spec(variant: str | ViTSpec | Mapping[str, Any], colors: int, overrides: Mapping[str, Any]) -> ViTSpec:
    """An iGPT's ViTSpec; ValueError for an unknown variant, or a field that is fixed in every iGPT."""
    if isinstance(variant, str) and "/" not in variant:
        check_known(variant, "ImageGPT", VARIANTS, "; or a ViT of patch size 1")
    for name, value in _FIELDS.items():
        if overrides.get(name, value) != value:
            raise ValueError(f"{name}={overrides[name]!r}: an ImageGPT has {name}={value!r}. Leave it out.")
    row = {"patch_size": 1, **VARIANTS[variant]} if isinstance(variant, str) and variant in VARIANTS else variant
    spec = make_spec(row, **{**overrides, **_FIELDS, "palette": colors})
    kind = spec.inner_positions or spec.positions
    if kind not in KINDS or spec.positions_at != "stem":
        raise ValueError(
            f'positions="{kind}", positions_at="{spec.positions_at}": an ImageGPT adds positions to its tokens once.'
            f' Valid: {", ".join(KINDS)}, with positions_at="stem".'
        )
    return spec


def _colors(variant, palette):
    """(number of colours, the colours (colors, c) or None for a grid) from the arguments."""
    if palette is not None and not is_integer(palette):
        palette = np.asarray(palette, "float32")
        if palette.ndim != 2 or not np.isfinite(palette).all():
            raise ValueError(
                f"palette must be a number of colours, or pixel values 0..255 (colors, c), got shape {palette.shape}."
            )
        return len(palette), palette
    fields = variant.to_dict() if isinstance(variant, ViTSpec) else variant if isinstance(variant, Mapping) else {}
    return palette or fields.get("palette") or COLORS, None


@serializable
class ImageGPT(ModelOfArguments):
    """Pixels to the logits of each one's colour, computed from earlier pixels.

    Args:
        variant: "iGPT-S", "iGPT-M" or "iGPT-L", a ViT of patch size 1 such as "Ti/1", or ViTSpec.
        image_size: pixels, a number or (height, width). Each pixel is a token: 32 is already a lot.
        channels: of the image.
        palette: colours (colors, c), pixel values 0..255, kept in files as a weight (data.fit_palette finds them in
            images); or a number of colours, spread evenly.
        preprocessing, remat, dtype: as in ViT.
        name: of the model, and of its input.
        **overrides: any field of ViTSpec that an iGPT leaves open: depth, width, dropout, positions, ...

    Input: pixels 0..255, (b, height, width, c). Output: logits (b, n, colors) float32, row n for pixel n, row by row.
    It trains with the colours as labels, (b, n) integers:

        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(images, model.colors(images))

    `sample` draws images, or completes given ones. `get_encoder()` is a ViT with the same weights, whose features are
    the mean of all pixels' tokens.

    Raises:
        ValueError: for an unknown variant or argument, or a palette that does not fit the image's channels.
    """

    image_size: tuple[int, int]
    labels_are_classes = False

    def __init__(
        self,
        variant: str | ViTSpec | Mapping[str, Any] = "iGPT-S",
        image_size: int | tuple[int, int] = 32,
        channels: int = 3,
        palette: int | np.ndarray | Sequence | None = None,
        preprocessing: str | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "image_gpt",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: Any,
    ):
        colors, values = _colors(variant, palette)
        name = model_name(name, "image_gpt")
        encoder_name = "vit" if name == "image_gpt" else name  # so that the input is called "image", or by the name
        vit = ViT(
            image_gpt_spec(variant, colors, overrides),
            image_size,
            classes=None,
            channels=channels,
            preprocessing=preprocessing,
            remat=remat,
            name=encoder_name,
            dtype=dtype,
        )
        if values is not None:
            if values.shape[1] != vit.channels:
                raise ValueError(
                    f"The palette has colours of {values.shape[1]} values, the images {vit.channels} channels."
                )
            vit.get_layer("patch_encoder").palette.assign(values)
        super().__init__(vit.input, _logits(vit), name=name)
        self.dtype_policy = vit.dtype_policy
        self.remat = vit.remat
        self.preprocessing = vit.preprocessing
        object.__setattr__(self, "_vit", vit)  # not a part of this model: it consists of the same layers

    def get_encoder(self) -> ViT:
        """The ViT from images to features, without a head, sharing weights."""
        return self._vit

    @property
    def grid(self) -> tuple[int, int]:
        """The grid of tokens (h, w): the image's size."""
        return self._vit.grid

    @property
    def palette(self) -> np.ndarray:
        """The colours (colors, c) float32, pixel values 0..255."""
        return keras.ops.convert_to_numpy(self.get_layer("patch_encoder").palette)

    def colors(self, images: Any, batch_size: int = 64) -> np.ndarray:
        """The numbers of the palette's nearest colours: (b, height, width, c) -> (b, n) int32.

        Raises:
            ValueError: for images on another scale than 0..255.
        """
        checks.check_images(self, images)
        nearest, images = self.get_layer("patch_encoder").nearest, np.asarray(images)
        parts = [
            nearest(keras.ops.convert_to_tensor(images[i : i + batch_size])) for i in range(0, len(images), batch_size)
        ]
        return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])

    def pixels(self, colors: Any) -> np.ndarray:
        """The images of colours: (b, n) integers -> (b, height, width, c) uint8."""
        values = np.clip(np.rint(self.palette), 0, 255).astype("uint8")
        return values[np.asarray(colors)].reshape(
            -1, *self.image_size, self.channels
        )  # (b, n, c) -> (b, height, width, c)

    def sample(
        self,
        count: int | None = None,
        prompt: Any = None,
        rows: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        batch_size: int = 16,
    ) -> np.ndarray:
        """Draws images pixel by pixel, or completes given ones, as in figure 1 of the paper.

        Args:
            count: number of images; None for 1, or one per prompt. A single prompt gets `count` completions.
            prompt: images (b, height, width, c), pixels 0..255, to keep the upper rows of; None to draw all pixels.
            rows: rows of `prompt` to keep; None for half.
            temperature: divides the logits: below 1 likelier colours, above 1 more varied ones.
            top_k: draw from this many of the likeliest colours; None for all.
            seed: of the draws. Image i is the same for every `count` and `batch_size`.
            batch_size: images at once.

        Returns:
            (count, height, width, c) uint8; kept pixels are colours of the palette too.

        Raises:
            ValueError: for images of another size, or invalid numbers.
        """
        from keras_vit.pretraining import pixel_sampling

        return pixel_sampling.sample(self, count, prompt, rows, temperature, top_k, seed, batch_size)

    def arguments(self) -> dict:
        kept = ("variant", "image_size", "channels", "preprocessing", "remat", "dtype")
        config = self._vit.arguments()
        return {**{name: config[name] for name in kept}, "name": self.name}


def _logits(vit):
    """Symbolic logits (b, n, colors), of pixel i from the start token and earlier pixels; the last pixel is unused."""
    x = vit.get_layer("embedding_dropout").output  # (b, 1 + n, d)
    x = x if vit.spec.has_pattern else x[:, :-1]  # patterns need the whole grid
    for block in taps.blocks(vit):
        x = block(x)
    x = vit.get_layer("encoder_norm")(x[:, :-1] if vit.spec.has_pattern else x)  # (b, n, d)
    normal = keras.initializers.RandomNormal(stddev=0.02)
    head = Dense(
        vit.spec.palette,
        use_bias=False,
        kernel_initializer=normal,
        dtype=output_policy(vit.dtype_policy, "next_color"),
        name="next_color",
    )
    return head(x)
