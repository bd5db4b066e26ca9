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
from keras_vit.instances.found import frame_of, sampled, shaded
from keras_vit.io.mask_pictures import drawable, palette, png, with_legend
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import ReadsImages, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing
from keras_vit.segmentation.segment import Share
from keras_vit.segmentation.sliding_windows import batched

if TYPE_CHECKING:
    from PIL import Image


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


def _strongest(grids, scores, frame, size):
    """The number of the query with the highest product of score and mask probability at each pixel, (h, w)."""
    best, owner = np.zeros(size, "float32"), np.zeros(size, "int32")
    for i, (grid, score) in enumerate(zip(grids, scores)):
        strength = score / (1 + np.exp(-sampled(grid, frame, size, range(size[0]), range(size[1]))))
        higher = strength > best
        best[higher], owner[higher] = strength[higher], i
    return owner


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
    owner, segments = _strongest(grids, scores, frame, size), np.zeros(size, "int32")
    of_stuff: dict[int, int] = {}
    kept: list[int] = []
    for i, grid in enumerate(grids):
        inside = sampled(grid, frame, size, range(size[0]), range(size[1])) >= 0
        own = owner == i
        shown = own & inside
        if not shown.any() or own.sum() < overlap * inside.sum():
            continue
        label = int(labels[i])
        number = of_stuff.get(label, len(kept) + 1)
        segments[shown] = number
        if number > len(kept):
            kept.append(i)
        if label in stuff:
            of_stuff[label] = number
    return segments, labels[kept].astype("int32"), scores[kept].astype("float32")


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
