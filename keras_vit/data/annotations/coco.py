"""COCO JSON, as COCO, Roboflow and CVAT write it: polygons, and run lengths as lists or compressed.

    PATH/annotations/instances_train2017.json, PATH/train2017/*.jpg or PATH/images/train2017/*.jpg     COCO, CVAT
    PATH/train/_annotations.coco.json, PATH/train/*.jpg                                                Roboflow
    PATH/any.json, PATH/*.jpg or PATH/images/*.jpg                                                     one split

Regions have no order in COCO: crowds are lowest, then larger regions, so that small objects stay visible.
"""

import collections
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from keras_vit.data.annotations import files, form, run_lengths
from keras_vit.data.annotations.form import Annotations, Fault, Ignored, Layout, Picture, Region
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.suggest import did_you_mean, listed

_MARKS = re.compile(r'"(?:annotations|categories|licenses|info|images)"\s*:')
_OTHERS = ("captions", "person_keypoints", "image_info", "panoptic")  # of COCO, beside instances
_TRIED = 5  # file names that are looked for in a folder
OVERLAPS = "crowds below, then larger regions below smaller ones"


def is_coco(path: str) -> bool:
    """Whether a JSON file looks like COCO's, by its name and start."""
    if path.endswith(".coco.json"):
        return True
    start = files.start_of(path)
    return bool(_MARKS.search(start)) and '"shapes"' not in start


def split_of(path: str) -> str:
    """The split that a file's name or its folder's says: "instances_val2017.json" is "val"; "train" without one."""
    folder, name = os.path.split(path)
    words = [re.sub(r"\d+$", "", word) for word in re.split(r"[^A-Za-z0-9]+", os.path.splitext(name)[0])]
    found = [canonical(word) for word in [*words, os.path.basename(folder)] if canonical(word) in SPLITS]
    return found[0] if found else "train"


def json_files(root: str) -> list[str]:
    """The COCO files of a folder, each of its split folders, and its folder "annotations"."""
    folders = [root, os.path.join(root, "annotations"), *files.folders_of_splits(root).values()]
    paths = [os.path.join(folder, name) for folder in folders for name in files.names_in(folder)]
    found = [path for path in paths if path.lower().endswith(".json") and is_coco(path)]
    preferred = [path for path in found if os.path.basename(path).startswith("instances_")]
    return preferred or [path for path in found if not os.path.basename(path).startswith(_OTHERS)] or found


def find(path: str, images: str = "") -> Layout | None:
    """COCO annotations in a folder, or in the JSON file `path`, all of which is "train"; None if there are none.

    Args:
        path: local, or in a bucket.
        images: the folder of the images; "" to look for it.

    Raises:
        ValueError: if several files hold one split.
    """
    alone = path.lower().endswith(".json")
    found = [path] if alone and is_coco(path) else [] if alone else json_files(path)
    splits: dict[str, str] = {}
    for file in found:
        split = "train" if alone else split_of(file)
        if split in splits:
            raise ValueError(
                f'"{path}" has several files for the split "{split}": {splits[split]}, {file}. Name one of them instead'
                " of the folder, or put train, val or test in their names."
            )
        splits[split] = file
    readers = {split: functools.partial(read, file, split, images) for split, file in splits.items()}
    return Layout("COCO", OVERLAPS, readers, {split: [file] for split, file in splits.items()}) if splits else None


def _entries(content, key, path):
    """The list of objects `key`, each with an id.

    Raises:
        ValueError: if it is missing or holds anything else.
    """
    entries = content.get(key)
    if not isinstance(entries, list):
        hint = " It has segments_info: panoptic masks are PNGs." if "segments_info" in str(content)[:10_000] else ""
        raise ValueError(f'"{path}" has no list "{key}": expected images, annotations and categories.{hint}')
    kinds = int if key == "categories" else int | str
    fits = lambda entry: isinstance(entry, dict) and isinstance(entry.get("id"), kinds)  # noqa: E731
    wrong = next((entry for entry in entries if not fits(entry)), None)
    if wrong is not None:
        raise ValueError(f'"{path}": {key} should be objects with a number as id, got {str(wrong)[:80]}.')
    return entries


def _twice(values):
    """The first value that occurs again; None without one."""
    seen = set()
    return next((value for value in values if value in seen or seen.add(value)), None)


