"""The common form of annotations, images and their regions, into which every format is read.

An error in one image's annotations (an odd number of coordinates, NaN) is stored as its fault. Reading the image then
fails like a damaged file: named, and counted against the run's limit. Regions without a pixel are dropped and counted.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data.sources.tree import Reason
from keras_vit.io.suggest import did_you_mean, listed

_FARTHEST = 1e6  # in pixels or fractions; larger coordinates are damaged and would overflow
BESIDE = 1.0  # pixels that annotation tools may draw outside the image

FEW_POINTS = Reason("polygon", "with fewer than 3 points")
CLIPPED = Reason("region", "clipped at the image's border")
OUTSIDE = Reason("region", "outside the image")
SAME_ID = Reason("annotation", "with the id of another")
OTHER_IMAGE = Reason("annotation", "of an unlisted image")
NOT_AN_AREA = Reason("shape", "without an area")
NOT_LISTED = Reason("image", "without an entry in the annotations")
MISSING = Reason("image", "with a missing file")
NO_REGION = Reason("image", "without regions")
NO_IMAGE = Reason("label file", "without an image")
PARENT = Reason("category", "that only groups the others", expected=True)
NO_AREA = Reason("box", "without an area")
TWICE = Reason("box", "that repeats one of its class")
SWAPPED = Reason("box", "with swapped corners, corrected")
OTHER_NAME = Reason("XML file", "that names another image, used for the image that shares its name")
OTHER_XML = Reason("XML file", "of another kind")
NO_XML = Reason("name", "in ImageSets without an XML file")
LISTED_AGAIN = Reason("image", "listed more than once")
IN_SPLITS = Reason("image", "shared with another split, so scores are too good")
NO_OUTLINE = Reason("object", "without an outline, only a box")
NO_BOX = Reason("row", "with a class but no box")
POINTS = Reason("line", "with key points, which are left out")
TO_IGNORE = Reason("box", "labelled __ignore__ or _background_", expected=True)
NOTED = (CLIPPED, OTHER_NAME, SAME_ID, SWAPPED, LISTED_AGAIN, IN_SPLITS, POINTS)  # reported but used

NO_CLASSES = ("__ignore__", "_background_")  # labels of LabelMe

Box = tuple[float, float, float, float]  # top, left, bottom, right
Ignored = dict[Reason, list[str]]  # {reason: names}


class OnlyBoxes(ValueError):
    """Annotations without the outlines from which masks are drawn."""


class Fault(ValueError):
    """An error in the annotations of one image; its message names the region."""


@dataclasses.dataclass(frozen=True)
class Region:
    """One annotated object or area.

    Attributes:
        label: str. Class name.
        name: str. Name in messages, such as "annotation 7" or "line 3".
        polygons: tuple of (n, 2) float64. Vertices x, y of each polygon; the region is their union.
        runs: (n,) int64. Alternating counts of pixels outside and inside the region, down the columns; or None.
        box: (top, left, bottom, right), or None.
        crowd: bool. Whether it is a group of objects.
        difficult: bool. Whether detectors may miss it.
        pixels: float. Area in pixels, if the annotation states it.
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
    def outlined(self) -> bool:
        """Whether it has polygons or runs."""
        return bool(self.polygons) or self.runs is not None

    @property
    def area(self) -> float:
        """Area in pixels, or as a fraction of the image."""
        inside = 0.0 if self.runs is None else float(self.runs[1::2].sum())
        return inside + sum(_polygon_area(polygon) for polygon in self.polygons)


@dataclasses.dataclass
class AnnotatedImage:
    """An image and its regions, later ones above earlier ones.

    Attributes:
        path: str. The image file.
        size: (height, width) stated by the annotations, or None.
        regions: list of Region.
        fault: str. Why the image is unusable; "" if it is usable.
        id: int or str. The image's id in COCO's annotations; None elsewhere.
    """

    path: str
    size: tuple[int, int] | None
    regions: list[Region] = dataclasses.field(default_factory=list)
    fault: str = ""
    id: int | str | None = None


@dataclasses.dataclass
class Annotations:
    """The annotations of one split.

    Attributes:
        images: iterator of AnnotatedImage. Read on demand, once.
        class_names: tuple of str, in the order declared by the files; None if only regions name classes.
        fractions: bool. Whether coordinates are fractions of the image's width and height, not pixels.
        where: str. The file or folder of the annotations.
        ignored: dict. Names by reason; complete after the last image.
        categories: dict. COCO's category ids by class name; None elsewhere.
        read_as: str. What numbers in the files mean, for the report; "" if the format says.
        stuff: tuple of str. Classes whose regions are not objects, such as "sky".
    """

    images: Iterator[AnnotatedImage]
    class_names: tuple[str, ...] | None
    fractions: bool
    where: str
    ignored: Ignored = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    categories: Mapping[str, int] | None = None
    read_as: str = ""
    stuff: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Layout:
    """Annotations found in a folder.

    Attributes:
        format: str. Name of the format in messages.
        overlaps: str. Describes which of two regions is on top.
        splits: dict. A function that reads the annotations of each split.
        files: dict. The files of each split.
        class_names: tuple of str, in order, if one file declares them for all splits; else None.
    """

    format: str
    overlaps: str
    splits: Mapping[str, Callable[[], Annotations]]
    files: dict[str, list[str]]
    class_names: tuple[str, ...] | None = None


