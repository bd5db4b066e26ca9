"""A dense, anchor-free detection head: at every point of a pyramid the classes and the distances of a box's edges.

As FCOS (arXiv 2006.09214) and RetinaNet (arXiv 1708.02002): towers of convolutions that the levels share. Without
centerness: under task-aligned assignment the scores learn how well the boxes fit.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.detection.heads.pyramid import SimplePyramid, TopDownPyramid, doublings
from keras_vit.layers.arguments import choice, integer
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.registration import serializable
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import NORMS, ConvBlock, LayerOfParts

DISTANCES = ("exp", "softplus")
_PRIOR = 0.01  # probability of every class before training
_FIRST = 2.0  # cells from a point to each edge before training: RetinaNet's anchors have four
_LARGEST = 8.0  # exponent: 3,000 cells


def grid_points(
    grids: Sequence[tuple[int, int]], strides: Sequence[tuple[float, float]], image_size: tuple[int, int]
) -> np.ndarray:
    """The points of all levels (n, 4), float32: centre y and x, and height and width of a cell, shares of the image.

    Args:
        grids: (h, w) of each level; its points come row by row.
        strides: of each level, in pixels.
        image_size: pixels (height, width).
    """
    levels = []
    for grid, stride in zip(grids, strides):
        cell = np.array(stride) / np.array(image_size)
        y, x = np.meshgrid(*((np.arange(n) + 0.5) * c for n, c in zip(grid, cell)), indexing="ij")
        levels.append(np.stack([y, x, np.full_like(y, cell[0]), np.full_like(y, cell[1])], axis=-1).reshape(-1, 4))
    return np.concatenate(levels).astype("float32")


def distances_to_boxes(distances: Any, points: Any) -> Any:
    """Boxes (b, n, 4) from the distances of their edges to points, in cells: (b, n, 4), (n, 4)."""
    centers, cells = np.tile(points[:, :2], 2), np.tile(points[:, 2:], 2)  # (n, 4)
    outward = np.array([-1.0, -1.0, 1.0, 1.0], "float32") * cells
    return ops.convert_to_tensor(centers) + distances * ops.convert_to_tensor(outward)


@serializable
class DenseDetector(LayerOfParts):
    """Maps [(b, h, w, d), ...] -> logits (b, n, classes) and boxes (b, n, 4) as fractions of the image, float32.

    Args:
        classes: number of outputs at each point.
        strides: (vertical, horizontal) of each map, in pixels.
        image_size: pixels (height, width).
        width: channels of the towers.
        convs: number of 3x3 convolutions in each tower, one for the classes and one for the boxes.
        norm: "group" or "batch".
        distance: from an output to a positive distance in cells, "exp" or "softplus".
    """

    returns = "logits"

    def __init__(
        self,
        classes: int,
        strides: Sequence[Sequence[float]],
        image_size: Sequence[int],
        width: int = 256,
        convs: int = 4,
        norm: str = "group",
        distance: str = "exp",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.classes = integer(classes, "DenseDetector: classes")
        self.strides = tuple((float(vertical), float(horizontal)) for vertical, horizontal in strides)
        self.image_size = tuple(image_size)
        self.width, self.convs = integer(width, "width"), integer(convs, "convs", least=0)
        self.norm, self.distance = choice(norm, "norm", NORMS), choice(distance, "distance", DISTANCES)

    def _tower(self, name, shape):
        blocks = []
        for i in range(self.convs):
            blocks.append(ConvBlock(self.width, 3, self.norm, dtype=self.dtype_policy, name=f"{name}_{i}"))
            blocks[i].build(shape)
            shape = (*shape[:-1], self.width)
        return blocks, shape

    def _output(self, name, units, bias, shape):
        layer = keras.layers.Dense(
            units,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            bias_initializer=keras.initializers.Constant(bias),
            dtype=self.dtype_policy.variable_dtype,
            name=name,
        )
        layer.build(shape)
        return layer

    def build(self, input_shapes):
        first = _FIRST if self.distance == "exp" else math.expm1(_FIRST)
        self.class_tower, shape = self._tower("classes", input_shapes[0])
        self.box_tower, _ = self._tower("boxes", input_shapes[0])
        self.classifier = self._output("classifier", self.classes, -math.log((1 - _PRIOR) / _PRIOR), shape)
        self.regressor = self._output("regressor", 4, math.log(first), shape)
        self.scales = self.add_weight(shape=(len(input_shapes),), initializer="ones", dtype="float32", name="scales")
        self.points = grid_points([shape[1:3] for shape in input_shapes], self.strides, self.image_size)

    def _distances(self, x, level):
        """Positive distances in cells from outputs (b, h, w, 4)."""
        x = ops.cast(x, "float32") * ops.cast(self.scales[level], "float32")
        return ops.exp(ops.minimum(x, _LARGEST)) if self.distance == "exp" else ops.softplus(x)

    def call(self, maps, training=False):
        logits, distances = [], []
        for level, x in enumerate(maps):
            (_, h, w, _), y = x.shape, x
            for for_classes, for_boxes in zip(self.class_tower, self.box_tower):
                x, y = for_classes(x, training=training), for_boxes(y, training=training)
            logits.append(ops.reshape(ops.cast(self.classifier(x), "float32"), (-1, h * w, self.classes)))
            distances.append(ops.reshape(self._distances(self.regressor(y), level), (-1, h * w, 4)))
        boxes = distances_to_boxes(ops.concatenate(distances, axis=1), self.points)
        return ops.concatenate(logits, axis=1), boxes

    def compute_output_spec(self, maps, training=False):
        b, n = maps[0].shape[0], sum(math.prod(x.shape[1:3]) for x in maps)
        return keras.KerasTensor((b, n, self.classes), "float32"), keras.KerasTensor((b, n, 4), "float32")


def _on_tokens(encoder, scales, width, policy):
    """(taps, neck, strides) of a ViT."""
    powers, stride = doublings(scales), encoder.spec.strides[-1]
    least = 2 ** -min(*powers, 0)
    grid = grid_size(encoder.image_size, stride)
    if min(grid) < least:
        raise ValueError(
            f"scales={tuple(scales)} halve the grid of {grid[0]}x{grid[1]} patches to nothing: use larger images, or"
            " larger scales."
        )
    strides = [tuple(side / 2**power for side in stride) for power in powers]
    return (encoder.depth - 1,), SimplePyramid(width, scales, dtype=policy, name="neck"), strides


def _on_stages(encoder, scales, width, policy):
    """(taps, neck, strides) of a BiT: the last block of each stage with a map at a scale of the last one's."""
    strides = encoder.spec.strides
    ends = {strides[-1][0] / strides[i][0]: i for i in encoder.spec.stage_ends}
    missing = [scale for scale in scales if scale not in ends]
    if missing:
        raise ValueError(f"scales of this encoder's maps are {sorted(ends, reverse=True)}, got {tuple(scales)}.")
    taps = tuple(ends[scale] for scale in scales)
    return taps, TopDownPyramid(width, dtype=policy, name="neck"), [strides[i] for i in taps]


@dataclasses.dataclass(frozen=True)
class Dense:
    """The options of the pyramid and the dense head.

    Attributes:
        scales: the pyramid's levels, relative to a ViT's last map, powers of two from 4 down; None for 2, 1 and 0.5:
            strides of 8, 16 and 32 pixels with patches of 16. Of a BiT's stages 4, 2 and 1.
        width: channels of pyramid and towers; 256 in the papers.
        convs: number of convolutions in each tower; 4 in the papers.
        norm, distance: as in DenseDetector.
    """

    scales: Sequence[float] | None = None
    width: int = 128
    convs: int = 2
    norm: str = "group"
    distance: str = "exp"

    def decoder(self, encoder: Encoder, classes: int, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        tokens = encoder.spec.has_tokens
        scales = tuple(self.scales or ((2, 1, 0.5) if tokens else (4, 2, 1)))
        taps, neck, strides = (_on_tokens if tokens else _on_stages)(encoder, scales, self.width, policy)
        form = (self.width, self.convs, self.norm, self.distance)
        head = DenseDetector(classes, strides, encoder.image_size, *form, dtype=policy, name="head")
        return Decoder(taps, head, neck, normalised=taps)
