"""A model's parameters, FLOPs and activations, layer by layer, from its functional graph, without values.

A layer is a graph, too: it is called with symbolic tensors of one image, and so are the layers inside it, down to the
operations of the tables below. FLOPs are those of matrix products and convolutions, 2 per multiply-add (half of them
are "GMACs"). Activations are counted in numbers, 4 bytes each in float32 and 2 in bfloat16:

- alive: in memory at once in a forward pass at the layer's widest point, with what later layers read;
- kept: made by the layer and kept in training for the gradient, without dropout's masks. Of a block of n tokens these
  are 16 n d numbers and the attention weights, as in table 2 of arXiv 2205.05198.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras

from keras_vit.fit.symbolic import nodes
from keras_vit.layers.embedding.patches import pair
from keras_vit.models import families
from keras_vit.models.without_values import without_values

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # per value, by compute dtype


@dataclasses.dataclass(frozen=True)
class LayerCount:
    """One layer's row.

    Attributes:
        name: of the layer in the model.
        output: output shape, without the batch.
        parameters: number of its weights' values.
        flops: operations of a forward pass; None if unknown.
        alive, kept: activations, see above.
        recomputed: kept by a rematerialised layer only during its own gradient.
    """

    name: str
    output: tuple[int, ...]
    parameters: int = 0
    flops: int | None = 0
    alive: int = 0
    kept: int = 0
    recomputed: int = 0


def _einsum(operation, shapes, output):
    terms, result = operation.subscripts.split("->")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes):
        before, _, after = term.partition("...")
        sizes |= dict(zip(before, shape)) | dict(zip(reversed(after), reversed(shape)))
    return math.prod(output) * math.prod(size for letter, size in sizes.items() if letter not in result)


# Multiply-adds of operations and of Keras' layers, by their class: functions of the operation, the shapes of what it
# reads and the shape of its first output; None if unknown. Others have none.
_PRODUCTS: dict[str, Callable | None] = {
    "Conv": lambda _, shapes, output: math.prod(output) * math.prod(shapes[1][:-1]),
    "ConvTranspose": lambda _, shapes, output: math.prod(shapes[0]) // shapes[1][-1] * math.prod(shapes[1]),
    "Dense": lambda _, shapes, output: math.prod(output) * shapes[0][-1],
    "DepthwiseConv": lambda _, shapes, output: math.prod(output) * math.prod(shapes[1][:2]),
    "DotProductAttention": lambda _, shapes, output: 2 * math.prod(output) * shapes[1][1],
    "Einsum": _einsum,
    "Matmul": lambda _, shapes, output: math.prod(output) * shapes[0][-1],
    **dict.fromkeys(("Dot", "Inner", "Outer", "SeparableConv", "Tensordot", "Vdot")),
}
# What their gradients read. Operations that are in neither table are computed in place.
_READS_INPUTS = (
    *("BatchNormalization", "GroupNormalization", "LayerNorm", "LayerNormalization", "RMSNorm", "RMSNormalization"),
    *("Erf", "Gelu", "Log", "MaxPool", "Silu", "Square"),
    *(name for name in _PRODUCTS),
)
_READS_OUTPUT = ("DotProductAttention", "Exp", "Relu", "Rsqrt", "Sigmoid", "Softmax", "Sqrt", "Tanh")
_MULTIPLIES = ("Divide", "Multiply", "TrueDivide")  # their gradients read the other factor, unless it is a constant
# The same array: one under another shape, or that XLA fuses into what reads it.
_VIEWS = (
    *("Cast", "ConvertToTensor", "ExpandDims", "Identity", "Pad", "Reshape", "Split", "Squeeze", "Swapaxes"),
    "Transpose",
)


def _known(operation):
    """The name of the row of an operation or of a Keras layer that isn't called to see what is inside; None if none."""
    names = [each.__name__ for each in type(operation).__mro__ if each.__module__.startswith("keras.src.")]
    return next((name for name in names if name in (*_READS_INPUTS, *_READS_OUTPUT, *_MULTIPLIES, *_VIEWS)), None)


