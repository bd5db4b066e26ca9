"""Objects with masks in images of any size, for `InstanceModel.detect`.

A mask stays a grid of logits, of the part of the image that the model saw, until it is asked for: then it is resized to
the image's own pixels, half-pixel bilinear, inside the object's box alone.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.data.annotations.run_lengths import run_lengths
from keras_vit.detection.detect import Detections, class_names, in_image, letterboxes, shown_text, visible
from keras_vit.detection.heads.suppress import share
from keras_vit.detection.tiles import LIMIT, Tiling, Window, merged, over_windows
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.mask_pictures import palette, rgb
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import ReadsImages, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing

if TYPE_CHECKING:
    from PIL import Image

WHOLE = (0.0, 0.0, 1.0, 1.0)


def places(pixels: range, count: int, first: float, last: float, cells: int) -> tuple[np.ndarray, ...]:
    """(cell before, cell after, weight of the latter) of pixels of a side of `count`; cells from `first` to `last`."""
    position = ((np.array(pixels) + 0.5) / count - first) / (last - first) * cells
    position = np.clip(position - 0.5, 0, cells - 1)
    low = np.minimum(position.astype(int), max(cells - 2, 0))
    return low, np.minimum(low + 1, cells - 1), (position - low).astype("float32")


def sampled(grids: np.ndarray, frame: Any, size: tuple[int, int], rows: range, columns: range) -> np.ndarray:
    """Logits of a part of an image, (..., rows, columns), from grids (..., h', w') over its part `frame`.

    Args:
        grids: logits at the centres of cells.
        frame: top, left, bottom, right of the grids, as fractions of the image.
        size: (height, width) of the image.
        rows, columns: the pixels to return.
    """
    top, left, bottom, right = frame
    above, below, down = places(rows, size[0], top, bottom, grids.shape[-2])
    before, after, across = places(columns, size[1], left, right, grids.shape[-1])
    lines = grids[..., above, :] * (1 - down)[:, None] + grids[..., below, :] * down[:, None]  # (..., rows, w')
    return lines[..., before] * (1 - across) + lines[..., after] * across


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Instances(Detections):
    """The objects in an image with their masks, highest score first.

    Attributes:
        boxes, scores, labels, class_names, image: as in Detections.
        grids: (d, h', w') float32. Logits of the masks.
        frames: (d, 4) top, left, bottom, right of the part of the image that each grid covers, as fractions.
    """

    grids: np.ndarray
    frames: np.ndarray

    _of_objects = (*Detections._of_objects, "grids", "frames")

    def _window(self, i, size):
        """The rows and columns that may belong to object `i`, of an image (height, width)."""
        sides = np.tile(size, 2)
        box = self.boxes[i].astype("float64") / np.tile(self.image.shape[:2], 2) * sides
        frame = np.clip(self.frames[i].astype("float64"), 0, 1) * sides  # a tile's mask ends with the tile
        cell = (self.frames[i, 2:] - self.frames[i, :2]) * sides[:2] / self.grids.shape[1:] + 1
        first = np.floor(np.maximum(box[:2] - cell, frame[:2]) + 1e-3).astype(int)
        last = np.ceil(np.minimum(box[2:] + cell, frame[2:]) - 1e-3).astype(int)
        return range(first[0], last[0]), range(first[1], last[1])

    def part(self, i: int, size: tuple[int, int] | None = None) -> tuple[slice, slice, np.ndarray]:
        """Object `i` as (rows, columns, mask (rows, columns) bool): outside of these no pixel belongs to it.

        `size` is as in `mask`.
        """
        size = size or self.image.shape[:2]
        rows, columns = self._window(i, size)
        inside = sampled(self.grids[i], self.frames[i], size, rows, columns) > 0
        return slice(rows.start, rows.stop), slice(columns.start, columns.stop), inside

    def mask(self, i: int, size: tuple[int, int] | None = None) -> np.ndarray:
        """The pixels of object `i`: (h, w) bool, at the image's own size or at `size`, (height, width)."""
        rows, columns, inside = self.part(i, size)
        mask = np.zeros(size or self.image.shape[:2], bool)
        mask[rows, columns] = inside
        return mask

    @property
    def masks(self) -> np.ndarray:
        """All masks, (d, h, w) bool: h * w bytes for each object."""
        masks = np.zeros((len(self), *self.image.shape[:2]), bool)
        for i in range(len(self)):
            rows, columns, inside = self.part(i)
            masks[i, rows, columns] = inside
        return masks

    def run_lengths(self) -> list[dict[str, Any]]:
        """The masks in COCO's form: {"size": [h, w], "counts": text} of each."""
        parts = (self.part(i) for i in range(len(self)))
        size = self.image.shape[:2]
        return [run_lengths(inside, rows.start, columns.start, size) for rows, columns, inside in parts]

    def map(self) -> np.ndarray:
        """The number of the best object at each pixel, from 1, and 0 where there is none: (h, w) int32."""
        numbers = np.zeros(self.image.shape[:2], "int32")
        for i in reversed(range(len(self))):
            rows, columns, inside = self.part(i)
            numbers[rows, columns][inside] = i + 1
        return numbers

    def picture(self, alpha: float = 0.5) -> "Image.Image":
        """The image, enlarged if it is small, with masks, boxes, names and scores: a Pillow image, to show or save.

        Each object has its own colour.

        Args:
            alpha: share of the colours in masks, 0 to 1.
        """
        colors = palette(len(self))
        return self._drawn(shaded(self.image, self.map(), colors, alpha), colors)


