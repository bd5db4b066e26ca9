"""Objects in images of any size, for `DetectionModel.detect`."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from keras_vit.detection.tiles import IOU, LIMIT, Tiling, Window, merged, over_windows
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.box_pictures import Mark, draw, enlarged
from keras_vit.io.mask_pictures import drawable, palette
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import ReadsImages, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing, preprocessing_text
from keras_vit.segmentation.segment import stretches, whole_text

if TYPE_CHECKING:
    from PIL import Image


class Detection(NamedTuple):
    """An object's class name, its score in (0, 1], and its box: top, left, bottom, right in pixels."""

    name: str
    score: float
    box: tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Detections:
    """The objects in an image, highest score first.

    Attributes:
        boxes: (d, 4) float32, top, left, bottom, right in pixels of the upright image.
        scores: (d,) float32.
        labels: (d,) int32, class numbers.
        class_names: one per class.
        image: the image, upright: pixels (h, w, c) uint8.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    image: np.ndarray

    _of_objects: ClassVar[tuple[str, ...]] = ("boxes", "scores", "labels")

    @property
    def names(self) -> tuple[str, ...]:
        """Each object's class name."""
        return tuple(self.class_names[label] for label in self.labels)

    def __len__(self):
        return len(self.scores)

    def __iter__(self) -> Iterator[Detection]:
        for name, score, box in zip(self.names, self.scores.tolist(), self.boxes.tolist()):
            yield Detection(name, score, tuple(box))

    @overload
    def __getitem__(self, which: int) -> Detection: ...

    @overload
    def __getitem__(self, which: slice | np.ndarray) -> Self: ...

    def __getitem__(self, which):
        """An object by its number, `found[0]`, or some of them, `found[:5]` or `found[found.scores > 0.5]`."""
        chosen = {name: getattr(self, name)[which] for name in self._of_objects}
        if isinstance(which, (int, np.integer)):
            return Detection(self.names[which], float(chosen["scores"]), tuple(chosen["boxes"].tolist()))
        return dataclasses.replace(self, **chosen)

    def picture(self) -> "Image.Image":
        """The image, enlarged if it is small, with boxes, names and scores in the classes' colours: a Pillow image, to
        show or save.
        """
        colors = palette(len(self.class_names))
        return self._drawn(self.image, [colors[label] for label in self.labels])

    def _drawn(self, image, colors):
        """`picture` on `image`, with a colour for each object."""
        from PIL import Image

        words = [drawable(name, number) for number, name in enumerate(self.class_names)]
        sides = np.tile(np.array(self.image.shape[:2], "float32"), 2)
        marks = [
            Mark(box / sides, f"{words[label]} {score:.2f}", color)
            for box, score, label, color in zip(self.boxes, self.scores, self.labels, colors)
        ]
        return Image.fromarray(draw(enlarged(image), marks[::-1]))  # the best last, over the others

    def __repr__(self):
        height, width = self.image.shape[:2]
        found = ", ".join(f"{name} {score:.0%}" for name, score, _ in list(self)[:5])
        return f"{type(self).__name__}({height} x {width} pixels: {found or 'none'}{', ...' if len(self) > 5 else ''})"


def class_names(model: Any) -> tuple[str, ...]:
    """A detector's class names, or numbers as text."""
    return tuple(model.class_names or map(str, range(model.classes)))


def letterboxes(text: str) -> bool:
    """Whether a preprocessing text pads images to keep their aspect ratio."""
    return any(part.strip().startswith("letterbox(") for part in text.split("|"))


def shown_text(model: Any) -> str:
    """A model's preprocessing text, or a resize to its size if that one leaves out parts of the image."""
    text = preprocessing_text(model)
    without = "|".join(part for part in text.split("|") if not letterboxes(part))
    return text if stretches(without) else whole_text(model)


