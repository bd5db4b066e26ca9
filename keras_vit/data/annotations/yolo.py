"""YOLO text files, as written by Ultralytics, Darknet, Roboflow, CVAT, Label Studio and LabelImg.

    PATH/data.yaml: names, and for train, val and test a folder, a list of folders, or a text file of image paths
    PATH/classes.txt, obj.names or train/_darknet.labels: names, a line for each, in exports without data.yaml
    .../images/a.jpg and .../labels/a.txt: on each line a class number and x y x y..., fractions of width and height;
                                                for boxes also centre x, centre y, width, height

An image with an empty or no text file has no regions; two images with one text file are at fault. YOLO does not order
lines: smaller regions are above larger ones, as Ultralytics draws overlapping masks.
"""

import collections
import functools
import os
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.data.annotations import annotation_files, schema, yolo_layout
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Fault, Ignored, Layout, Region
from keras_vit.data.annotations.shared_images import count_shared
from keras_vit.data.annotations.yolo_images import all_images, label_files
from keras_vit.data.annotations.yolo_layout import Export
from keras_vit.data.splits import canonical
from keras_vit.io.paths import in_threads, read_text
from keras_vit.io.suggest import counted, listed

OVERLAPS = "larger regions below smaller ones"
_BOX = 5  # numbers on a line for detection: class, centre x and y, width, height
_MOST = 2.0  # larger coordinates are pixels, not fractions
_BESIDE = 0.02  # of the image, by which key points may leave their box


def _layout(export, boxes):
    if export is None:
        return None
    readers = {split: functools.partial(read, export, split, boxes) for split in export.splits}
    return Layout("YOLO", OVERLAPS, readers, dict.fromkeys(export.splits, [export.path]), export.names)


def find(path: str, boxes: bool = False) -> Layout | None:
    """Finds the annotations described by a folder's data.yaml or list of classes, or the YAML file `path`.

    Args:
        path: str. Folder or file, local or in a bucket.
        boxes: bool. Whether to read boxes instead of outlined regions.

    Returns:
        Layout, or None for other folders and files.

    Raises:
        ValueError: for a malformed description.
    """
    return _layout(yolo_layout.find_export(path), boxes)


def find_nameless(path: str, boxes: bool = False, classes: str = "") -> Layout | None:
    """Finds annotations whose classes only have numbers, with class names from the file `classes`.

    Raises:
        ValueError: without `classes`, or for a malformed description.
    """
    return _layout(yolo_layout.find_nameless_export(path, boxes, classes), boxes)


def _centred(values, name):
    """Converts centre x, centre y, width, height to a Box."""
    x, y, width, height = values
    return schema.parse_box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), name)


def _region(line, number, names, path, ignored, boxes):
    """Makes a Region from a line.

    Raises:
        ValueError: for an unknown class.
        Fault: if the rest is malformed.
    """
    first, *rest = line.split()
    name = f"line {number}"
    if not first.isdecimal() or int(first) >= len(names):
        raise ValueError(
            f'"{path}", line {number}: expected a class from 0 to {len(names) - 1}, got "{first[:20]}". The classes'
            f" are {listed(names)}, numbered from 0."
        )
    if len(rest) + 1 == _BOX and not boxes:
        raise Fault(f"{name} is a box of 4 numbers; boxes are for object detection (boxes:PATH)")
    try:
        values = [float(value) for value in rest]
    except ValueError:
        raise Fault(f"{name}: expected numbers x y x y..., got {line[:60]!r}") from None
    is_box = len(values) + 1 == _BOX
    if boxes and len(values) % 2:
        raise Fault(
            f"{name}: expected the 4 numbers of a box, or pairs x y of a polygon, got {len(values)}; leave out a"
            " confidence, and for key points state kpt_shape in data.yaml"
        )
    points = schema.parse_polygon(values, name)
    if len(points) and np.abs(points).max() > _MOST:
        raise Fault(f"{name}: expected fractions of width and height, 0 to 1, got {np.abs(points).max():g}")
    if is_box:
        return Region(names[int(first)], name, box=_centred(values, name))
    polygons = schema.drop_short_polygons([points], f'{name} of "{path}"', ignored)
    return Region(names[int(first)], name, polygons)


