"""Objects with masks in images of any size, for `InstanceModel.detect`.

A mask stays a grid of logits, of the part of the image that the model saw, until it is asked for: then it is resized to
the image's own pixels, half-pixel bilinear, inside the object's box alone.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.data.annotations.run_lengths import run_lengths
from keras_vit.detection.detect import Detections, batches_of, class_names, letterboxes, shown_text, visible
from keras_vit.detection.heads.suppress import share
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.mask_pictures import palette, rgb
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import Reader, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing

if TYPE_CHECKING:
    from PIL import Image

WHOLE = (0.0, 0.0, 1.0, 1.0)


def _between(places: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cell before, cell after, weight of the latter) of positions in cells, for `count` cells."""
    places = np.clip(places - 0.5, 0, count - 1)
    low = np.minimum(places.astype(int), max(count - 2, 0))
    return low, np.minimum(low + 1, count - 1), (places - low).astype("float32")


def sampled(grid: np.ndarray, frame: Any, size: tuple[int, int], rows: range, columns: range) -> np.ndarray:
    """Logits of a part of an image, (rows, columns), from a grid (h', w') over its part `frame`.

    Args:
        grid: logits at the centres of its cells.
        frame: top, left, bottom, right of the grid, as fractions of the image.
        size: (height, width) of the image.
        rows, columns: the pixels to return.
    """
    top, left, bottom, right = frame
    y = ((np.array(rows) + 0.5) / size[0] - top) / (bottom - top) * grid.shape[0]
    x = ((np.array(columns) + 0.5) / size[1] - left) / (right - left) * grid.shape[1]
    (above, below, down), (before, after, across) = _between(y, grid.shape[0]), _between(x, grid.shape[1])
    lines = grid[above] * (1 - down)[:, None] + grid[below] * down[:, None]  # (rows, w')
    return lines[:, before] * (1 - across) + lines[:, after] * across


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

    def _window(self, i):
        """The rows and columns of the image that may belong to object `i`."""
        height, width = self.image.shape[:2]
        top, left, bottom, right = self.boxes[i].tolist()
        margin_y, margin_x = (height / self.grids.shape[1] + 1, width / self.grids.shape[2] + 1)
        rows = range(max(int(top - margin_y), 0), min(int(np.ceil(bottom + margin_y)), height))
        return rows, range(max(int(left - margin_x), 0), min(int(np.ceil(right + margin_x)), width))

    def part(self, i: int) -> tuple[slice, slice, np.ndarray]:
        """Object `i` as (rows, columns, mask (rows, columns) bool): outside of these no pixel belongs to it."""
        rows, columns = self._window(i)
        inside = sampled(self.grids[i], self.frames[i], self.image.shape[:2], rows, columns) > 0
        return slice(rows.start, rows.stop), slice(columns.start, columns.stop), inside

    def mask(self, i: int) -> np.ndarray:
        """The pixels of object `i`: (h, w) bool, at the image's own size."""
        mask = np.zeros(self.image.shape[:2], bool)
        rows, columns, inside = self.part(i)
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
        return [run_lengths(self.mask(i)) for i in range(len(self))]

    def map(self) -> np.ndarray:
        """The number of the best object at each pixel, from 1, and 0 where there is none: (h, w) int32."""
        numbers = np.zeros(self.image.shape[:2], "int32")
        for i in reversed(range(len(self))):
            rows, columns, inside = self.part(i)
            numbers[rows, columns][inside] = i + 1
        return numbers

    def picture(self, alpha: float = 0.5) -> "Image.Image":
        """The image with masks, boxes, names and scores: a Pillow image, to show or save.

        Each object has a colour of its own.

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
class InstanceFinder:
    """A model as a function from images of any kind and size to `Instances`; see InstanceModel.detect.

    Attributes:
        model: an InstanceModel.
        batch_size: images at once.
        threshold, limit: as in `InstanceModel.detect`.
    """

    model: Any
    batch_size: int = 8
    threshold: float = 0.0
    limit: int = 100

    def __post_init__(self):
        integer(self.batch_size, "batch_size")
        share(self.threshold, "threshold")
        self.model.finder(self.limit)  # refuses a limit out of range

    def __call__(self, images: Iterable[tuple[Any, str]]) -> Iterator[Instances]:
        """The Instances of (image, its name in messages), in order; reads images as it goes.

        Raises:
            FileNotFoundError: for a missing file.
            ValueError: for anything but an image, which `name` names.
        """
        read = Reader(self.model)
        return self.of_pixels(read(item, name) for item, name in images)

    def of_pixels(self, images: Iterable[np.ndarray]) -> Iterator[Instances]:
        """The same of pixels 0..255 (h, w, c) uint8 in the model's channels."""
        text, pixel_range = shown_text(self.model), InputRange.known(self.model)
        preprocess, finder = parse_preprocessing(text), self.model.finder(self.limit)
        names = class_names(self.model)
        for batch in batches_of(images, self.batch_size):
            pixels = np.stack([preprocess.image(image).numpy() for image in batch])
            found = {name: np.asarray(x) for name, x in finder.predict_on_batch(pixel_range.of_bytes(pixels)).items()}
            for i, image in enumerate(batch):
                yield instances({name: x[i] for name, x in found.items()}, image, text, names, self.threshold)


def frame_of(text: str, size: tuple[int, int]) -> Any:
    """The part of an image of this size that the preprocessing `text` shows, as fractions; a letterbox shows more."""
    if not letterboxes(text):
        return WHOLE
    from keras_vit.data.ops.frame import frame

    return frame(text, *size)


def instances(
    found: dict[str, np.ndarray], image: np.ndarray, text: str, names: tuple[str, ...], threshold: float
) -> Instances:
    """The Instances in an image from the outputs of BestObjects for it.

    Args:
        found: "scores" (d,), "labels" (d,), "boxes" (d, 4), "masks" (d, h', w').
        image: pixels (h, w, c).
        text: the preprocessing before the model.
        names: of the classes.
        threshold: scores must be above it.
    """
    kept = (found["labels"] >= 0) & (found["scores"] > threshold)
    frame = np.array(frame_of(text, image.shape[:2]), "float32")
    start, extent = np.tile(frame[:2], 2), np.tile(frame[2:] - frame[:2], 2)
    boxes = np.clip(found["boxes"][kept] * extent + start, 0.0, 1.0)
    seen, sides = visible(boxes), np.tile(np.array(image.shape[:2], "float32"), 2)
    scores, labels, grids = (found[name][kept][seen] for name in ("scores", "labels", "masks"))
    return Instances(boxes[seen] * sides, scores, labels, names, image, grids, np.tile(frame, (len(grids), 1)))


def detect(
    model, x: Any, verbose: bool | int | str = "auto", batch_size: int = 8, **options: Any
) -> Instances | list[Instances]:
    """The objects in one image or a list; see InstanceModel.detect."""
    return each_answer(InstanceFinder(model, batch_size, **options), x, verbose, batch_size)