def _categories(content, path, ignored):
    """{id: name} by id, without Roboflow's category 0, which only groups the others.

    Raises:
        ValueError: for none, a repeated id or name, or one without a name.
    """
    entries = sorted(_entries(content, "categories", path), key=lambda entry: entry["id"])
    names = {entry["id"]: str(entry.get("name", "")).strip() for entry in entries}
    used = {number for a in content["annotations"] if isinstance(number := a.get("category_id"), int)}
    parents = {str(entry.get("supercategory")) for entry in entries if entry["id"] in used}
    for entry in entries:
        if entry["id"] not in used and names[entry["id"]] in parents and entry.get("supercategory") in (None, "none"):
            ignored[form.PARENT].append(names.pop(entry["id"]))
    again = _twice([entry["id"] for entry in entries])
    if again is None:
        again = _twice(names.values())
    if again is not None or not names or not all(names.values()):
        what = (
            "there are none" if not names else f'"{again}" is there twice' if again is not None else "a name is missing"
        )
        raise ValueError(f'"{path}": category ids and names must be unique: {what}.')
    return names


def _size(entry):
    """(height, width) of an image; None if not stated."""
    height, width = entry.get("height"), entry.get("width")
    return (int(height), int(width)) if height and width else None


def _box(annotation):
    """An annotation's box as top, left, bottom, right; None without a usable one."""
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(side, int | float) for side in box):
        return None
    left, top, width, height = box
    return top, left, top + height, left + width


def _region(annotation, label, size, name, ignored):
    """A Region of an annotation.

    Raises:
        Fault: if its segmentation is missing or malformed.
    """
    segmentation = annotation.get("segmentation")
    box, crowd = _box(annotation), bool(annotation.get("iscrowd"))
    if not segmentation:
        raise Fault(f"{name} ({label}) has a box and no segmentation; boxes are for object detection")
    if isinstance(segmentation, dict):
        counts, covered = run_lengths.runs(segmentation, name)
        if size is not None and covered != size:
            raise Fault(f"{name}: run lengths of {covered} pixels (height, width), and its image has {size}")
        return Region(label, name, (), counts, box, crowd)
    if not isinstance(segmentation, list):
        raise Fault(f"{name}: expected polygons or run lengths, got {str(segmentation)[:60]}")
    lists = segmentation if isinstance(segmentation[0], list) else [segmentation]
    polygons = form.with_area([form.polygon(numbers, name) for numbers in lists], name, ignored)
    return Region(label, name, polygons, None, box, crowd)


def _picture(path, entry, annotations, names, ignored):
    """The Picture of an image's entry, its regions in the order of OVERLAPS."""
    try:
        size = _size(entry)
    except (TypeError, ValueError):
        return Picture(path, None, [], f"its height is {entry.get('height')!r} and its width {entry.get('width')!r}")
    picture = Picture(path, size)
    for annotation in annotations:
        name = f"annotation {annotation['id']}"
        try:
            region = _region(annotation, names[annotation["category_id"]], size, name, ignored)
        except Fault as fault:
            return Picture(path, size, [], str(fault))
        if region.runs is not None and size is None:
            picture.size = size = tuple(annotation["segmentation"]["size"])
        picture.regions.append(region)
    picture.regions.sort(key=lambda region: (not region.crowd, -region.area))
    return form.checked(picture, ignored, fractions=False)


def _check_annotations(annotations, names, path):
    """Raises ValueError for unknown categories, and for boxes or other annotations alone."""
    known = lambda number: isinstance(number, int) and number in names  # noqa: E731
    unknown = next((a for a in annotations if not known(a.get("category_id"))), None)
    if unknown is not None:
        raise ValueError(
            f'"{path}": annotation {unknown["id"]} has the category_id {unknown.get("category_id")!r}; categories are'
            f" {listed([f'{number} ({name})' for number, name in names.items()])}."
        )
    if not any(a.get("segmentation") for a in annotations):
        what = "boxes without a segmentation" if any("bbox" in a for a in annotations) else "no segmentation"
        raise ValueError(
            f'"{path}" has {what if annotations else "no annotations"}: boxes are for object detection. Export the data'
            " with polygons or masks (COCO segmentation)."
        )