def _read_image(image, path, text, names, ignored, boxes):
    """Makes the AnnotatedImage of an image, with regions in the order of OVERLAPS, and boxes in that of the file."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        regions = [_region(line, number, names, path, ignored, boxes) for number, line in lines]
    except Fault as fault:
        return AnnotatedImage(image, None, [], f'"{path}", {fault}')
    if boxes:
        return AnnotatedImage(image, None, regions)
    regions.sort(key=lambda region: -region.area)
    return schema.drop_outside(AnnotatedImage(image, None, regions), ignored, fractions=True)


def _twins(labels):
    """Returns {image: another image with the same text file}."""
    owner: dict[str, str] = {}
    pairs = [(image, owner.setdefault(text, image)) for image, text in labels.items()]
    twins = [(image, other) for image, other in pairs if image != other]
    return dict(twins) | {other: image for image, other in twins}


def _read_images(labels, names, ignored, texts, boxes) -> Iterator[AnnotatedImage]:
    """Yields the AnnotatedImage of each image, {image: text file}; two images with one text file are at fault."""
    twins = _twins({image: path for image, path in labels.items() if path in texts})
    for image, path in labels.items():
        if image in twins:
            other = os.path.basename(twins[image])
            yield AnnotatedImage(image, None, [], f'"{path}" may also be of "{other}": keep one of the images')
        else:
            yield _read_image(image, path, texts.get(path, ""), names, ignored, boxes)


def _rows(texts):
    """Returns the numbers on each line after the class, (lines, n); None unless all lines have as many."""
    lines = [line.split()[1:] for text in texts.values() for line in text.splitlines() if line.strip()]
    try:
        return np.array(lines, "float64") if len({len(line) for line in lines}) == 1 else None
    except ValueError:
        return None


def _have_points(texts):
    """Whether key points follow the boxes, which Label Studio does not say: x, y, and visibility 0, 1 or 2.

    Visible points must be in their boxes, unlike those of a polygon with such numbers.
    """
    rows = _rows(texts)
    if rows is None or rows.shape[1] < _BOX - 1 + 3 or (rows.shape[1] - 4) % 3:
        return False
    points = rows[:, 4:].reshape(len(rows), -1, 3)
    visible = points[..., 2] > 0
    away = np.abs(points[..., :2] - rows[:, None, :2]) > rows[:, None, 2:4] / 2 + _BESIDE
    return bool(np.isin(points[..., 2], (0, 1, 2)).all() and visible.any() and not away[visible].any())


def _without_points(text):
    """The boxes of a text file of poses, without the key points that follow them."""
    return "\n".join(" ".join(line.split()[:_BOX]) for line in text.splitlines())


def _check_texts(texts, path, split, boxes):
    """Raises ValueError if all lines are boxes and `boxes` is false, or if nothing is annotated.

    For `boxes`, empty files are those of images without objects.
    """
    lines = (line.split() for text in texts.values() for line in text.splitlines() if line.strip())
    lengths = [len(line) for line in lines]
    if lengths and set(lengths) == {_BOX} and not boxes:
        raise schema.OnlyBoxes(
            f'"{path}": all {counted(len(lengths), "line")} of {split} are boxes, which are for object detection'
            " (boxes:PATH). Export the data with polygons (YOLO segmentation)."
        )
    if not lengths and not (boxes and texts):
        raise ValueError(
            f'"{path}": the images of {split} have no annotations. Expected text files in a folder "labels" next to'
            ' "images", or next to the images.'
        )


def _count_texts(labels, images, existing, ignored):
    """Counts text files of no image, and images next to the listed ones that no split lists."""
    everywhere = {image for paths in images.values() for image in paths}
    known = set(label_files(everywhere, existing).values())
    for folder in sorted({os.path.dirname(text) for text in labels.values() if text in existing}):
        texts = (os.path.join(folder, name) for name in sorted(existing.names(folder)) if name.endswith(".txt"))
        others = [text for text in texts if text not in known and not yolo_layout.is_name_list(text)]
        lists = [text for text in others if canonical(os.path.basename(text)[:-4]) in images]
        ignored[schema.NO_IMAGE] += [text for text in others if text not in lists]
    ignored[schema.NOT_LISTED] += annotation_files.unlisted_images(everywhere, existing)


def _contents(export, labels, existing, ignored) -> Mapping[str, str]:
    """Reads the text files of images, {path: text}, without key points, which are counted unless declared."""
    wanted = list(dict.fromkeys(text for text in labels.values() if text in existing))
    texts = dict(zip(wanted, in_threads(read_text, wanted)))
    if not export.key_points and not _have_points(texts):
        return texts
    if not export.key_points:
        lines = [(path, i) for path, text in texts.items() for i, line in enumerate(text.splitlines(), 1) if line]
        ignored[schema.POINTS] += [f"line {i} of {path}" for path, i in lines]
    return {path: _without_points(text) for path, text in texts.items()}


def read(export: Export, split: str, boxes: bool = False) -> Annotations:
    """Reads the annotations of a split.

    Args:
        export: Export. Its description.
        split: str. One of its splits.
        boxes: bool. Whether to read boxes instead of outlined regions.

    Raises:
        FileNotFoundError: if no image is found.
        ValueError: without annotations or outlines, and, later, for unknown classes.
    """
    path, names, existing = export.path, export.names, annotation_files.FileIndex()
    ignored: Ignored = collections.defaultdict(list)
    images = all_images(export, split, existing, ignored)
    existing.add(os.path.dirname(image) for image in images[split])
    ignored[schema.MISSING] += [image for image in images[split] if image not in existing]
    found = [image for image in images[split] if image in existing]
    if not found:
        such = f', such as "{images[split][0]}"' if images[split] else ""
        raise FileNotFoundError(f'"{path}": no images of {split}{such}, were found.')
    count_shared(split, images, ignored)
    labels = label_files(found, existing)
    texts = _contents(export, labels, existing, ignored)
    _check_texts(texts, path, split, boxes)
    _count_texts(labels, images, existing, ignored)
    return Annotations(_read_images(labels, names, ignored, texts, boxes), names, True, path, ignored)
