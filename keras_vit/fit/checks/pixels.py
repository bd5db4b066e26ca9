"""The pixels that a model's inputs expect, and whether those it gets are on that scale.

Layers before a normalisation are run on constant images. What they do to pixels is a factor and an offset per channel;
behind layers that learn, or do something else, the range is unknown.
"""

import contextlib
import contextvars
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.fit import symbolic
from keras_vit.fit.checks.marked import filled_in
from keras_vit.layers.embedding.palette_encoder import PaletteEncoder
from keras_vit.layers.normalization import PixelNormalization

_PIXEL_STD = 10.0  # pixels 0..255 have a larger standard deviation
_NORMALISED = (1 / 255, 2 / 255)  # the factors from pixels 0..255 to [0, 1] and [-1, 1]
_CONSTANTS = np.array([0.0, 1.0, 255.0])  # the pixels of images that show what layers do
_MILD = ("RandomErasing", "RandomElasticTransform", "RandomGaussianBlur")  # a wrong `value_range` does little
_NORMALISING = (PixelNormalization, PaletteEncoder)


@dataclasses.dataclass(frozen=True)
class Path:
    """The effect of layers on an input's pixels x: factor * x + offset.

    Attributes:
        place: number of the input.
        factor, offset: a scalar, or (c,) at the end of the path.
        layers: names of the layers that change the range.
        declared: (name, low, high) of each layer with a `value_range`, as numbers at the end of the path.
    """

    place: int
    factor: np.ndarray = dataclasses.field(default_factory=lambda: np.asarray(1.0))
    offset: np.ndarray = dataclasses.field(default_factory=lambda: np.asarray(0.0))
    layers: tuple[str, ...] = ()
    declared: tuple[tuple[str, float, float], ...] = ()

    @property
    def rescales(self) -> bool:
        """Whether the range at its end is another one."""
        return not (np.allclose(self.factor, 1, 1e-6) and np.allclose(self.offset, 0, atol=1e-6))

    def equals(self, other: "Path") -> bool:
        """Whether another path does the same to the same input."""
        same = np.array_equal(self.factor, other.factor) and np.array_equal(self.offset, other.offset)
        return self.place == other.place and same


def _span(low, high, factor, offset) -> tuple[float, float]:
    """The smallest and largest of factor * x + offset, for x from low to high; each a scalar or (c,)."""
    if np.ndim(low) and np.ndim(factor) and np.shape(low) != np.shape(factor):  # channels were dropped, or repeated
        low, high = low.min(), high.max()
    ends = np.stack(np.broadcast_arrays(factor * low + offset, factor * high + offset))
    return float(ends.min()), float(ends.max())