def class_number(numbers: Mapping[str, int], region: Region, image: AnnotatedImage) -> int:
    """Returns the number of a region's class.

    Raises:
        ValueError: for an unknown class.
    """
    number = numbers.get(region.label)
    if number is None:
        raise ValueError(
            f'{region.name} of "{image.path}" has the unknown class "{region.label}".'
            f"{did_you_mean(region.label, numbers)} Valid: {listed(list(numbers))}."
        )
    return number


def _polygon_area(points):
    x, y = points[:, 0], points[:, 1]
    closing = x[-1] * y[0] - x[0] * y[-1]
    return abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1] + closing)) / 2


def parse_polygon(numbers: Sequence[float], name: str) -> np.ndarray:
    """Converts a flat list x, y, x, y... to vertices (n, 2) float64.

    Args:
        numbers: sequence of numbers. From a file.
        name: str. The region's name in messages.

    Raises:
        Fault: if they are not pairs of finite numbers.
    """
    try:
        flat = np.array(numbers, "float64")
    except (TypeError, ValueError):
        raise Fault(f"{name}: expected a polygon as numbers x, y, x, y..., got {str(numbers)[:60]}") from None
    if flat.ndim != 1:
        raise Fault(f"{name}: expected a polygon as one list x, y, x, y..., got nested lists")
    if len(flat) % 2:
        raise Fault(f"{name}: expected a polygon as pairs x, y, got {len(flat)} coordinates")
    wrong = flat[~(np.abs(flat) <= _FARTHEST)]  # NaN, too
    if len(wrong):
        raise Fault(f"{name}: a polygon has the coordinate {wrong[0]:g}")
    return flat.reshape(-1, 2)


def parse_box(numbers: Sequence[Any], name: str) -> Box:
    """Converts left, top, right, bottom to a Box.

    Args:
        numbers: sequence of numbers or str. From a file.
        name: str. The region's name in messages.

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


def parse_size(height: Any, width: Any) -> tuple[int, int] | None:
    """Converts an image's stated height and width, numbers or text, to (height, width); None if one is missing or 0.

    Raises:
        Fault: if they are not valid sizes.
    """
    if height in (None, "") or width in (None, ""):
        return None
    try:
        size = int(float(height)), int(float(width))
    except (TypeError, ValueError, OverflowError):
        size = -1, -1
    if not all(0 <= side <= _FARTHEST for side in size):
        raise Fault(f"expected a size in pixels, got height {str(height)[:60]!r} and width {str(width)[:60]!r}")
    return size if all(size) else None


def is_set(flag: Any) -> bool:
    """Whether a flag of a file is set, such as iscrowd: 1, 1.0 or true, also as text."""
    return str(flag).strip().lower() in ("1", "1.0", "true", "yes")


def bounding_box(region: Region, size: tuple[int, int] | None) -> Box | None:
    """Returns a region's box, or its bounding box; None if it is empty.

    Args:
        region: Region with a box, polygons or runs.
        size: (height, width) of its image, required for runs.
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
    """Returns the bounding box of runs down the columns; None if they are empty."""
    ends = np.cumsum(runs)[1::2]
    starts, ends = (ends - runs[1::2])[runs[1::2] > 0], ends[runs[1::2] > 0]
    if not len(ends):
        return None
    first, last = starts // height, (ends - 1) // height
    if (first < last).any():  # a run that continues in the next column spans the full height
        top, bottom = 0, height
    else:
        top, bottom = int((starts % height).min()), int(((ends - 1) % height).max()) + 1
    return float(top), float(first.min()), float(bottom), float(last.max() + 1)


def drop_short_polygons(polygons: Iterable[np.ndarray], name: str, ignored: Ignored) -> tuple[np.ndarray, ...]:
    """Keeps polygons with 3 points or more; counts the others, which contain no pixel."""
    kept = []
    for points in polygons:
        if len(points) < 3:
            ignored[FEW_POINTS].append(name)
        else:
            kept.append(points)
    return tuple(kept)


def _beyond(polygons, limits, beside):
    """Returns whether each polygon lies outside its image, and whether it crosses the border, both (polygons,) bool.

    Args:
        polygons: list of (n, 2). Vertices x, y.
        limits: (height, width) of the image, in the polygons' units.
        beside: float. Tolerance around the image.
    """
    starts = np.cumsum([0, *map(len, polygons[:-1])])
    together, far = np.concatenate(polygons), np.array(limits, "float64")[::-1]
    low, high = np.minimum.reduceat(together, starts), np.maximum.reduceat(together, starts)
    return ((high < 0) | (low > far)).any(-1), ((low < -beside) | (high > far + beside)).any(-1)


def drop_outside(image: AnnotatedImage, ignored: Ignored, fractions: bool) -> AnnotatedImage:
    """Drops regions outside the image; counts them, and regions that cross its border.

    Args:
        image: AnnotatedImage. Changed in place.
        ignored: dict that counts the regions.
        fractions: bool. Whether the polygons are fractions of width and height.
    """
    image.regions = [region for region in image.regions if region.outlined]
    limits = (1.0, 1.0) if fractions else image.size
    polygons = [points for region in image.regions for points in region.polygons]
    if limits is None or not polygons:
        return image
    outside, beyond = _beyond(polygons, limits, BESIDE / 100 if fractions else BESIDE)
    if not beyond.any() and not outside.any():
        return image
    kept, at = [], 0
    for region in image.regions:
        part = slice(at, at := at + len(region.polygons))
        gone = region.runs is None and outside[part].all()
        if gone or beyond[part].any():
            ignored[OUTSIDE if gone else CLIPPED].append(f"{region.name} of {image.path}")
        kept += [] if gone else [region]
    image.regions = kept
    return image
