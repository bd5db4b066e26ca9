"""A class for every pixel of images of any size, for `SegmentationModel.segment`."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io import mask_pictures
from keras_vit.io.suggest import check_known
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import Reader, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing, preprocessing_text
from keras_vit.segmentation.sliding_windows import averaged, resized, run_windows, windows

if TYPE_CHECKING:
    from PIL import Image

WAYS = ("whole", "slide")
LARGEST = 2**25  # pixels of an image that windows move over


class Share(NamedTuple):
    """A class with its name, its share of an image's pixels in (0, 1] and its number."""

    name: str
    share: float
    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class Segmentation:
    """A class for every pixel of an image.

    Attributes:
        classes: (h, w) class numbers, uint8, or uint16 with 255 classes or more; h, w are the upright image's.
        names: one per class.
        colors: (red, green, blue) per class.
        image: the image, upright: pixels (h, w, c) uint8.
        probabilities: (h, w, k) float32, or None unless requested.
    """

    classes: np.ndarray
    names: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]
    image: np.ndarray
    probabilities: np.ndarray | None = None

    @property
    def shares(self) -> tuple[Share, ...]:
        """The classes in the image, largest first."""
        counts = np.bincount(self.classes.reshape(-1), minlength=len(self.names))
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        return tuple(Share(self.names[i], float(counts[i] / self.classes.size), int(i)) for i in order)

    def picture(self, alpha: float = 0.5, legend: bool = True) -> "Image.Image":
        """The image under its classes' colours, with a legend: a Pillow image, to show or save.

        Args:
            alpha: share of the colours, 0 to 1.
            legend: whether to name the colours below.
        """
        from PIL import Image

        drawn = mask_pictures.overlay(self.image, self.classes, self.colors, alpha)
        if legend:
            drawn = mask_pictures.with_legend(drawn, self.names, self.colors, self.classes)
        return Image.fromarray(drawn)

    def png(self) -> bytes:
        """The class numbers as a PNG file, which viewers show in the classes' colours."""
        return mask_pictures.mask_png(self.classes, self.colors)

    def __repr__(self):
        height, width = self.classes.shape
        found = ", ".join(f"{name} {share:.1%}" for name, share, _ in self.shares[:5])
        return f"Segmentation({height} x {width} pixels: {found}{', ...' if len(self.shares) > 5 else ''})"


def names_and_colors(model) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]:
    """A model's class names, or numbers as text, and its colours, or the default palette."""
    names = tuple(model.class_names or map(str, range(model.classes)))
    colors = getattr(model, "colors", None)
    return names, mask_pictures.palette(model.classes) if colors is None else tuple(map(tuple, colors))