def _file_names(entries, path):
    """Each image's file name, with "/".

    Raises:
        ValueError: if one is missing, or two images share an id or a file.
    """
    names = [str(entry.get("file_name") or "").replace("\\", "/") for entry in entries]
    if not all(names):
        raise ValueError(f'"{path}": image {entries[names.index("")]["id"]} has no file_name.')
    for what, values in (("the id", [entry["id"] for entry in entries]), ("the file", names)):
        again = _twice(values)
        if again is not None:
            raise ValueError(
                f'"{path}": two images have {what} {again!r}, so it is unclear whose annotations are whose.'
            )
    return names


def _candidates(path, split):
    """Folders that may hold the images of a JSON file."""
    folder, stem = os.path.split(os.path.splitext(path)[0])
    above = os.path.dirname(folder)
    words = [stem.partition("_")[2], split, *([] if split != "val" else ["valid", "validation"])]
    for base in (folder, above):
        yield from (os.path.join(base, "images", word) for word in words if word)
        yield from (os.path.join(base, word) for word in words if word)
        yield from (os.path.join(base, "images"), base)


def _image_paths(path, split, images, names, existing):
    """The path of each image.

    Raises:
        FileNotFoundError: if none of the first ones is found.
    """
    folders = [images] if images else list(dict.fromkeys([os.path.dirname(path), *_candidates(path, split)]))
    tried = names[:: max(1, len(names) // _TRIED)]
    for plain in (lambda name: name, os.path.basename):
        for folder in folders:
            if any(os.path.join(folder, plain(name)) in existing for name in tried):
                return [os.path.join(folder, plain(name)) for name in names]
    near = did_you_mean(os.path.basename(names[0]), existing.names(folders[0]))
    raise FileNotFoundError(
        f'"{path}": its images, such as "{names[0]}", are in none of {listed(folders, 12)}.{near} Name their folder:'
        f' "...?images=FOLDER".'
    )


def _unlisted(paths, existing):
    """Image files that stand beside the listed ones."""
    for folder in sorted({os.path.dirname(path) for path in paths}):
        mine = {os.path.basename(path) for path in paths if os.path.dirname(path) == folder}
        yield from (
            os.path.join(folder, name) for name in sorted(existing.names(folder) - mine) if ending(name) in ENDINGS
        )


def _pictures(content, paths, existing, names, ignored) -> Iterator[Picture]:
    """The Picture of each image whose file exists."""
    own: dict[Any, list] = collections.defaultdict(list)
    known, seen = {entry["id"] for entry in content["images"]}, set()
    for annotation in content["annotations"]:
        if annotation["id"] in seen:
            ignored[form.SAME_ID].append(f"annotation {annotation['id']}")
        seen.add(annotation["id"])
        if annotation.get("image_id") not in known:
            ignored[form.OTHER_IMAGE].append(f"annotation {annotation['id']}")
        else:
            own[annotation["image_id"]].append(annotation)
    for entry, path in zip(content["images"], paths):
        if path in existing:
            yield _picture(path, entry, own.pop(entry["id"], ()), names, ignored)
        else:
            ignored[form.MISSING].append(path)


def read(path: str, split: str, images: str = "") -> Annotations:
    """The annotations of a COCO file.

    Args:
        path: of the JSON file.
        split: what it holds, to look for its images.
        images: their folder; "" to look for it.

    Raises:
        FileNotFoundError: if there is no such file, or none of the images is found.
        ValueError: if it is not COCO's form, has boxes only, or ids are repeated or unknown.
    """
    content = files.read_json(path)
    ignored: Ignored = collections.defaultdict(list)
    entries, annotations = _entries(content, "images", path), _entries(content, "annotations", path)
    if not entries:
        raise ValueError(f'"{path}" lists no images.')
    names = _categories(content, path, ignored)
    _check_annotations(annotations, names, path)
    existing = files.Existing()
    paths = _image_paths(path, split, images, _file_names(entries, path), existing)
    existing.list(os.path.dirname(file) for file in paths)
    ignored[form.NOT_LISTED] += _unlisted(paths, existing)
    pictures = _pictures(content, paths, existing, names, ignored)
    return Annotations(pictures, tuple(names.values()), False, path, ignored)
