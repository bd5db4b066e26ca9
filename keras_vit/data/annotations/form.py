"""The common form of annotations: images, and regions in them. Each format's file reads into it.

What is wrong with one image (an odd number of coordinates, NaN) is kept as its fault, and fails like a damaged file
when the image is read: named, and counted against the run's limit. What covers no pixel is left out and counted.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data.sources.tree import Reason

_FARTHEST = 1e6  # pixels or fractions: coordinates beyond are damaged, and would overflow
BESIDE = 1.0  # pixels that annotation tools may draw beyond the image

FEW_POINTS = Reason("polygon", "with fewer than 3 points")
CLIPPED = Reason("region", "that reaches beyond its image, cut off there")
OUTSIDE = Reason("region", "outside of its image")
SAME_ID = Reason("annotation", "with the id of another")
OTHER_IMAGE = Reason("annotation", "of an image that is not listed")
NOT_AN_AREA = Reason("shape", "that has no area")
NOT_LISTED = Reason("image", "without an entry in the annotations")
MISSING = Reason("image", "whose file is missing")
NO_REGION = Reason("image", "without regions")
NO_IMAGE = Reason("label file", "without an image")
PARENT = Reason("category", "that only groups the others", expected=True)
NO_AREA = Reason("box", "without an area")
TWICE = Reason("box", "that repeats one of its class")
SWAPPED = Reason("box", "with swapped corners, put in order")
OTHER_XML = Reason("XML file", "of another kind")
NO_XML = Reason("name", "in ImageSets without an XML file")
TO_IGNORE = Reason("box", "labelled __ignore__ or _background_", expected=True)
NOTED = (CLIPPED, SAME_ID, SWAPPED)  # used all the same

NO_CLASSES = ("__ignore__", "_background_")  # labels of LabelMe

Box = tuple[float, float, float, float]  # top, left, bottom, right
Ignored = dict[Reason, list[str]]  # {reason: names}


class Fault(ValueError):
    """What is wrong with the annotations of one image; its message names the region."""


@dataclasses.dataclass(frozen=True)
class Region:
    """One annotated object or area.

    Attributes:
        label: the name of its class.
        name: in messages, such as "annotation 7" or "line 3".
        polygons: (n, 2) float64 vertices x, y of each; the region is their union.
        runs: (n,) int64 pixels outside and inside of the region in turn, down the columns; None without.
        box: top, left, bottom, right, if the annotation has one.
        crowd: whether it stands for a group of objects.
        difficult: whether detectors need not find it.
        pixels: its area in pixels, if the annotation states it.
    """

    label: str
    name: str
    polygons: tuple[np.ndarray, ...] = ()
    runs: np.ndarray | None = None
    box: Box | None = None
    crowd: bool = False
    difficult: bool = False
    pixels: float | None = None

    @property
    def area(self) -> float:
        """Its size in pixels, or as a fraction of the image."""
        inside = 0.0 if self.runs is None else float(self.runs[1::2].sum())
        return inside + sum(_polygon_area(polygon) for polygon in self.polygons)


@dataclasses.dataclass
class Picture:
    """An image and its regions, later ones above earlier ones.

    Attributes:
        path: of the image file.
        size: (height, width) as the annotations state it; None if they do not.
        regions: see Region.
        fault: why the image cannot be used; "" if it can.
    """

    path: str
    size: tuple[int, int] | None
    regions: list[Region] = dataclasses.field(default_factory=list)
    fault: str = ""


@dataclasses.dataclass
class Annotations:
    """The annotations of one split.

    Attributes:
        pictures: read as they are needed; once.
        class_names: in order, as the files declare them; None if only the regions name them.
        fractions: whether coordinates are fractions of the image's width and height, not pixels.
        where: the file or folder that holds them.
        ignored: {reason: names}; complete after the last picture.
    """

    pictures: Iterator[Picture]
    class_names: tuple[str, ...] | None
    fractions: bool
    where: str
    ignored: Ignored = dataclasses.field(default_factory=lambda: collections.defaultdict(list))


@dataclasses.dataclass(frozen=True)
class Layout:
    """Annotations found in a folder.

    Attributes:
        format: its name in messages.
        overlaps: which of two regions is on top, in words.
        splits: {split: a function that reads its annotations}.
        files: {split: the files that hold them}.
        class_names: in order, if one file declares them for all splits; else None.
    """

    format: str
    overlaps: str
    splits: Mapping[str, Callable[[], Annotations]]
    files: dict[str, list[str]]
    class_names: tuple[str, ...] | None = None


def _polygon_area(points):
    x, y = points[:, 0], points[:, 1]
    closing = x[-1] * y[0] - x[0] * y[-1]
    return abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1] + closing)) / 2


def polygon(numbers: Sequence[float], name: str) -> np.ndarray:
    """The (n, 2) float64 vertices of a flat list x, y, x, y...

    Args:
        numbers: from a file.
        name: of the region, for messages.

    Raises:
        Fault: if it is not a list of pairs of finite numbers.
    """
    try:
        flat = np.array(numbers, "float64")
    except (TypeError, ValueError):
        raise Fault(f"{name}: expected a polygon as numbers x, y, x, y..., got {str(numbers)[:60]}") from None
    if flat.ndim != 1:
        raise Fault(f"{name}: expected a polygon as one list x, y, x, y..., got lists in a list")
    if len(flat) % 2:
        raise Fault(f"{name}: a polygon has {len(flat)} coordinates; expected pairs x, y")
    wrong = flat[~(np.abs(flat) <= _FARTHEST)]  # NaN, too
    if len(wrong):
        raise Fault(f"{name}: a polygon has the coordinate {wrong[0]:g}")
    return flat.reshape(-1, 2)


def box(numbers: Sequence[Any], name: str) -> Box:
    """The box of the numbers left, top, right, bottom.

    Args:
        numbers: from a file, or texts of them.
        name: of the region, for messages.

    Raises:
        Fault: if they are not four finite numbers.
    """
    try:
        left, top, right, bottom = (float(number) for number in numbers)
    except (TypeError, ValueError):
        raise Fault(f"{name}: expected a box of four numbers, got {str(numbers)[:60]}") from None
    wrong = next((number for number in (left, top, right, bottom) if not abs(number) <= _FARTHEST), None)
    if wrong is not None:
        raise Fault(f"{name}: its box has the coordinate {wrong:g}")
    return top, left, bottom, right


def stated_size(height: Any, width: Any) -> tuple[int, int] | None:
    """(height, width) of an image as a file states them, numbers or texts; None if one is missing or 0.

    Raises:
        Fault: if they are not numbers of pixels.
    """
    if height in (None, "") or width in (None, ""):
        return None
    try:
        size = int(float(height)), int(float(width))
    except (TypeError, ValueError, OverflowError):
        size = -1, -1
    if not all(0 <= side <= _FARTHEST for side in size):
        raise Fault(f"its height is {str(height)[:60]!r} and its width {str(width)[:60]!r}")
    return size if all(size) else None


def box_of(region: Region, size: tuple[int, int] | None) -> Box | None:
    """The box of a region, or around it; None if it has no extent.

    Args:
        region: with a box, polygons or runs.
        size: (height, width) of its image, needed for runs.
    """
    if region.box is not None:
        return region.box
    if region.runs is not None and size is not None:
        return _around_runs(region.runs, size[0])
    if not region.polygons:
        return None
    points = np.concatenate(region.polygons)
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    return top, left, bottom, right


def _around_runs(runs, height):
    """The box around pixels that are given as runs down the columns; None without any."""
    ends = np.cumsum(runs)[1::2]
    starts, ends = (ends - runs[1::2])[runs[1::2] > 0], ends[runs[1::2] > 0]
    if not len(ends):
        return None
    first, last = starts // height, (ends - 1) // height
    if (first < last).any():  # a run that goes on in the next column reaches from top to bottom
        top, bottom = 0, height
    else:
        top, bottom = int((starts % height).min()), int(((ends - 1) % height).max()) + 1
    return float(top), float(first.min()), float(bottom), float(last.max() + 1)


def with_area(polygons: Iterable[np.ndarray], name: str, ignored: Ignored) -> tuple[np.ndarray, ...]:
    """The polygons with 3 points or more; the others, which contain no pixel, are counted."""
    kept = []
    for points in polygons:
        if len(points) < 3:
            ignored[FEW_POINTS].append(name)
        else:
            kept.append(points)
    return tuple(kept)


def _beyond(polygons, limits, beside):
    """(polygons,) bool each: whether a polygon lies outside of its image, and whether it reaches beyond it.

    Args:
        polygons: (n, 2) x, y of each.
        limits: (height, width) of the image, in the polygons' units.
        beside: how far beyond the image does not count.
    """
    starts = np.cumsum([0, *map(len, polygons[:-1])])
    together, far = np.concatenate(polygons), np.array(limits, "float64")[::-1]
    low, high = np.minimum.reduceat(together, starts), np.maximum.reduceat(together, starts)
    return ((high < 0) | (low > far)).any(-1), ((low < -beside) | (high > far + beside)).any(-1)


def checked(picture: Picture, ignored: Ignored, fractions: bool) -> Picture:
    """The picture without regions that lie outside of it; counts those, and others that reach beyond it.

    Args:
        picture: changed in place.
        ignored: where to count.
        fractions: whether its polygons are fractions of its width and height.
    """
    picture.regions = [region for region in picture.regions if region.polygons or region.runs is not None]
    limits = (1.0, 1.0) if fractions else picture.size
    polygons = [points for region in picture.regions for points in region.polygons]
    if limits is None or not polygons:
        return picture
    outside, beyond = _beyond(polygons, limits, BESIDE / 100 if fractions else BESIDE)
    if not beyond.any() and not outside.any():
        return picture
    kept, at = [], 0
    for region in picture.regions:
        own = slice(at, at := at + len(region.polygons))
        gone = region.runs is None and outside[own].all()
        if gone or beyond[own].any():
            ignored[OUTSIDE if gone else CLIPPED].append(f"{region.name} of {picture.path}")
        kept += [] if gone else [region]
    picture.regions = kept
    return picture