@dataclasses.dataclass(eq=False)
class _Row:
    """A layer's row while the model is counted."""

    name: str
    layer: Any
    output: tuple
    flops: int | None = 0
    alive: int = 0
    kept: int = 0

    def add(self, products):
        """Adds multiply-adds; None for unknown ones."""
        self.flops = None if products is None or self.flops is None else self.flops + 2 * products


@dataclasses.dataclass(eq=False)
class _Array:
    """An array in memory: its size, the row of the layer that made it, the last step that reads it.

    Weights, and what depends on nothing else, have no size: a batch shares them.
    """

    size: int = 0
    row: _Row | None = None
    last: int = -1
    has_gradient: bool = False
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class _Step:
    """An operation in its layer's row: the arrays that it reads, makes, and keeps for its gradient, if it has one."""

    row: _Row
    read: Sequence[_Array] = ()
    made: Sequence[_Array] = ()
    kept: Sequence[_Array] = ()
    in_place: bool = False
    has_gradient: bool = True


def _symbolic(values):
    """The symbolic tensors among arguments or outputs."""
    return [each for each in keras.tree.flatten(values) if isinstance(each, keras.KerasTensor)]


@contextlib.contextmanager
def _symbolic_weights(layer):
    """A context in which a layer's own weights are symbolic: what is computed from them needs no values."""
    weights = {name: value for name, value in vars(layer).items() if isinstance(value, keras.Variable)}
    vars(layer).update({name: keras.KerasTensor(value.shape, value.dtype) for name, value in weights.items()})
    try:
        yield
    finally:
        vars(layer).update(weights)


def _outputs(layer, arguments, options):
    """What a layer makes of symbolic tensors; None if it refuses them, as functions of the engine do."""
    for context in (_symbolic_weights(layer), contextlib.nullcontext()):  # Keras cannot slice symbolic[:n]
        try:
            with context:
                return _symbolic(layer.call(*arguments, **options))
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            continue
    return None


