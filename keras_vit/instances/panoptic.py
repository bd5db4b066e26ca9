"""One segment for every pixel of images of any size, for `InstanceModel.segment`: things and stuff together.

The merging is Mask2Former's (arXiv 2112.01527), as EoMT uses it: each pixel belongs to the query with the highest
product of class and mask probability.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.detection.detect import class_names, shown_text
from keras_vit.detection.heads.suppress import share
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.instances.found import frame_of, places, sampled, shaded
from keras_vit.io.mask_pictures import drawable, palette, png, with_legend
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import ReadsImages, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing
from keras_vit.segmentation.segment import Share
from keras_vit.segmentation.sliding_windows import batched

if TYPE_CHECKING:
    from PIL import Image

_AT_ONCE = 2**17  # logits of queries at pixels
_ROUNDING = 1e-4  # of strengths, relative


@dataclasses.dataclass(frozen=True, eq=False)
class Panoptic:
    """The segments of an image, highest score first.

    Attributes:
        segments: (h, w) int32. Each pixel's segment, numbered from 1, and 0 for none.
        labels: (s,) int32. Class numbers.
        scores: (s,) float32.
        class_names: one per class.
        stuff: numbers of the classes that are stuff.
        image: the image, upright: pixels (h, w, c) uint8.
    """

    segments: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    class_names: tuple[str, ...]
    stuff: tuple[int, ...]
    image: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Each segment's class name."""
        return tuple(self.class_names[label] for label in self.labels)

    @property
    def areas(self) -> np.ndarray:
        """(s,) pixels of each segment."""
        return np.bincount(self.segments.reshape(-1), minlength=len(self) + 1)[1:]

    @property
    def shares(self) -> tuple[Share, ...]:
        """The segments with their shares of the image's pixels, largest first."""
        parts = self.areas / self.segments.size
        order = np.argsort(-parts, kind="stable")
        return tuple(Share(self.names[i], float(parts[i]), int(self.labels[i])) for i in order)

    def __len__(self):
        return len(self.labels)

    def ids(self) -> np.ndarray:
        """The segments in the colours of COCO's panoptic PNGs: (h, w, 3) uint8, number = R + 256 G + 256^2 B."""
        return np.stack([self.segments >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype("uint8")

    def segments_info(self) -> list[dict[str, Any]]:
        """The segments as in COCO's panoptic JSON: id, the number in `ids`; category_id, the class number; area."""
        areas = self.areas.tolist()
        numbered = enumerate(zip(self.labels.tolist(), areas, self.scores.tolist()), 1)
        return [{"id": i, "category_id": label, "area": area, "score": score} for i, (label, area, score) in numbered]

    def png(self) -> bytes:
        """`ids` as a PNG file."""
        return png(self.ids())

    def picture(self, alpha: float = 0.5) -> "Image.Image":
        """The image with its segments and a legend: a Pillow image, to show or save.

        Each segment has its own colour.

        Args:
            alpha: share of the colours, 0 to 1.
        """
        from PIL import Image

        colors = palette(len(self))
        words = [drawable(name, i) for i, name in enumerate(self.names)]
        drawn = shaded(self.image, self.segments, colors, alpha)
        return Image.fromarray(with_legend(drawn, words, colors, self.segments - 1))

    def __repr__(self):
        height, width = self.segments.shape
        found = ", ".join(self.names[:5])
        return f"Panoptic({height} x {width} pixels: {found or 'nothing'}{', ...' if len(self) > 5 else ''})"


def _window(axis, lines, pixels):
    """The cells (first, end) that the pixels of a side take their values from."""
    return lines[axis][0][pixels.start], lines[axis][1][pixels.stop - 1] + 1


def _strongest(grids, scores, frame, size):
    """(owner, inside), both (h, w): at each pixel the number of the query with the highest product of score and mask
    probability, and whether the pixel is inside its mask.

    Divides the image until a part has little to compute. Logits between cells lie between those of the cells, so
    queries whose highest strength in a part is below the lowest of another are left out there.
    """
    owner, inside = np.zeros(size, "int32"), np.zeros(size, bool)
    lines = [places(range(size[i]), size[i], frame[i], frame[i + 2], grids.shape[i + 1]) for i in (0, 1)]

    def strength(logits, rivals):
        with np.errstate(over="ignore"):  # a probability of 0
            return scores[rivals].reshape(-1, *[1] * (logits.ndim - 1)) / (1 + np.exp(-logits))

    parts = [(range(size[0]), range(size[1]), np.arange(len(grids)))] if len(grids) else []
    while parts:
        rows, columns, rivals = parts.pop()
        (top, bottom), (left, right) = _window(0, lines, rows), _window(1, lines, columns)
        cells = grids[rivals, top:bottom, left:right]
        highest, lowest = (strength(best, rivals) for best in (cells.max((1, 2)), cells.min((1, 2))))
        rivals = rivals[highest >= (1 - _ROUNDING) * lowest.max()]
        if len(rivals) * len(rows) * len(columns) > _AT_ONCE:
            parts += [(*half, rivals) for half in _halves(rows, columns)]
            continue
        logits = sampled(grids[rivals], frame, size, rows, columns)  # (rivals, rows, columns)
        best = strength(logits, rivals).argmax(0)
        place = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        owner[place] = rivals[best]
        inside[place] = np.take_along_axis(logits, best[None], 0)[0] >= 0
    return owner, inside


def _halves(rows, columns):
    """The halves of a part, across its longer side."""
    if len(rows) >= len(columns):
        return [(half, columns) for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
    return [(rows, half) for half in (columns[: len(columns) // 2], columns[len(columns) // 2 :])]


def _area(grid, frame, size):
    """The pixels inside a mask, from its logits (h', w'), computed where it may have some."""
    part = []
    for axis, there in enumerate(((grid >= 0).any(1), (grid >= 0).any(0))):
        low, high, _ = places(range(size[axis]), size[axis], frame[axis], frame[axis + 2], grid.shape[axis])
        found = np.flatnonzero(there[low] | there[high])
        part.append(range(found[0], found[-1] + 1) if len(found) else range(0))
    return np.count_nonzero(sampled(grid, frame, size, *part) >= 0)


def merged(
    grids: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    stuff: tuple[int, ...],
    size: tuple[int, int],
    frame: Any = (0.0, 0.0, 1.0, 1.0),
    overlap: float = 0.8,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Segments of an image from queries: (h, w) int32 numbers from 1, and their labels and scores, (s,).

    Memory is that of a few images, however many queries there are.

    Args:
        grids: (q, h', w') logits of masks.
        scores: (q,) probabilities of the queries' classes.
        labels: (q,) class numbers.
        stuff: class numbers of which an image has one segment at most.
        size: (h, w).
        frame: the part of the image that the grids cover, as fractions.
        overlap: a segment that keeps less than this share of its mask is left out.
    """
    order = np.argsort(-scores, kind="stable")
    grids, scores, labels = grids[order], scores[order], labels[order]
    owner, inside = _strongest(grids, scores, frame, size)
    own, shown = (np.bincount(found, minlength=len(grids)) for found in (owner.reshape(-1), owner[inside]))
    numbers = np.zeros(len(grids) + 1, "int32")  # of each query's segment
    of_stuff: dict[int, int] = {}
    kept: list[int] = []
    for i in np.flatnonzero(shown).tolist():
        if own[i] < overlap * _area(grids[i], frame, size):
            continue
        label = int(labels[i])
        numbers[i] = of_stuff.get(label, len(kept) + 1)
        if numbers[i] > len(kept):
            kept.append(i)
        if label in stuff:
            of_stuff[label] = numbers[i]
    return np.where(inside, numbers[owner], 0), labels[kept].astype("int32"), scores[kept].astype("float32")


@dataclasses.dataclass(frozen=True)
class PanopticFinder(ReadsImages):
    """A model as a function from images of any kind and size to `Panoptic`s; see InstanceModel.segment.

    Attributes:
        model: an InstanceModel.
        batch_size: images at once.
        threshold, overlap: as in `InstanceModel.segment`.
    """

    model: Any
    batch_size: int = 8
    threshold: float = 0.8
    overlap: float = 0.8

    def __post_init__(self):
        integer(self.batch_size, "batch_size")
        share(self.threshold, "threshold")
        share(self.overlap, "overlap")

    def of_pixels(self, images: Iterable[np.ndarray]) -> Iterator[Panoptic]:
        """The segments of pixels 0..255 (h, w, c) uint8 in the model's channels, in order."""
        text, pixel_range = shown_text(self.model), InputRange.known(self.model)
        preprocess, queries = parse_preprocessing(text), self.model.queries()
        names, stuff = class_names(self.model), self.model.stuff_numbers
        for batch in batched(images, self.batch_size):
            pixels = np.stack([preprocess.image(image).numpy() for image in batch])
            found = {name: np.asarray(x) for name, x in queries.predict_on_batch(pixel_range.of_bytes(pixels)).items()}
            for image, scores, labels, grids in zip(batch, *(found[name] for name in ("scores", "labels", "masks"))):
                kept, size = (labels >= 0) & (scores > self.threshold), image.shape[:2]
                frame, grids = frame_of(text, size), grids.transpose(2, 0, 1)[kept]  # (h', w', q) -> (q, h', w')
                yield Panoptic(
                    *merged(grids, scores[kept], labels[kept], stuff, size, frame, self.overlap), names, stuff, image
                )


def segment(
    model, x: Any, verbose: bool | int | str = "auto", batch_size: int = 8, **options: Any
) -> Panoptic | list[Panoptic]:
    """The segments of one image or a list; see InstanceModel.segment."""
    return each_answer(PanopticFinder(model, batch_size, **options), x, verbose, batch_size)