def shaded(image: np.ndarray, numbers: np.ndarray, colors: Any, alpha: float = 0.5) -> np.ndarray:
    """An image (h, w, c) with objects (h, w), numbers from 1, in colours with a dark outline: (h, w, 3) uint8."""
    pixels = rgb(image)
    table = np.array([(0, 0, 0), *colors], "float32")
    mixed = np.round((1 - alpha) * pixels + alpha * table[numbers]).astype("uint8")
    shown = np.where((numbers > 0)[..., None], mixed, pixels)
    edge = np.zeros(numbers.shape, bool)
    edge[1:] |= numbers[1:] != numbers[:-1]
    edge[:, 1:] |= numbers[:, 1:] != numbers[:, :-1]
    shown[edge] = shown[edge] // 3
    return shown


@dataclasses.dataclass(frozen=True)
class InstanceFinder(ReadsImages):
    """A model as a function from images of any kind and size to `Instances`; see InstanceModel.detect.

    Attributes:
        model: an InstanceModel.
        batch_size: images, or tiles, at once.
        threshold, limit: as in `InstanceModel.detect`.
        tiling: tiles of large images; None to see each image as a whole.
    """

    model: Any
    batch_size: int = 8
    threshold: float = 0.0
    limit: int = 100
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
    ) -> "InstanceFinder":
        """An InstanceFinder by the arguments of `InstanceModel.detect`, with its defaults.

        Raises:
            ValueError: for an argument out of range.
        """
        tiling = None if tiles is None else Tiling(tiles, tile_overlap)
        threshold = model.score_threshold if threshold is None else threshold
        return cls(model, batch_size, threshold, (LIMIT if tiling else 100) if limit is None else limit, tiling)

    def __post_init__(self):
        integer(self.batch_size, "batch_size")
        share(self.threshold, "threshold")
        self.model.finder(self.limit)  # refuses a limit out of range

    @property
    def options(self) -> dict[str, Any]:
        """What is found, for the description of a job."""
        return {"threshold": self.threshold, "limit": self.limit}

    def of_pixels(self, images: Iterable[np.ndarray]) -> Iterator[Instances]:
        """The Instances of pixels 0..255 (h, w, c) uint8 in the model's channels, in order."""
        find = functools.partial(self._found, parse_preprocessing(shown_text(self.model)), InputRange.known(self.model))
        for image, found in over_windows(images, self.tiling, find, self.batch_size):
            yield of_windows(image, found, self.limit)

    def _found(self, preprocess, pixel_range, windows):
        """The Instances in each window's pixels (h, w, c)."""
        pixels = np.stack([preprocess.image(window).numpy() for window in windows])
        outputs = self.model.finder(self.limit).predict_on_batch(pixel_range.of_bytes(pixels))
        rows = {name: np.asarray(x) for name, x in outputs.items()}
        for i, window in enumerate(windows):
            yield instances(self.model, {name: x[i] for name, x in rows.items()}, window, self.threshold)


def of_windows(image: np.ndarray, found: list[tuple[Window, Instances]], limit: int = LIMIT) -> Instances:
    """The Instances in an image (h, w, c), `limit` at most, from those of its windows."""
    if len(found) == 1:
        return dataclasses.replace(found[0][1], image=image)
    size, sides = image.shape[:2], np.tile(np.array(image.shape[:2], "float32"), 2)
    corners = np.array([window for window, _ in found], "float32")
    owner = np.repeat(np.arange(len(found)), [len(answer) for _, answer in found])
    boxes, scores, labels, grids, frames = (
        np.concatenate([getattr(answer, name) for _, answer in found])
        for name in ("boxes", "scores", "labels", "grids", "frames")
    )
    start, extent = np.tile(corners[owner, :2], 2), np.tile(corners[owner, 2:] - corners[owner, :2], 2)
    boxes, frames = boxes + start, (frames * extent + start) / sides
    kept = merged(boxes, scores, labels, corners[owner].astype(int), size, limit)
    names = found[0][1].class_names
    return Instances(boxes[kept], scores[kept], labels[kept], names, image, grids[kept], frames[kept])


def frame_of(text: str, size: tuple[int, int]) -> Any:
    """The part of an image of this size that the preprocessing `text` shows, as fractions; a letterbox shows more."""
    if not letterboxes(text):
        return WHOLE
    from keras_vit.data.ops.frame import frame

    return frame(text, *size)


def instances(model: Any, found: dict[str, np.ndarray], image: np.ndarray, threshold: float) -> Instances:
    """The Instances in an image (h, w, c) with scores above a threshold, from the outputs of BestObjects for it:
    "scores" (d,), "labels" (d,), "boxes" (d, 4) and "masks" (d, h', w').
    """
    kept, text, size = (found["labels"] >= 0) & (found["scores"] > threshold), shown_text(model), image.shape[:2]
    boxes = in_image(text, found["boxes"][kept], size)
    seen, sides = visible(boxes), np.tile(np.array(size, "float32"), 2)
    scores, labels, grids = (found[name][kept][seen] for name in ("scores", "labels", "masks"))
    frames = np.tile(np.array(frame_of(text, size), "float32"), (len(grids), 1))
    return Instances(boxes[seen] * sides, scores, labels, class_names(model), image, grids, frames)


def detect(model: Any, x: Any, verbose: bool | int | str = "auto", **how: Any) -> Instances | list[Instances]:
    """The objects in one image or a list; see InstanceModel.detect."""
    finder = InstanceFinder.of(model, **how)
    return each_answer(finder, x, verbose, finder.batch_size)
