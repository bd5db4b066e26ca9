"""ViT-FRCNN (Beal et al., 2020, arXiv 2012.09958): Faster R-CNN (arXiv 1506.01497) on a ViT's last map.

Anchors, boxes of a few sizes and shapes around every cell, are scored and moved: the region proposals. Each of the best
is cut out of the map, and two dense layers give it a class and a better box. A reproduction from the papers, of one box
for all classes, and with two options: the map can be enlarged, and has the two convolutions of ViTDet's pyramid.

Letters: b images, a anchors, r regions, d width, k classes.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.detection.dense_loss import unpack_targets
from keras_vit.detection.heads.dense_detector import grid_points
from keras_vit.detection.heads.pyramid import SimplePyramid
from keras_vit.detection.heads.roi_align import roi_align
from keras_vit.detection.heads.suppress import suppressed
from keras_vit.detection.region_loss import ANCHORS, REGIONS, objectness_logits, region_rows
from keras_vit.layers.arguments import integer, number
from keras_vit.layers.boxes import areas, moved
from keras_vit.layers.registration import serializable
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import LayerOfParts, convolution

_OVERLAP = 0.7  # of region proposals
_SCALES = (1, 2, 4)
_CERTAIN = 1e4  # logit of "no object" for an empty place


def anchor_boxes(
    grid: tuple[int, int], image_size: tuple[int, int], sides: Sequence[float], ratios: Sequence[float]
) -> np.ndarray:
    """Anchors around the centres of cells, (h*w*len(sides)*len(ratios), 4) float32, fractions of the image.

    Cells come row by row, then sides, then ratios.

    Args:
        grid: cells (h, w) of the image.
        image_size: pixels (height, width).
        sides: square roots of the anchors' areas, in pixels.
        ratios: height / width of the anchors, in pixels.
    """
    cell = (image_size[0] / grid[0], image_size[1] / grid[1])
    centers = np.tile(grid_points([grid], [cell], image_size)[:, None, :2], 2)  # (h*w, 1, 4)
    sizes = np.array([(side * math.sqrt(ratio), side / math.sqrt(ratio)) for side in sides for ratio in ratios])
    half = np.tile(sizes / np.array(image_size), 2) / 2 * [-1, -1, 1, 1]  # (sides*ratios, 4)
    return (centers + half).reshape(-1, 4).astype("float32")


def _dense(units, stddev, dtype, name):
    """A linear layer of small numbers, in full precision."""
    initializer = keras.initializers.RandomNormal(stddev=stddev)
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype=dtype, name=name)


@serializable
class RegionHead(LayerOfParts):
    """Two dense layers on cuts of a map: (b, h, w, d), boxes (b, r, 4) -> logits (b, r, k + 1), outputs (b, r, 4).

    The last class is "no object"; outputs are offsets from the boxes times the units of detection.region_loss.REGIONS.

    Args:
        classes: k.
        units: of the dense layers.
        size: rows and columns of a cut.
    """

    def __init__(self, classes: int, units: int = 1024, size: int = 7, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes, self.units = integer(classes, "RegionHead: classes"), integer(units, "RegionHead: units")
        self.size = integer(size, "RegionHead: size")

    def build(self, x_shape, boxes_shape):
        policy, shape = self.dtype_policy, (*boxes_shape[:2], self.size**2 * x_shape[-1])
        options = {"activation": "relu", "kernel_initializer": "he_normal", "dtype": policy}
        self.dense = [keras.layers.Dense(self.units, name=f"dense_{i}", **options) for i in range(2)]
        self.classifier = _dense(self.classes + 1, 0.01, policy.variable_dtype, "classifier")
        self.regressor = _dense(4, 0.001, policy.variable_dtype, "regressor")
        for layer, width in zip((*self.dense, self.classifier, self.regressor), (shape[-1], *[self.units] * 3)):
            layer.build((*shape[:2], width))

    def call(self, x, boxes):
        d, r = x.shape[-1], boxes.shape[1] or ops.shape(boxes)[1]
        y = ops.reshape(roi_align(x, boxes, self.size), (-1, r, self.size**2 * d))
        for layer in self.dense:
            y = layer(y)
        return ops.cast(self.classifier(y), "float32"), ops.cast(self.regressor(y), "float32")

    def compute_output_spec(self, x, boxes):
        shape = boxes.shape[:2]
        return keras.KerasTensor((*shape, self.classes + 1), "float32"), keras.KerasTensor((*shape, 4), "float32")


@serializable
class RegionDetector(LayerOfParts):
    """Region proposals and their classes: [map (b, h, w, d)] -> a dict, float32 but for the map.

    "logits" (b, r, k + 1), "no object" last; "boxes" (b, r, 4), fractions of the image; and for training "regions" (b,
    r, 8), the proposals and the outputs on them, zeros in empty places; "anchors" (b, a, 5), outputs and objectness;
    and "map".

    Args:
        classes: k.
        image_size: pixels (height, width).
        units: of the dense layers on regions.
        sides, ratios: as in `anchor_boxes`.
        proposals: r.
    """

    returns = "logits"

    def __init__(
        self,
        classes: int,
        image_size: Sequence[int],
        units: int = 1024,
        sides: Sequence[float] = (32, 64, 128, 256, 512),
        ratios: Sequence[float] = (0.5, 1.0, 2.0),
        proposals: int = 300,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.classes, self.image_size = integer(classes, "RegionDetector: classes"), tuple(image_size)
        self.units, self.proposals = integer(units, "units"), integer(proposals, "proposals")
        self.sides, self.ratios = _positive(sides, "sides"), _positive(ratios, "ratios")

    def build(self, input_shapes):
        [shape] = input_shapes
        self.map_shape = tuple(shape[1:])
        policy, count = self.dtype_policy, len(self.sides) * len(self.ratios)
        small = keras.initializers.RandomNormal(stddev=0.01)
        self.anchors = anchor_boxes(shape[1:3], self.image_size, self.sides, self.ratios)
        self.conv = convolution(shape[-1], 3, policy, "conv", activation="relu", kernel_initializer=small)
        self.objectness = _dense(count, 0.01, policy.variable_dtype, "objectness")
        self.offsets = _dense(4 * count, 0.01, policy.variable_dtype, "offsets")
        for layer in (self.conv, self.objectness, self.offsets):
            layer.build(shape)
        self.region_head = RegionHead(self.classes, self.units, dtype=policy, name="region_head")
        self.region_head.build(shape, (shape[0], self.proposals, 4))

    def products(self) -> int:
        (h, w, d), size = self.map_shape, self.region_head.size
        return self.proposals * size * w * d * (h + size)  # of the cuts

    def _proposed(self, objectness, outputs):
        """The best regions (b, r, 4), highest score first, zeros in empty places."""
        boxes = ops.clip(moved(ops.convert_to_tensor(self.anchors), outputs), 0.0, 1.0)
        scores = ops.sigmoid(objectness)[..., None]  # (b, a, 1)
        boxes, scores = ops.stop_gradient(boxes), ops.stop_gradient(scores)
        return ops.stop_gradient(suppressed(scores, boxes, _OVERLAP, limit=self.proposals)[0])

    def call(self, maps):
        [x] = maps
        a, y = len(self.anchors), self.conv(x)
        objectness = ops.reshape(ops.cast(self.objectness(y), "float32"), (-1, a))
        outputs = ops.reshape(ops.cast(self.offsets(y), "float32"), (-1, a, 4))
        regions = self._proposed(objectness, outputs)
        logits, by = self.region_head(x, regions)
        nothing = np.array([0.0] * self.classes + [_CERTAIN], "float32")
        return {
            "logits": ops.where(areas(regions)[..., None] > 0, logits, ops.convert_to_tensor(nothing)),
            "boxes": moved(regions, by / ops.convert_to_tensor(REGIONS.units, "float32")),
            "regions": ops.concatenate([regions, by], axis=-1),
            "anchors": ops.concatenate([outputs, objectness[..., None]], axis=-1),
            "map": x,
        }

    def compute_output_spec(self, maps):
        [x] = maps
        b, r, a = x.shape[0], self.proposals, math.prod(x.shape[1:3]) * len(self.sides) * len(self.ratios)
        shapes = {"logits": (b, r, self.classes + 1), "boxes": (b, r, 4), "regions": (b, r, 8), "anchors": (b, a, 5)}
        named = {name: keras.KerasTensor(shape, "float32") for name, shape in shapes.items()}
        return named | {"map": keras.KerasTensor(x.shape, x.dtype)}


def _positive(values, what):
    """Numbers above 0 as a tuple; ValueError, naming `what`, for anything else."""
    given = values if isinstance(values, (list, tuple)) else [values]
    if not given:
        raise ValueError(f"{what} should be one number or more, got {values!r}.")
    return tuple(number(value, what, least=1e-6) for value in given)


def learned_rows(decoder: Decoder, outputs: Mapping[str, Any], y: Any = None) -> Any:
    """The loss's input, as from region_losses.region_rows: anchors, proposals, and true boxes as regions.

    Args:
        decoder: as `FasterRCNN.decoder` returns it.
        outputs: of the head.
        y: targets (b, m, 7); None for no true boxes.
    """
    head, regions, logits = decoder.head, outputs["regions"], outputs["logits"]
    moves, objectness = outputs["anchors"][..., :4], outputs["anchors"][..., 4]
    anchors = ops.zeros_like(moves) + ops.convert_to_tensor(head.anchors)
    rows = [
        region_rows(ANCHORS, anchors, moves, objectness_logits(objectness, head.classes)),
        region_rows(REGIONS, regions[..., :4], regions[..., 4:], logits),
    ]
    if y is not None:
        boxes, _, is_object, _ = unpack_targets(y)
        boxes = ops.where(is_object[..., None], boxes, 0.0)
        logits, by = head.region_head(outputs["map"], boxes)
        rows.append(region_rows(REGIONS, boxes, by, logits))
    return ops.concatenate(rows, axis=1)


@dataclasses.dataclass(frozen=True)
class FasterRCNN:
    """The options of ViT-FRCNN.

    Attributes:
        scale: of the map, 1 in the paper; 2 or 4 to find objects of few patches.
        width: channels of the map.
        units, sides, ratios, proposals: as in RegionDetector.
    """

    scale: float = 1
    width: int = 256
    units: int = 1024
    sides: Sequence[float] = (32, 64, 128, 256, 512)
    ratios: Sequence[float] = (0.5, 1.0, 2.0)
    proposals: int = 300

    def __post_init__(self):
        if self.scale not in _SCALES:
            raise ValueError(f"scale should be 1, 2 or 4, got {self.scale!r}.")

    def decoder(self, encoder: Encoder, classes: int, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        last = (encoder.depth - 1,)
        neck = SimplePyramid(self.width, (self.scale,), dtype=policy, name="neck")
        form = (self.units, self.sides, self.ratios, self.proposals)
        head = RegionDetector(classes, encoder.image_size, *form, dtype=policy, name="head")
        return Decoder(last, head, neck, normalised=last)
