"""A built model's cost by layer, for anything from keras_vit.load, with custom heads, nesting or LoRA."""

import collections
import dataclasses
import math

import keras

from keras_vit import layers
from keras_vit.detection.heads.proposals import GroupedDense, GroupedNorm
from keras_vit.detection.heads.yolos import DetectionPositions, DetectionTokens
from keras_vit.layers.embedding.mask_tokens import ReplacedPatches, RestoredPatches
from keras_vit.layers.similarity import Similarity
from keras_vit.models import taps
from keras_vit.models.costs import (
    LayerCount,
    as_rematerialised,
    attention_pooling,
    axial_block,
    bottleneck_unit,
    transformer_block,
)
from keras_vit.models.encoder import Reduction
from keras_vit.models.heads.parts import Enlargement, LayerOfParts
from keras_vit.planning.counting import layer_counts
from keras_vit.segmentation.heads.dpt import ReadoutProjection
from keras_vit.segmentation.heads.eomt import MaskedAttention, Queries, SemanticMap

# Layers whose weights are added or looked up, without products.
_LOOKED_UP = (
    *(layers.AddPositionEmbs, ReplacedPatches, Queries, MaskedAttention, GroupedNorm),
    *(DetectionTokens, DetectionPositions),
)


def _shape(tensors):
    """Shape of a layer's first output, without the batch."""
    tensor = keras.tree.flatten(tensors)[0]
    return tuple(tensor.shape[1:])


def _products(layer, inputs, output):
    """Multiply-adds of a Keras layer, for shapes without the batch; None if unknown."""
    if isinstance(layer, SemanticMap):  # queries with classes and "no object", to pixels with classes
        return inputs[0] * math.prod(output)
    if not layer.weights or isinstance(layer, (keras.layers.LayerNormalization, keras.layers.BatchNormalization)):
        return 0
    if isinstance(layer, (keras.layers.GroupNormalization, layers.LayerScale, keras.layers.Embedding)):
        return 0
    if isinstance(layer, _LOOKED_UP):
        return 0
    if isinstance(layer, RestoredPatches):
        return inputs[0] * math.prod(output)
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return math.prod(output) * math.prod(layer.kernel_size)
    if isinstance(layer, Similarity):
        return inputs[-1]
    if isinstance(layer, GroupedDense):  # the first group alone
        return math.prod(output) * inputs[-1]
    if isinstance(layer, Enlargement):
        return math.prod(inputs[:-1]) * math.prod(layer.kernel.shape)
    if isinstance(layer, ReadoutProjection):  # half of the kernel for each place, half for the class token
        return (math.prod(inputs[:-1]) + 1) * math.prod(layer.kernel.shape) // 2
    if isinstance(layer, keras.layers.Dense):
        return math.prod(output) * inputs[-1]
    if isinstance(layer, (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)):
        return math.prod(inputs[:-1]) * math.prod(layer.kernel.shape)
    if isinstance(layer, (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D, layers.StdConv2D)):
        return math.prod(output) * math.prod(layer.kernel.shape[:-1])
    return None


def _of_parts(name, layer, output):
    """The row of a LayerOfParts: its own products, and the sum of its parts' rows. Interpolation is no operation."""
    parts = [part for part in layer._flatten_layers(include_self=False) if part.weights and not _sublayers(part)]
    rows = []
    for part in parts:
        built = part.get_build_config()
        shapes = list(built.get("shapes_dict", built).values())
        made = part.compute_output_shape(*shapes)
        rows.append(_from_shapes(part.name, part, tuple(shapes[0][1:]), tuple(made[1:])))
    flops = None if any(row.flops is None for row in rows) else 2 * layer.products() + sum(row.flops for row in rows)
    return LayerCount(name, output, 0, flops, max(row.alive for row in rows), sum(row.kept for row in rows))


def _sublayers(layer):
    return list(layer._flatten_layers(include_self=False, recursive=False))


def _transformer_block(name, layer, n, d):
    """The row of a TransformerBlock on n tokens of width d, or of an AxialBlock's first half."""
    reduction = Reduction(layer.kept, layer.merged) if isinstance(layer, layers.ReducingBlock) else None
    return transformer_block(name, n, d, layer.get_config(), reduction)


