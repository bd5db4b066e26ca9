"""DPT (arXiv 2103.13413): maps reassembled at four sizes, fused from the deepest; here for classes.

As in transformers' DPTForSemanticSegmentation; depth/depth_model.py has the head for depth on the same neck. The 1x1
convolutions come before the upsampling instead of after it, which gives the same at a quarter of the work.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, integers
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear, resized_dtype
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import (
    NORMS,
    ConvBlock,
    Enlargement,
    FCNHead,
    LayerOfParts,
    PlaceClassifier,
    convolution,
    normalization,
)

READOUTS = ("project", "add", "ignore")
_EVEN = (0.25, 0.5, 0.75, 1.0)  # blocks 2, 5, 8 and 11 of ViT-B, 5, 11, 17 and 23 of ViT-L


def doubled(x: Any) -> Any:
    """A map at twice its size, corners aligned: (b, h, w, d) -> (b, 2h, 2w, d)."""
    return resize_bilinear(x, (2 * x.shape[1], 2 * x.shape[2]), aligned=True)


@serializable
class ReadoutProjection(keras.layers.Layer):
    """GELU(dense(patch and class token)): (b, h, w, d) and (b, d) -> (b, h, w, d)."""

    def build(self, x_shape, token_shape):
        d = x_shape[-1]
        self.kernel = self.add_weight(shape=(2 * d, d), initializer="glorot_uniform", name="kernel")
        self.bias = self.add_weight(shape=(d,), initializer="zeros", name="bias")

    def call(self, x, token):
        d = x.shape[-1]
        shared = ops.matmul(token, self.kernel[d:]) + self.bias  # (b, d), the same for all patches
        return ops.gelu(ops.matmul(x, self.kernel[:d]) + shared[:, None, None], approximate=False)

    def compute_output_shape(self, x_shape, token_shape):
        return x_shape


@serializable
class ResidualUnit(keras.layers.Layer):
    """x + convolutions(x), each after a ReLU: (b, h, w, d) -> (b, h, w, d).

    Args:
        norm: "batch" or "group" after each convolution, or None.
        bias: whether the convolutions have one; None if they have no normalisation.
    """

    def __init__(self, norm: str | None = None, bias: bool | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm = None if norm is None else choice(norm, "ResidualUnit: norm", NORMS)
        self.bias = norm is None if bias is None else flag(bias, "ResidualUnit: bias")

    def build(self, input_shape):
        width, policy = input_shape[-1], self.dtype_policy
        self.convolutions = [convolution(width, 3, policy, f"conv_{i}", use_bias=self.bias) for i in range(2)]
        self.norms = [] if self.norm is None else [normalization(self.norm, width, policy, f"norm_{i}") for i in (0, 1)]
        for layer in (*self.convolutions, *self.norms):
            layer.build(input_shape)

    def call(self, x, training=False):
        y = x
        for i, convolve in enumerate(self.convolutions):
            y = convolve(ops.relu(y))
            if self.norms:
                y = self.norms[i](y, training=training) if self.norm == "batch" else self.norms[i](y)
        return x + y


@serializable
class Fusion(keras.layers.Layer):
    """A stage of the top-down path: the deeper result and a map of its size, fused, at another size.

    Args:
        norm, bias: as in ResidualUnit.
    """

    def __init__(self, norm: str | None = None, bias: bool | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm, self.bias = norm, bias
        options = {"norm": norm, "bias": bias, "dtype": self.dtype_policy}
        self.lateral, self.unit = ResidualUnit(name="residual_1", **options), ResidualUnit(name="residual_2", **options)

    def build(self, x_shape, lateral_shape=None):
        self.projection = convolution(x_shape[-1], 1, self.dtype_policy, "projection")
        for layer in (self.unit, self.projection, *([] if lateral_shape is None else [self.lateral])):
            layer.build(x_shape)

    def call(self, x, lateral=None, size=None, training=False):
        if lateral is not None:
            lateral = resize_bilinear(lateral, x.shape[1:3]) if lateral.shape[1:3] != x.shape[1:3] else lateral
            x = x + self.lateral(lateral, training=training)
        x = self.projection(self.unit(x, training=training))
        return doubled(x) if size is None else resize_bilinear(x, size, aligned=True)


@serializable
class DPTNeck(LayerOfParts):
    """Reassembly and fusion: four maps (b, h, w, d), the deepest last, to four fused ones, the finest last.

    The fused maps (b, h', w', width) have h/2, h, 2h and 4h rows before their upsampling to twice that.

    Args:
        widths: channels of the four reassembled maps, of 4h, 2h, h and h/2 rows.
        width: channels of the fused maps.
        readout: what becomes of class tokens: "project", "add" or "ignore".
        norm, bias: as in ResidualUnit.
        exact_sizes: whether each fused map gets the size of the next one (Depth Anything), rather than twice its own.

    Takes the maps' class tokens, [(b, d), ...], as `tokens` unless they are ignored.
    """

    def __init__(
        self,
        widths: Sequence[int] = (96, 192, 384, 768),
        width: int = 256,
        readout: str = "project",
        norm: str | None = None,
        bias: bool | None = None,
        exact_sizes: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.widths = integers(widths, "DPTNeck: widths", (96, 192, 384, 768))
        if len(self.widths) != 4:
            raise ValueError(f"DPTNeck: widths should be four numbers, got {self.widths}.")
        self.width, self.readout = integer(width, "DPTNeck: width"), choice(readout, "DPTNeck: readout", READOUTS)
        self.norm, self.bias = norm, bias
        self.exact_sizes = flag(exact_sizes, "DPTNeck: exact_sizes")
        policy = self.dtype_policy
        ways = [Enlargement(4, dtype=policy, name="resize_0"), Enlargement(2, dtype=policy, name="resize_1"), None]
        halving = convolution(self.widths[3], 3, policy, "resize_3", strides=2, padding="valid")
        self.resizings = [*ways, halving]
        self.projections = [convolution(w, 1, policy, f"projection_{i}") for i, w in enumerate(self.widths)]
        self.convolutions = [convolution(self.width, 3, policy, f"conv_{i}", use_bias=False) for i in range(4)]
        self.fusions = [Fusion(norm, bias, dtype=policy, name=f"fusion_{i}") for i in range(4)]
        names = [f"readout_{i}" for i in range(4)] if readout == "project" else []
        self.readouts = [ReadoutProjection(dtype=policy, name=name) for name in names]

    def build(self, maps_shape, tokens_shape=None):
        for i, shape in enumerate(maps_shape):
            if self.readouts:
                self.readouts[i].build(shape, tokens_shape[i])
            self.projections[i].build(shape)
            (b, h, w, _), c = shape, self.widths[i]
            if self.resizings[i] is not None:
                self.resizings[i].build((b, h + 2, w + 2, c) if i == 3 else (b, h, w, c))
            self.convolutions[i].build((b, *self._size(i, h, w), c))
        self._build_fusions(*maps_shape[0][:3])

    def _size(self, i, h, w):
        """The size of map i once it is reassembled."""
        return (-(-h // 2), -(-w // 2)) if i == 3 else (h * 2 ** (2 - i), w * 2 ** (2 - i))

    def _fused_sizes(self, h, w):
        """The sizes of the deepest map, and of the four fused ones."""
        sizes = [self._size(3, h, w)]
        for i in range(4):
            exact = self.exact_sizes and i < 3
            sizes.append(self._size(2 - i, h, w) if exact else (2 * sizes[i][0], 2 * sizes[i][1]))
        return sizes

    def _build_fusions(self, b, h, w):
        for i, (fusion, size) in enumerate(zip(self.fusions, self._fused_sizes(h, w))):
            fused = (b, *size, self.width)
            fusion.build(fused, fused if i else None)

    def _reassembled(self, i, x, token):
        """Map i (b, h, w, d) with its class token read, at its own size: (b, h', w', width)."""
        if self.readout == "project":
            x = self.readouts[i](x, token)
        elif self.readout == "add":
            x = x + token[:, None, None]
        x = self.projections[i](x)
        if i == 3:
            x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))  # on both sides: "same" would pad the end alone
        x = x if self.resizings[i] is None else self.resizings[i](x)
        return self.convolutions[i](x)

    def call(self, maps, tokens=None, training=False):
        tokens = tokens or [None] * 4
        maps = [self._reassembled(i, x, token) for i, (x, token) in enumerate(zip(maps, tokens))][::-1]
        sizes = [x.shape[1:3] for x in maps[1:]] if self.exact_sizes else [None] * 3
        fused = []
        for fusion, x, size in zip(self.fusions, maps, [*sizes, None]):
            found = (
                fusion(fused[-1], x, size=size, training=training) if fused else fusion(x, size=size, training=training)
            )
            fused.append(found)
        return fused

    def compute_output_spec(self, maps, tokens=None, training=False):
        (b, h, w, _), dtype = maps[0].shape, resized_dtype(self.compute_dtype)
        return [keras.KerasTensor((b, *size, self.width), dtype) for size in self._fused_sizes(h, w)[1:]]


@serializable
class DPTHead(LayerOfParts):
    """DPT's head for classes: [..., (b, h, w, d)] -> logits (b, 2h, 2w, classes), of the finest map.

    Args:
        classes: number of outputs.
        norm, dropout: as in ConvBlock and PlaceClassifier.
    """

    def __init__(self, classes: int, norm: str = "batch", dropout: float = 0.1, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes, self.norm, self.dropout = classes, choice(norm, "DPTHead: norm", NORMS), dropout

    def build(self, input_shapes):
        shape, policy = input_shapes[-1], self.dtype_policy
        self.block = ConvBlock(shape[-1], 3, self.norm, dtype=policy, name="conv")
        self.classifier = PlaceClassifier(self.classes, self.dropout, dtype=policy, name="classifier")
        self.block.build(shape)
        self.classifier.build(shape)

    def call(self, maps, training=False):
        return doubled(self.classifier(self.block(maps[-1], training=training), training=training))

    def compute_output_spec(self, maps, training=False):
        b, h, w, _ = maps[-1].shape
        return keras.KerasTensor((b, 2 * h, 2 * w, self.classes), resized_dtype(self.variable_dtype))


def _default_widths(d):
    """Channels of the reassembled maps: those of the papers for ViT-S, B and L, of the same shares for others."""
    return (d // 4, d // 2, d, d) if d >= 1024 else (d // 8, d // 4, d // 2, d)


@dataclasses.dataclass(frozen=True)
class DPT:
    """The options of DPT for classes.

    Attributes:
        taps: four blocks; None for 2, 5, 8 and 11 of 12.
        widths, width, exact_sizes: as in DPTNeck; widths None for the papers' shares of the encoder's width.
        readout: as in DPTNeck; None for "project" where tokens have a class token, else "ignore".
        norm: of the head's convolution, "batch" or "group".
        residual_norm: of the residual units; "same" as `norm`, or None.
        residual_bias: as in ResidualUnit.
        normalised: whether each tap is taken after the encoder's last normalisation (Depth Anything).
        dropout: rate before the classifier.
    """

    taps: Sequence[int] | None = None
    widths: Sequence[int] | None = None
    width: int = 256
    readout: str | None = None
    norm: str = "batch"
    residual_norm: str | None = "same"
    residual_bias: bool | None = None
    exact_sizes: bool = False
    normalised: bool = False
    dropout: float = 0.1

    def __post_init__(self):
        flag(self.normalised, "normalised")
        if self.readout is not None:
            choice(self.readout, "readout", READOUTS)

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        below = self.below_head(encoder, policy)
        head = DPTHead(classes, self.norm, self.dropout, dtype=policy, name="head")
        other = FCNHead(classes, self.width, 1, self.norm, 0.1, dtype=policy, name="auxiliary_0")
        return Decoder(head=head, auxiliary=((3, other),) if auxiliary else (), **below)

    def below_head(self, encoder: Encoder, policy: keras.DTypePolicy) -> dict[str, Any]:
        """Fields of a Decoder: taps and neck; ValueError for an encoder that does not suit them."""
        if not encoder.spec.has_tokens:
            raise ValueError('The head "dpt" takes the maps of a ViT: choose "upernet" or "linear" for this encoder.')
        taps, readout = encoder.taps_of_one_stride("dpt", self.taps, _EVEN), self._readout(encoder)
        spec: Any = encoder.spec
        widths = _default_widths(spec.width) if self.widths is None else self.widths
        norm = self.norm if self.residual_norm == "same" else self.residual_norm
        options = {"norm": norm, "bias": self.residual_bias, "exact_sizes": self.exact_sizes, "dtype": policy}
        neck = DPTNeck(widths, self.width, readout, name="neck", **options)
        normalised = taps if self.normalised else ()
        return {"taps": taps, "neck": neck, "normalised": normalised, "class_tokens": readout != "ignore"}

    def _readout(self, encoder):
        """The readout, "project" where tokens have a class token; ValueError for one without."""
        has_token = getattr(encoder.spec, "class_token", False)
        readout = self.readout or ("project" if has_token else "ignore")
        if readout != "ignore" and not has_token:
            raise ValueError(f'readout="{readout}" reads the class token, and this encoder has none: use "ignore".')
        return readout