@dataclasses.dataclass(frozen=True)
class Normalisation:
    """A model's normalisation of an input, (x - mean) / std, each (c,) or a scalar, and the path to it."""

    mean: np.ndarray
    std: np.ndarray
    path: Path = dataclasses.field(default_factory=lambda: Path(0))

    def equals(self, other: "Normalisation") -> bool:
        """Whether another normalisation is the same, of the same input."""
        same = np.array_equal(self.mean, other.mean) and np.array_equal(self.std, other.std)
        return same and self.path.equals(other.path)

    @property
    def of_bytes(self) -> bool:
        """Whether it is for pixels 0..255, not for smaller values."""
        return self.std.max() >= _PIXEL_STD

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return not self.mean.any() and bool((self.std == 1).all())

    @property
    def there(self) -> str:
        """The pixels that it expects, in words."""
        return "pixels 0..255" if self.of_bytes else "normalised pixels" if self.is_identity else "pixels in [0, 1]"

    @property
    def of_input(self) -> tuple[Any, Any]:
        """(mean, std) on the scale of the input, each a number or a list of one per channel."""
        factor, offset = self.path.factor, self.path.offset
        if not self.path.rescales:
            return self.mean.tolist(), self.std.tolist()
        return ((self.mean - offset) / factor).tolist(), (self.std / np.abs(factor)).tolist()

    def seen(self, low: Any, high: Any) -> tuple[float, float]:
        """The range at the normalisation of images with channels between low and high, each (c,)."""
        return _span(low, high, self.path.factor, self.path.offset)

    @property
    def expected(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(low, high) of the input, each a scalar or (c,), which the model was made for.

        None if it normalises nothing, (x - 0) / 1: the images are to be normalised in a way unknown here.
        """
        low, high = 0.0, 255.0 if self.of_bytes else 1.0
        factor, offset = self.path.factor, self.path.offset
        if self.is_identity:  # layers before it normalise
            if not self.path.rescales:
                return None
            return np.asarray(0.0), np.asarray(255.0 if np.abs(1 / factor).max() >= _PIXEL_STD else 1.0)
        ends = (low - offset) / factor, (high - offset) / factor
        return np.minimum(*ends), np.maximum(*ends)

    @property
    def is_double(self) -> bool:
        """Whether layers before it normalise pixels 0..255 as well: no images have the range `expected`."""
        factor = np.abs(self.path.factor)
        if self.is_identity or not self.of_bytes or 255 * factor.max() > _PIXEL_STD:
            return False
        usual = any(np.allclose(factor, each, rtol=4e-3) for each in _NORMALISED)
        return usual or bool(np.max(self.path.offset) < -1e-3)  # 16-bit images have a small factor and start at 0


PIXELS = Normalisation(np.array([127.5]), np.array([127.5]))  # of 0..255 to [-1, 1]


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What layers make of images with the constant pixels _CONSTANTS.

    Attributes:
        images: (3, ..., c).
        layers: names of the layers that change the range.
        declared: (name, value_range, its input's factor and offset) of each layer with a `value_range`.
        hidden_by: name of a layer behind which the pixels are unknown, or None.
    """

    images: Any
    layers: tuple[str, ...] = ()
    declared: tuple[tuple[str, Any, Any], ...] = ()
    hidden_by: str | None = None

    def affine(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(factor, offset) from the pixels of the input to those here, numbers or (c,); None if they are not affine."""
        images = keras.ops.convert_to_numpy(keras.ops.cast(self.images, "float32")).astype("float64")
        zero, one, most = np.median(images.reshape(3, -1, images.shape[-1]), axis=1)  # padding leaves the median
        factor = (most - zero) / 255
        if not (np.abs(zero + factor - one) <= 0.01 * np.abs(most - zero)).all():
            return None
        effect = np.stack([_rounded(factor), _rounded(zero)])
        return tuple(effect[:, 0] if (effect == effect[:, :1]).all() else effect)

    def through(self, operation, args, kwargs) -> "list[_Seen]":
        """The outputs of an operation, or of a layer, on these images."""
        name, is_layer = operation.name, isinstance(operation, keras.Layer)
        hidden = dataclasses.replace(self, hidden_by=self.hidden_by or name)
        if self.hidden_by or is_layer and _learns(operation):
            return [hidden]
        try:
            found = operation(*args, **(kwargs | {"training": False} if is_layer else kwargs))
            outputs = [dataclasses.replace(self, images=images) for images in keras.tree.flatten(found)]
            before, after = self.affine(), outputs[0].affine()
        except Exception:  # any layer may stand here, for other images than these
            return [hidden]
        if before is None or after is None:
            return [hidden]
        layers = self.layers if _same_range(before, after) else (*self.layers, name)
        followed = operation._flatten_layers() if is_layer and before[0].all() else ()
        parts = [part for part in followed if hasattr(part, "value_range")]
        declared = [(part.name, part.value_range, before) for part in parts if type(part).__name__ not in _MILD]
        return [dataclasses.replace(each, layers=layers, declared=(*self.declared, *declared)) for each in outputs]


def _rounded(numbers) -> np.ndarray:
    """Numbers to six digits: layers compute in float32."""
    return np.array([float(f"{number:.6g}") for number in np.atleast_1d(numbers)])


def _same_range(a, b) -> bool:
    """Whether two (factor, offset) of any channels reach from the same pixels to the same."""
    return all(np.allclose((x.min(), x.max()), (y.min(), y.max()), 1e-4, 1e-4) for x, y in zip(a, b))


def _learns(layer) -> bool:
    """Whether a layer has weights, other than the statistics of keras.layers.Normalization."""
    fixed = [part for part in layer._flatten_layers() if isinstance(part, keras.layers.Normalization)]
    return len(layer.weights) > sum(len(part.weights) for part in fixed)


def _normalises(layer) -> bool:
    """Whether a layer is a normalisation of pixels, or contains one."""
    return any(isinstance(part, _NORMALISING) for part in layer._flatten_layers())


def _graph(operation):
    """The functional model that an operation runs, or None."""
    if isinstance(operation, keras.layers.TimeDistributed):
        operation = operation.layer
    if isinstance(operation, keras.Sequential):
        operation = operation._functional
    return operation if isinstance(operation, keras.Model) and hasattr(operation, "_nodes_by_depth") else None


def _constant(inputs, place) -> dict[int, _Seen]:
    """{id of an input of a model: its images}: constant ones for number `place`, zeros for the others.

    Texts are hidden.
    """
    found = {}
    for i, tensor in enumerate(inputs):
        if tensor.dtype == "string":
            found[id(tensor)] = _Seen(None, hidden_by=tensor.name)
            continue
        shape = [3, *(side or 224 for side in tensor.shape[1:])]
        dtype = "float32" if "float" in tensor.dtype else tensor.dtype
        pixels = (_CONSTANTS * (i == place)).astype(dtype).reshape([3] + [1] * len(shape[1:]))
        found[id(tensor)] = _Seen(np.broadcast_to(pixels, shape))
    return found


def _see(tensors, seen: dict[int, _Seen]) -> list[_Seen]:
    """What is seen of symbolic tensors, {id: _Seen} of those before them, to which it is added."""
    for node in symbolic.nodes(tensors, seen):
        sources = [seen[id(tensor)] for tensor in node.input_tensors]
        first = next((source for source in sources if source.hidden_by), sources[0])
        args, kwargs = node.arguments.fill_in({key: each.images for key, each in seen.items()})
        outputs = first.through(node.operation, args, kwargs)
        outputs *= len(node.output_tensors) // len(outputs)
        seen |= {id(tensor): output for tensor, output in zip(node.output_tensors, outputs)}
    return [seen[id(tensor)] for tensor in tensors]


def _found(graph, seen: dict[int, _Seen], place) -> Iterator[Normalisation | str]:
    """The normalisations in a functional model with these inputs, {id: _Seen}; a layer's name for a hidden one."""
    for node in [node for level in graph._nodes_by_depth.values() for node in level]:
        layer = node.operation
        if not isinstance(layer, keras.Layer) or not _normalises(layer):
            continue
        sources, inner = _see(node.input_tensors, seen), _graph(layer)
        hidden = next((source.hidden_by for source in sources if source.hidden_by), None)
        if hidden:
            yield hidden
        elif inner is not None and len(inner.inputs) == len(sources):
            if isinstance(layer, keras.layers.TimeDistributed):
                sources = [dataclasses.replace(each, images=each.images[:, 0]) for each in sources]
            yield from _found(inner, {id(tensor): each for tensor, each in zip(inner.inputs, sources)}, place)
        elif isinstance(layer, _NORMALISING):
            yield _normalisation(layer, sources[0], place)
        elif not type(layer).__module__.startswith("keras_vit."):  # which check their layers
            yield layer.name


def _normalisation(layer, seen, place) -> Normalisation:
    """The normalisation by a layer of what is seen of constant images."""
    path = Path(place)
    if seen.layers or seen.declared:
        factor, offset = seen.affine()
        declared = tuple(_at_end(each, factor, offset) for each in seen.declared)
        path = Path(place, factor, offset, seen.layers, declared)
    if isinstance(layer, PaletteEncoder):
        return dataclasses.replace(PIXELS, path=path)
    return Normalisation(np.asarray(layer.mean), np.asarray(layer.std), path)


def _at_end(declared, factor, offset) -> tuple[str, float, float]:
    """A layer's declared range, from the (factor, offset) of its input to those of a later place."""
    name, value_range, before = declared
    low, high = ((float(np.min(end)) - before[1]) / before[0] for end in value_range)
    return name, *_span(low, high, factor, offset)


def _eagerly():
    """A context outside the graph of TensorFlow that is being traced."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.init_scope()


def normalisations(model: keras.Model) -> tuple[dict[int, list[Normalisation]], str | None]:
    """({number of an input: its normalisations}, name of a layer that hides one from the inputs, or None)."""
    graph, hidden = _graph(model), None
    of_inputs: dict[int, list[Normalisation]] = {}
    for place, image in enumerate(graph.inputs if graph is not None else ()):
        if len(image.shape) not in (4, 5):
            continue
        with _eagerly():
            found = list(_found(graph, _constant(graph.inputs, place), place))
        for one in found:
            if isinstance(one, str):
                hidden = hidden or one
            elif one.path.factor.any():
                others = of_inputs.setdefault(place, [])
                others += [one] if not any(map(one.equals, others)) else []
    return of_inputs, hidden


def doubly_normalised(model: keras.Model, tensors: Sequence[keras.KerasTensor]) -> Normalisation | None:
    """The first normalisation of a model that repeats one of the layers before `tensors`, its symbolic inputs, or None.

    Its path starts at an input of those layers.
    """
    graph, inputs = _graph(model), symbolic.sources(tensors)
    if graph is None or all(any(tensor is each for each in inputs) for tensor in tensors):
        return None
    with _eagerly():
        for place in range(len(inputs)):
            sources = _see(tensors, _constant(inputs, place))
            for one in _found(graph, {id(tensor): each for tensor, each in zip(graph.inputs, sources)}, place):
                if isinstance(one, Normalisation) and one.is_double:
                    return one
    return None


def normalisation(model: keras.Model) -> Normalisation | None:
    """The first normalisation of a model's first input, or None if it has none, or none that can be followed."""
    return next(iter(normalisations(model)[0].get(0, ())), None)


@dataclasses.dataclass(frozen=True)
class InputRange:
    """The pixels that a model expects: pixels 0..255 times a factor plus an offset, each a scalar or (c,)."""

    factor: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, model: keras.Model) -> "InputRange":
        """A model's: 0..255 if its normalisation says so or is unknown, or if model.check_pixels is False."""
        return cls.from_scale(normalisation(model) if getattr(model, "check_pixels", True) else None)

    @classmethod
    def known(cls, model: keras.Model) -> "InputRange":
        """A model's; ValueError for one that normalises nothing, since its range is unknown."""
        scale = normalisation(model)
        if scale is not None and scale.expected is None and getattr(model, "check_pixels", True):
            raise ValueError(
                f'"{model.name}" has mean 0 and std 1, so that the scale of its images is unknown. Make or load it with'
                " the mean and std of its pixels, on the 0..255 scale. If it takes pixels 0..255, set"
                " model.check_pixels = False."
            )
        return cls.of(model)

    @classmethod
    def from_scale(cls, scale: Normalisation | None) -> "InputRange":
        """The range that a normalisation expects of its input; 0..255 if it says nothing."""
        low, high = (scale and scale.expected) or (np.asarray(0.0), np.asarray(255.0))
        return cls(_rounded((high - low) / 255), np.round(low, 6))

    @property
    def is_bytes(self) -> bool:
        """Whether it is 0..255."""
        return bool(np.all(self.factor == 1) and np.all(self.offset == 0))

    def __str__(self):
        if self.is_bytes:
            return "0..255"
        ends = np.stack([np.min(self.offset), np.max(self.offset + 255 * self.factor)])
        return f"in [{ends[0]:.6g}, {ends[1]:.6g}]"

    def of_bytes(self, pixels: Any) -> Any:
        """Pixels 0..255 (..., c), an array or TensorFlow tensor, in this range: float32; as they are for 0..255."""
        if self.is_bytes:
            return pixels
        if hasattr(pixels, "numpy") or hasattr(pixels, "graph"):
            import tensorflow as tf

            return tf.cast(pixels, tf.float32) * self.factor.astype("float32") + self.offset.astype("float32")
        return (np.asarray(pixels) * self.factor + self.offset).astype("float32")

    def to_bytes(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels of this range (..., c) as pixels 0..255, uint8; those of 0..255 as they are."""
        if self.is_bytes:
            return pixels
        return np.clip(np.round((pixels - self.offset) / self.factor), 0, 255).astype("uint8")


_LARGEST_NORMALISED = 3.0  # standard deviations
_LEAST_CONTRAST = 6 / 255  # standard deviations between black and the largest pixel
_LARGEST_BYTE = 4 * 255.0  # with room for filters that overshoot
_LOWEST_BYTE = -64.0


def may_be_wrong(dtype: Any, scale: Normalisation) -> bool:
    """Whether a TensorFlow dtype allows pixels on another scale: bytes do not (0 and 1 are never stored so)."""
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        return False
    return dtype.is_bool or dtype.size > 1 or scale.path.rescales or not scale.of_bytes


def scale_problems(
    scale: Normalisation, low: Any, high: Any, floating: bool, largest: Any = np.inf
) -> Iterator[tuple[Any, str, str]]:
    """(whether it applies, message, remedy) of each possible fault of pixels.

    Args:
        low, high: their range where the model normalises them, numbers or tensors.
        floating: whether they may be fractions there.
        largest: the largest magnitude that the input may have, a number or tensor.
    """
    step = float(np.abs(scale.path.factor).max())
    flat = (low != high) & (largest * step < _LEAST_CONTRAST * float(scale.std.min()))
    finite = (low - low == 0) & (high - high == 0)
    yield ~finite, "contain values that are not finite", "Find out where they come from."
    if not scale.of_bytes:
        theirs = f"This model's mean {scale.mean.tolist()} and std {scale.std.tolist()} are for smaller values"
        yield (
            high > float((scale.mean + 10 * _LARGEST_NORMALISED * scale.std).max()),
            "look like pixels 0..255",
            f"{theirs}: divide the images by 255, or load the model with mean and std on the 0..255 scale.",
        )
        yield flat, "have almost no contrast", "Were they divided by 255 twice?"
        return
    ours = "This model expects pixels 0..255 and normalises them itself."
    if floating:
        yield (
            (low != high) & (low >= -_LARGEST_NORMALISED) & (high <= _LARGEST_NORMALISED),
            "look normalised",
            f"{ours} Multiply images in [0, 1] by 255, or undo the normalisation.",
        )
    else:
        yield (low == 0) & (high == 1), "contain only 0 and 1", f"{ours} Multiply them by 255."
    yield high > _LARGEST_BYTE, "look like 16-bit images", f"{ours} Divide images in 0..65535 by 257."
    yield low < _LOWEST_BYTE, "have negative pixels", f"{ours} Add what was subtracted."
    if scale.path.rescales:
        yield flat, "have almost no contrast", ours


def _layer_names(scale):
    """The layers that change the range before a normalisation, in words."""
    return f"the layer{'s' if len(scale.path.layers) > 1 else ''} {', '.join(scale.path.layers)}"


def _range_message(scale, what, fix):
    """The message for images on another scale, with {} for their ends, then for those where the model normalises."""
    escape = "If they are right, set model.check_pixels = False."
    if not scale.path.rescales:
        return f"The images {what}: the values of the first batch are in [{{}}, {{}}]. {fix} {escape}"
    names = _layer_names(scale)
    instead = "" if scale.is_double else f", or give images {InputRange.from_scale(scale)}"
    return (
        f"The images {what} behind {names} of the model: the values of the first batch are in [{{}}, {{}}], and in"
        f" [{{}}, {{}}] where the model normalises them. Expected there: {scale.there}."
        f" Leave {names} out{instead}. {escape}"
    )


def warn_of_double(model: keras.Model, tensors: Sequence[keras.KerasTensor]) -> None:
    """Warns if layers before the symbolic inputs of a model normalise pixels that the model normalises itself."""
    scale = doubly_normalised(model, tensors)
    if scale is not None:
        warnings.warn(
            f'Leave {_layer_names(scale)} out: "{model.name}" normalises pixels 0..255 itself. keras_vit.Model(inputs,'
            " outputs) and model.with_head(layer) check their data, a plain keras.Model or Sequential only in graphs of"
            f' TensorFlow without XLA. If the pixels are right, set check_pixels = False on "{model.name}" before you'
            " call it.",
            stacklevel=4,
        )


def check_range(images: np.ndarray, scale: Normalisation) -> None:
    """Refuses images (b, h, w, c) on another scale than the model's normalisation: ValueError with their range."""
    one_of_bytes = images.dtype == np.uint8 and len(images) == 1  # which may be black
    if not images.size or images.dtype.kind not in "biuf" or one_of_bytes and not scale.path.rescales:
        return
    floating, rescaled = images.dtype.kind == "f", scale.path.rescales
    axes = tuple(range(images.ndim - 1)) if rescaled else None
    low, high = images.min(axes), images.max(axes)
    ends = float(low.min()), float(high.max())
    there = scale.seen(low.astype("float64"), high.astype("float64")) if rescaled else ends
    largest = max(0 if floating else 255, *map(abs, ends))  # bytes may be dark
    lowest, highest = map(np.float64, there)
    for wrong, what, fix in scale_problems(scale, lowest, highest, floating or rescaled, largest):
        if wrong:
            raise ValueError(_range_message(scale, what, fix).format(*(f"{end:.3g}" for end in (*ends, *there))))


def assert_range(images: Any, scale: Normalisation) -> list:
    """check_range as TensorFlow operations; in a graph they must run before the images are used."""
    import tensorflow as tf

    floating, rescaled, images = images.dtype.is_floating, scale.path.rescales, tf.cast(images, "float32")
    low, high = tf.reduce_min(images), tf.reduce_max(images)
    lowest, highest = _seen(images, scale.path) if rescaled else (low, high)
    largest = tf.maximum(tf.maximum(tf.abs(low), tf.abs(high)), 0.0 if floating else 255.0)  # bytes may be dark
    return [
        tf.debugging.Assert(~wrong, [filled_in(_range_message(scale, what, fix), low, high, lowest, highest)])
        for wrong, what, fix in scale_problems(scale, lowest, highest, floating or rescaled, largest)
    ]


def _seen(images, path):
    """Normalisation.seen of a TensorFlow tensor (b, ..., c)."""
    import tensorflow as tf

    factor, offset = (tf.constant(np.atleast_1d(x), "float32") for x in (path.factor, path.offset))
    channels = images.shape[-1] if images.shape[-1] in (factor.shape[0], None) else None
    axes = list(range(images.shape.rank - (channels is not None)))
    ends = [factor * end(images, axes) + offset for end in (tf.reduce_min, tf.reduce_max)]
    return tf.reduce_min(ends), tf.reduce_max(ends)


_CHECKED = contextvars.ContextVar("whether the images of this call are checked already", default=False)


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """A context in which models do not check their images: `fit` has, or the model around them."""
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def checked_images(model: keras.Model, images: Any) -> Any:
    """The images of a model's call in training; in a graph of TensorFlow, those on a wrong scale end the step.

    XLA ignores assertions: on GPUs and TPUs such a model is not checked, nor on JAX.
    """
    if keras.backend.backend() != "tensorflow" or _CHECKED.get():
        return images
    import tensorflow as tf

    scale = None if tf.executing_eagerly() or not tf.is_tensor(images) else normalisation(model)
    if scale is None or scale.is_identity or not may_be_wrong(images.dtype, scale):
        return images
    with tf.control_dependencies(assert_range(images, scale)):
        return tf.identity(images)