def _from_shapes(name, layer, inputs, output):
    """The row of a layer that a spec doesn't describe."""
    if isinstance(layer, LayerOfParts):
        return _of_parts(name, layer, output)
    if isinstance(layer, layers.AxialBlock):
        halves = (_transformer_block(name, half, *inputs) for half in (layer, layer.columns))
        return axial_block(*halves)
    if isinstance(layer, layers.TransformerBlock):
        return _transformer_block(name, layer, *inputs)
    if isinstance(layer, layers.AttentionPooling):
        return attention_pooling(name, *inputs, layer.heads, layer.mlp_dim)
    if isinstance(layer, layers.BottleneckUnit):
        *size, channels = inputs
        row = bottleneck_unit(name, size, channels, layer.filters, layer.strides, layer.preactivation)
        return as_rematerialised(row) if layer.remat else row
    products = _products(layer, inputs, output)
    made = math.prod(output)
    return LayerCount(name, output, 0, None if products is None else 2 * products, math.prod(inputs) + made, made)


def _described(model):
    """{name: row} of the encoder's layers in the model's own graph; {} without an encoder or its spec."""
    if not taps.blocks(model) or getattr(model, "spec", None) is None:
        return {}
    first = "normalization" if model.spec is None or getattr(model.spec, "palette", None) is None else "patch_encoder"
    *size, channels = model.get_layer(first).input.shape[1:]
    return {
        row.name: row for row in layer_counts(model.spec, tuple(size), None, channels, getattr(model, "remat", False))
    }


def _calls_in(model):
    """{layer: [(input shape, output shape) of each call]} in the model's own graph; layers may be in several graphs."""
    calls = collections.defaultdict(list)
    for node in (node for level in model._nodes_by_depth.values() for node in level):
        if node.input_tensors:
            calls[node.operation].append((_shape(node.input_tensors), _shape(node.output_tensors)))
    return calls


def _of_call(name, layer, inputs, output, described):
    """The row of one call of a layer: as its spec describes it, unless it has another output here."""
    if layer.name in described and described[layer.name].output == output:
        return dataclasses.replace(described[layer.name], name=name)
    if isinstance(layer, Similarity):
        output = (1,)  # of an image with its own text: how many others there are depends on the batch
    if None in (*inputs, *output):
        raise ValueError(f'Layer "{name}" has shapes {inputs} and {output}: they must be fixed to be counted.')
    return _from_shapes(name, layer, inputs, output)


def _of_calls(rows, parameters):
    """The row of a layer that is called several times."""
    flops = None if any(row.flops is None for row in rows) else sum(row.flops for row in rows)
    return dataclasses.replace(
        max(rows, key=lambda row: row.alive), parameters=parameters, flops=flops, kept=sum(row.kept for row in rows)
    )


def counted_layers(model: keras.Model, prefix: str = "") -> list[tuple[LayerCount, keras.layers.Layer]]:
    """(row, layer) of each layer, as in `count`; `prefix` starts the names."""
    if not getattr(model, "_nodes_by_depth", None):
        functional = getattr(model, "_functional", None)  # of a built Sequential
        if functional is None:
            raise ValueError(
                f'"{model.name}" has no graph of layers to count: call or build it first, with images of a fixed size.'
            )
        return counted_layers(functional, prefix)
    described, calls, found = _described(model), _calls_in(model), []
    for layer in model.layers:
        name = f"{prefix}{layer.name}"
        if isinstance(layer, keras.layers.InputLayer):
            continue
        if isinstance(layer, keras.Model):
            found += counted_layers(layer, f"{name}/")
            continue
        rows = [_of_call(name, layer, inputs, output, described) for inputs, output in calls[layer]]
        found.append((_of_calls(rows, layer.count_params()), layer))
    return found


def count(model: keras.Model) -> list[LayerCount]:
    """Rows of a model's layers, in order; a nested model's are named like "vit/block_00".

    Parameters include LoRA's, operations do not; `flops` is None for custom layers.

    Args:
        model: of any family, or any functional or sequential model.

    Raises:
        ValueError: a layer without a fixed output shape, or a model that is not built.
    """
    return [row for row, _ in counted_layers(model)]