def in_image(text: str, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Boxes (d, 4) found in an image of this size after the preprocessing `text`, as fractions of the image."""
    if not letterboxes(text):
        return boxes
    from keras_vit.data.ops.frame import frame, to_original

    return np.clip(to_original(boxes, frame(text, *size)), 0.0, 1.0)


def visible(boxes: np.ndarray) -> np.ndarray:
    """Which boxes (d, 4) have an area, (d,): others lie outside of the image, in the padding of a letterbox."""
    return np.asarray((boxes[:, 2:] > boxes[:, :2]).all(-1))


def of_windows(
    found: list[tuple[Window, tuple[np.ndarray, ...]]],
    size: tuple[int, int],
    limit: int = LIMIT,
    iou: float | None = None,
    across_classes: bool = False,
) -> tuple[np.ndarray, ...]:
    """Boxes (d, 4), scores (d,) and labels (d,) in an image of this size, from those of its windows, in pixels of each.

    Args:
        found: (window, (boxes, scores, labels)) of each.
        size: (height, width).
        limit, iou, across_classes: as in `merged`; None for its iou.
    """
    if len(found) == 1:
        return found[0][1]
    boxes = np.concatenate([own + np.tile(window[:2], 2).astype("float32") for window, (own, _, _) in found])
    scores, labels = (np.concatenate([answer[i] for _, answer in found]) for i in (1, 2))
    windows = np.repeat([window for window, _ in found], [len(answer[1]) for _, answer in found], axis=0)
    kept = merged(boxes, scores, labels, windows, size, limit, IOU if iou is None else iou, across_classes)
    return boxes[kept], scores[kept], labels[kept]


@dataclasses.dataclass(frozen=True)
class Finder(ReadsImages):
    """A model as a function from images of any kind and size to `Detections`; see DetectionModel.detect.

    Attributes:
        model: a DetectionModel.
        batch_size: images, or tiles, at once.
        options: of `model.detections`.
        tiling: tiles of large images; None to see each image as a whole.
    """

    model: Any
    batch_size: int = 8
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    tiling: Tiling | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        batch_size: int = 8,
        threshold: float | None = None,
        limit: int | None = None,
        tiles: int | tuple[int, int] | None = None,
        tile_overlap: float = 0.2,
        **options: Any,
    ) -> "Finder":
        """A Finder by the arguments of `DetectionModel.detect`, with its defaults.

        Raises:
            ValueError: for an argument out of range.
        """
        tiling = None if tiles is None else Tiling(tiles, tile_overlap)
        threshold = model.score_threshold if threshold is None else threshold
        limit = (LIMIT if tiling else 100) if limit is None else limit
        return cls(model, batch_size, {"threshold": threshold, "limit": limit, **options}, tiling)

    def __post_init__(self):
        integer(self.batch_size, "batch_size")
        self.model.finder(**self.options)  # refuses options out of range

    def of_pixels(self, images: Iterable[np.ndarray]) -> Iterator[Detections]:
        """The Detections of pixels 0..255 (h, w, c) uint8 in the model's channels, in order."""
        names, text = class_names(self.model), shown_text(self.model)
        find = functools.partial(self._found, text, parse_preprocessing(text), InputRange.known(self.model))
        for image, found in over_windows(images, self.tiling, find, self.batch_size):
            boxes, scores, labels = self._of_image(image.shape[:2], found)
            yield Detections(boxes, scores, labels, names, image)

    def _found(self, text, preprocess, pixel_range, windows):
        """Boxes (d, 4) in pixels, scores (d,) and labels (d,) in each window's pixels (h, w, c)."""
        pixels = np.stack([preprocess.image(window).numpy() for window in windows])
        found = self.model.detections(pixel_range.of_bytes(pixels), **self.options)
        for window, boxes, scores, labels in zip(windows, *map(np.asarray, found)):
            kept = labels >= 0
            boxes, scores, labels = in_image(text, boxes[kept], window.shape[:2]), scores[kept], labels[kept]
            seen, sides = visible(boxes), np.tile(np.array(window.shape[:2], "float32"), 2)
            yield boxes[seen] * sides, scores[seen], labels[seen]

    def _of_image(self, size, found):
        """Boxes, scores and labels in an image of this size, from those of its windows."""
        iou, across_classes = self.options.get("iou"), bool(self.options.get("across_classes"))
        return of_windows(found, size, self.options["limit"], iou, across_classes)


def detect(model: Any, x: Any, verbose: bool | int | str = "auto", **how: Any) -> Detections | list[Detections]:
    """The objects in one image or a list; see DetectionModel.detect."""
    finder = Finder.of(model, **how)
    return each_answer(finder, x, verbose, finder.batch_size)