@dataclasses.dataclass(frozen=True)
class Segmenter:
    """A model as a function from images of any kind and size to `Segmentation`s; see SegmentationModel.segment.

    Raises:
        ValueError: for arguments out of range.
    """

    model: Any
    window: str = "whole"
    overlap: float = 1 / 3
    scale: float | None = None
    flips: bool = False
    batch_size: int = 8
    probabilities: bool = False
    function: Callable[[np.ndarray], np.ndarray] | None = None  # pixels 0..255 -> logits, instead of the model's

    def __post_init__(self):
        if self.model.classes == 1:
            raise ValueError(
                f'"{self.model.name}" has one output per pixel, and no classes to choose from: use'
                " model.predict(model.preprocess(images)), (b, height, width, 1)."
            )
        integer(self.batch_size, "batch_size")
        check_known(self.window, "window", WAYS)
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap is a share of a window, from 0 up to but not 1, got {self.overlap!r}.")
        if self.scale is not None and self.window != "slide":
            raise ValueError('scale is for window="slide"; "whole" resizes the image to the model\'s size.')
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale is a positive factor of the image's sides, got {self.scale!r}.")

    def _logits(self, pixel_range) -> Callable[[np.ndarray], np.ndarray]:
        """Pixels 0..255 (b, h, w, c) uint8 -> logits (b, h, w, k) float32."""
        if self.function is not None:
            return self.function

        def logits(pixels):
            outputs = self.model.predict_on_batch(pixel_range.of_bytes(pixels))
            outputs = outputs["logits"] if isinstance(outputs, dict) else outputs
            return np.asarray(outputs, "float32")

        return logits

    def _whole(self):
        """A function of an image's pixels (h, w, c) to those of the model's size: all of the image, resized."""
        preprocess = parse_preprocessing(whole_text(self.model))
        return lambda image: preprocess.image(image).numpy()

    def _scaled(self, image, name):
        """An image's pixels (h', w', c) for windows to move over: at least the model's size."""
        sides, size = np.array(image.shape[:2]), np.array(self.model.image_size)
        factor = (size / sides).max() if self.scale is None else self.scale
        height, width = np.maximum(np.round(sides * factor).astype(int), size).tolist()
        if height * width > LARGEST:
            raise ValueError(
                f"{name}: {height} x {width} pixels are too many for sliding windows, {LARGEST:,} at most: pass a"
                ' smaller scale, or window="whole".'
            )
        return resized_image(image, (height, width))

    def __call__(self, images: Iterable[tuple[Any, str]]) -> Iterator[Segmentation]:
        """The Segmentations of (image, its name in messages), in order; reads images as it goes.

        Raises:
            FileNotFoundError: for a missing file.
            ValueError: for anything but an image, which `name` names.
        """
        read = Reader(self.model)
        return self.of_pixels((read(item, name), name) for item, name in images)

    def of_pixels(self, images: Iterable[tuple[np.ndarray, str]]) -> Iterator[Segmentation]:
        """The same of (pixels 0..255 (h, w, c) uint8 in the model's channels, name)."""
        whole, size, pending = self._whole(), tuple(self.model.image_size), {}
        names, colors = names_and_colors(self.model)
        dtype = "uint8" if len(names) < 255 else "uint16"

        def stream():
            for number, (image, name) in enumerate(images):
                scaled = self._scaled(image, name) if self.window == "slide" else whole(image)
                pending[number] = image, scaled.shape[:2]
                for window in windows(scaled, size, self.overlap, self.flips):
                    yield number, window

        found = run_windows(stream(), self._logits(InputRange.known(self.model)), self.batch_size)
        for number, group in _by_image(found):
            image, shape = pending.pop(number)
            rows = resized(averaged(group, shape, size), shape, image.shape[:2])
            classes, shares = _classes(rows, image.shape[:2], len(names), dtype, self.probabilities)
            yield Segmentation(classes, names, colors, image, shares)


def stretches(text: str) -> bool:
    """Whether a preprocessing shows the whole image, resized to one size, so that a mask can be resized back."""
    from keras_vit.data.ops.op_registry import OPS, parse_call

    calls = [parse_call(part.strip()) for part in text.split("|")]
    if not calls[0] or calls[0][0] != "decode":
        return False
    moving = [(name, args, kwargs) for name, args, kwargs in filter(None, calls) if "mask" in OPS[name].keys]
    return all(
        name == "decode" or (name == "resize" and (len(args) > 1 or kwargs.get("width")))
        for name, args, kwargs in moving
    )


def whole_text(model) -> str:
    """A model's preprocessing text, or a resize to its size if that one leaves out parts of the image."""
    text, (height, width) = preprocessing_text(model), model.image_size
    # Pixels outside of a central crop, for example, would get no class.
    return text if stretches(text) else f"decode({model.channels})|resize({height}, {width})"


def resized_image(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Pixels (h, w, c) uint8 resized to (height, width), as the op `resize` does."""
    if image.shape[:2] == tuple(size):
        return image
    return parse_preprocessing(f"resize({size[0]}, {size[1]})").image(image).numpy()


def _by_image(found):
    """(number, its (window, outputs) lazily) of each image, from (number, window, outputs) in order."""
    for number, group in itertools.groupby(found, key=lambda each: each[0]):
        yield number, (each[1:] for each in group)


def _softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _classes(rows, shape, count, dtype, with_probabilities):
    """(classes (h, w), probabilities (h, w, k) or None) of consecutive rows of logits (r, w, k)."""
    classes, top = np.empty(shape, dtype), 0
    probabilities = np.empty((*shape, count), "float32") if with_probabilities else None
    for part in rows:
        classes[top : top + len(part)] = part.argmax(-1)
        if probabilities is not None:
            probabilities[top : top + len(part)] = _softmax(part)
        top += len(part)
    return classes, probabilities


def segment(model, x: Any, verbose: bool | int | str = "auto", **options: Any) -> Segmentation | list[Segmentation]:
    """A class for every pixel of one image or a list; see SegmentationModel.segment."""
    segmenter = Segmenter(model, **options)
    return each_answer(segmenter, x, verbose, segmenter.batch_size)