class _Walk:
    """A forward pass of one image, step by step."""

    def __init__(self, model: keras.Model):
        self.rows: dict[str, _Row] = {}
        self.steps: list[_Step] = []
        self._arrays: dict[int, tuple[Any, _Array]] = {}  # by id, with the tensor, which keeps its id
        images = [keras.KerasTensor((1, *each.shape[1:]), each.dtype) for each in model.inputs]
        self._images = [self._name(image, _Array(self._size(image, image))) for image in images]
        given = keras.tree.pack_sequence_as(model._inputs_struct, images)
        outputs = self._called(model, (given,), {}, "", None)
        if outputs is None:
            raise ValueError(f'"{model.name}" cannot be counted: its call refuses symbolic tensors.')
        for array in outputs:
            array.last, array.has_gradient, array.kept = len(self.steps), True, True

    def _size(self, tensor, named):
        if None in tensor.shape:
            raise ValueError(f'"{named.name}" has the shape {tensor.shape}: it must be fixed to be counted.')
        return math.prod(tensor.shape)

    def _name(self, tensor, array):
        """Notes that a tensor is this array."""
        self._arrays[id(tensor)] = tensor, array
        return array

    def _array(self, tensor):
        return self._arrays[id(tensor)][1] if id(tensor) in self._arrays else self._name(tensor, _Array())

    def _row(self, name, operation, output):
        row = self.rows.setdefault(name, _Row(name, operation, tuple(output.shape[1:])))
        self.steps.append(_Step(row))  # a layer may have no other
        return row

    def _called(self, layer, arguments, options, prefix, row):
        """The outputs of a layer that is called with symbolic tensors, after its steps; None if it refuses these."""
        outputs = _outputs(layer, arguments, options)
        if outputs is None:
            return None
        for node in nodes(outputs, {id(tensor) for tensor in _symbolic((arguments, options))}):
            self._visit(node, prefix, row)
        return [self._array(tensor) for tensor in outputs]

    def _visit(self, node, prefix, row):
        """The steps of an operation, or of the operations inside a layer: in `row`, or in a model in rows of layers."""
        operation, arguments, options = node.operation, node.arguments.args, node.arguments.kwargs
        if row is None and isinstance(operation, keras.Model):
            prefix = f"{prefix}{operation.name}/"
        elif row is None:
            row = self._row(prefix + operation.name, operation, node.outputs[0])
        known = _known(operation)
        if known is None and isinstance(operation, keras.layers.Layer):
            made = self._called(operation, arguments, options, prefix, row)
            if made is not None:
                for tensor, array in zip(node.outputs, made):
                    self._name(tensor, array)
                return
            row.add(None if operation.weights else 0)
        self._step(operation, known, (arguments, options), node.outputs, row)

    def _step(self, operation, known, arguments, outputs, row):
        """An operation: what it reads, makes, multiplies, and keeps for its gradient."""
        read = [each for each in keras.tree.flatten(arguments) if hasattr(each, "shape")]
        inputs = [self._array(tensor) for tensor in _symbolic(read)]
        for array in inputs:
            array.last = len(self.steps)
        of_weights = not any(array.size for array in inputs)
        made = [_Array(0 if of_weights else self._size(tensor, row), row) for tensor in outputs]
        if known in _VIEWS:
            made = [inputs[0]] * len(outputs)
        for tensor, array in zip(outputs, made):
            self._name(tensor, array)
        if known in _VIEWS:
            return
        if known in _PRODUCTS:
            products = _PRODUCTS[known]
            row.add(products and products(operation, [tuple(each.shape) for each in read], outputs[0].shape))
        kept = inputs if known in _READS_INPUTS or (known in _MULTIPLIES and len(inputs) > 1) else []
        kept = made if known in _READS_OUTPUT else kept
        in_place, passes = known is None or known in _MULTIPLIES, type(operation).__name__ != "StopGradient"
        self.steps.append(_Step(row, inputs, made, kept, in_place, passes))

    def count_activations(self):
        """Adds the activations to all rows."""
        alive = sum(array.size for array in self._images)
        for number, step in enumerate(self.steps):
            size = sum(array.size for array in step.made)
            dead = {array for array in step.read if array.last == number}
            replaces = step.in_place and any(array.row and array.size == size for array in dead)  # not the images
            step.row.alive = max(step.row.alive, alive + (0 if replaces else size))
            alive += size - sum(array.size for array in (*dead, *(each for each in step.made if each.last < 0)))
        for step in reversed(self.steps):
            if step.has_gradient and any(array.has_gradient for array in step.made):
                for array in step.read:
                    array.has_gradient = True
                for array in step.kept:
                    array.kept = True
        for array in {array for _, array in self._arrays.values() if array.kept and array.row}:
            array.row.kept += array.size


def as_rematerialised(row: LayerCount) -> LayerCount:
    """A layer's row if it keeps only its output, and recomputes the rest for its gradient."""
    kept = min(row.kept, math.prod(row.output))
    return dataclasses.replace(row, kept=kept, recomputed=row.kept - kept)


@contextlib.contextmanager
def _calls_forgotten(model: keras.Model) -> Iterator[None]:
    """A context after which the layers no longer have the nodes of calls inside it."""
    layers = list(model._flatten_layers())
    before = [(nodes, len(nodes)) for each in layers for nodes in (each._inbound_nodes, each._outbound_nodes)]
    try:
        yield
    finally:
        for nodes, number in before:
            del nodes[number:]


def counted_layers(model: keras.Model) -> list[tuple[LayerCount, Any]]:
    """(row, layer) of each layer, as in `count`."""
    functional = model if getattr(model, "_nodes_by_depth", None) else getattr(model, "_functional", None)
    if functional is None:
        raise ValueError(
            f'"{model.name}" has no graph of layers to count: call or build it first, with images of a fixed size.'
        )
    with _calls_forgotten(model):
        walk = _Walk(functional)
    walk.count_activations()
    found, seen = [], set()
    for row in walk.rows.values():
        if not isinstance(row.layer, keras.layers.Layer) and not (row.flops or row.kept):
            continue  # a plain operation between layers
        own = {id(weight): weight for weight in getattr(row.layer, "weights", ()) if id(weight) not in seen}
        seen |= own.keys()
        parameters = sum(math.prod(weight.shape) for weight in own.values())
        counted = LayerCount(row.name, row.output, parameters, row.flops, row.alive, row.kept)
        found.append((as_rematerialised(counted) if getattr(row.layer, "remat", False) else counted, row.layer))
    return found


def count(model: keras.Model) -> list[LayerCount]:
    """Rows of a model's layers, in order; a nested model's are named like "vit/block_00".

    Parameters include LoRA's, operations do not; `flops` is None for custom layers that call the engine's functions.

    Args:
        model: of any family, or any functional or sequential model.

    Raises:
        ValueError: a layer without a fixed output shape, or a model that is not built.
    """
    return [row for row, _ in counted_layers(model)]


def layer_counts(
    spec: families.Spec,
    image_size: int | tuple[int, int] = 224,
    classes: int | None = 1000,
    channels: int = 3,
    remat: bool | tuple[int, ...] = False,
) -> list[LayerCount]:
    """Rows of a model's layers, in order, with their names in the model.

    Args:
        spec: spec of any family, such as `keras_vit.models.make_spec("B/16")`.
        image_size: pixels, a number or (height, width).
        classes: number of classes; None for no head.
        channels: image channels.
        remat: as in ViT and BiT.

    Raises:
        ValueError: the image is not a whole number of patches.
    """
    size = pair(image_size, "image_size")
    with without_values():
        return count(families.build(spec, image_size=size, classes=classes, channels=channels, remat=remat))


def parameters(rows: Iterable[LayerCount]) -> int:
    """Number of parameters of all rows."""
    return sum(row.parameters for row in rows)


def flops(rows: Iterable[LayerCount]) -> int:
    """Operations of one image's forward pass, without layers of unknown cost."""
    return sum(row.flops or 0 for row in rows)


def forward_activations(rows: Iterable[LayerCount]) -> int:
    """Peak number of values in one image's forward pass."""
    return max(row.alive for row in rows)


def training_activations(rows: Iterable[LayerCount]) -> int:
    """Number of values that one image's training step keeps for gradients, if all layers train."""
    rows = list(rows)
    return sum(row.kept for row in rows) + max(row.recomputed for row in rows)


def forward_flops(
    spec: families.Spec, image_size: int | tuple[int, int] = 224, channels: int = 3, classes: int | None = 1000
) -> int:
    """Operations of one image's forward pass, head included; arguments and errors as in `layer_counts`."""
    return flops(layer_counts(spec, image_size, classes, channels))


def trains(layer: Any) -> bool:
    """Whether a layer has trainable weights; plain operations have none."""
    return bool(getattr(layer, "trainable_variables", ()))


def training_flops(model: keras.Model) -> int:
    """Operations of one image's training step, for a model that `count` accepts.

    The sum of the forward pass, as much again for the gradients of trainable weights, and for those of activations down
    to the lowest trainable layer: three forward passes if all weights train, hardly more than one if only a head does.
    """
    layers = [(row.flops or 0, trains(layer)) for row, layer in counted_layers(model)]
    lowest = next((i for i, (_, learns) in enumerate(layers) if learns), len(layers))
    weights = sum(cost for cost, learns in layers if learns)
    return sum(cost for cost, _ in layers) + weights + sum(cost for cost, _ in layers[lowest:])


def run_costs(model: keras.Model, examples: int) -> dict[str, int]:
    """{"forward_flops": per image, "training_flops": for all `examples`}; {} if the model cannot be counted."""
    try:
        rows = count(model)
    except ValueError:  # shapes known only at run time
        return {}
    if any(row.flops is None for row in rows):  # a custom layer
        return {}
    return {"forward_flops": flops(rows), "training_flops": training_flops(model) * examples}
