"""Infers a source's kind from its path: "PHOTOS" is "folder:PHOTOS". Imports no engine, to keep help fast."""

import glob
import itertools
import os
import re

KINDS = ("folder", "images", "masks", "boxes", "instances", "depth", "csv", "jsonl", "tfrecord")
_ENDINGS = re.compile(r"\.(?:(csv|tsv)|(jsonl)|(tfrecords?(?:-\d+-of-\d+)?))$", re.IGNORECASE)
_TFDS = "~/tensorflow_datasets"
# Folders of images and of masks, which may contain splits.
_WITH_MASKS = (
    *(("images", name) for name in ("masks", "labels", "annotations", "mask")),
    *(("train", name) for name in ("trainannot", "train_masks", "train_labels", "train_mask")),
    *(("train/images", name) for name in ("train/masks", "train/labels")),
    ("JPEGImages", "SegmentationClass"),
    ("leftImg8bit", "gtFine"),
    ("default", "defaultannot"),
    ("ds0/img", "ds0/masks_machine"),
)
_COCO = ("*.coco.json", "train/*.coco.json", "annotations/instances_*.json")
_YOLO = ("labels/*.txt", "labels/*/*.txt", "train/labels/*.txt")  # next to data.yaml
_VOC = ("Annotations/*.xml", "annotations/*.xml", "train/*.xml")
_MOST = 1000  # entries to check
_MASK_ENDINGS = (".png", ".tif", ".tiff", ".bmp", ".gif", ".jpg", ".jpeg")  # JPEGs are refused with their reason


def _has(folder, pattern):
    return next(glob.iglob(os.path.join(glob.escape(folder), pattern)), None) is not None


def _is_prepared(path, folder):
    """Whether a folder is a prepared tensorflow-datasets dataset, of any config and version, or has the name of one."""
    if any(_has(folder, f"{depth}dataset_info.json") for depth in ("", "*/", "*/*/")):
        return True
    prepared = os.path.expanduser(os.path.join(os.environ.get("TFDS_DATA_DIR", _TFDS), path))
    return not os.path.isabs(path) and os.path.isdir(prepared)


def _has_any(folder, patterns):
    return any(_has(folder, pattern) for pattern in patterns)


def _has_annotations(folder):
    """Whether a folder has COCO or YOLO files, judged by their names."""
    return _has_any(folder, _COCO) or (_has(folder, "data.yaml") and _has_any(folder, _YOLO))


def _has_masks(folder):
    """Whether a folder has folders named for images and masks, with an image in the latter, or files a_mask.png."""
    if _has(folder, "*_mask.png") or _has(folder, "train/*_mask.png"):
        return True
    for images, masks in _WITH_MASKS:
        images, masks = os.path.join(folder, images), os.path.join(folder, masks)
        if os.path.isdir(images) and os.path.isdir(masks):
            below = (
                name for depth in ("*", "*/*", "*/*/*") for name in glob.iglob(os.path.join(glob.escape(masks), depth))
            )
            if any(name.lower().endswith(_MASK_ENDINGS) for name in itertools.islice(below, _MOST)):
                return True
    return False


def _kind(path, data_dir):
    """Returns the kind of a path, or None for a tensorflow-datasets name."""
    if ending := _ENDINGS.search(path):
        return ("csv", "jsonl", "tfrecord")[ending.lastindex - 1]
    if "://" in path:  # in a bucket
        return "folder"
    folder = os.path.join(os.path.expanduser(data_dir or ""), os.path.expanduser(path))
    if not os.path.isdir(folder):
        return "folder" if path.startswith(("/", "~", ".")) and not os.path.exists(folder) else None
    if _is_prepared(path, folder):
        return None
    if _has_any(folder, ("*.tfrecord*", "train/*.tfrecord*")):
        return "tfrecord"
    if _has_masks(folder) or _has_annotations(folder):
        return "masks"
    if _has_any(folder, _VOC):
        return "boxes"
    with os.scandir(folder) as entries:
        return "folder" if any(entry.is_dir() and not entry.name.startswith(".") for entry in entries) else "images"


def with_kind(text: str, data_dir: str | os.PathLike | None = None) -> str:
    """Prefixes a source's text with the kind of its path.

    "PHOTOS" becomes "folder:PHOTOS", "images:PHOTOS" if the folder has no subfolders, "masks:PHOTOS" if it has folders
    of images and masks, or COCO or YOLO annotations, or "boxes:PHOTOS" if it has VOC's XML files; "table.csv" becomes
    "csv:table.csv". Text with a kind, "digits" and tensorflow-datasets names, including prepared folders, stay.

    Args:
        text: str. A source as in --data and --config.data.source, with options after a "?".
        data_dir: str. Base of relative paths.
    """
    path = text.partition("?")[0]
    kind, colon, rest = path.partition(":")
    if text == "digits" or not path or (colon and (kind in KINDS or not rest.startswith("//"))):
        return text
    found = _kind(path, None if data_dir is None else os.fspath(data_dir))
    return text if found is None else f"{found}:{text}"


def match_kind(text: str, like: str, data_dir: str | os.PathLike | None = None) -> str:
    """Gives a source without a kind that of the source `like` of a recipe or run: masks, boxes, instances or depth.

    "SCENES" becomes "masks:SCENES" for `like` "masks:PATH", and "boxes:SCENES" for "boxes:PATH", even if it could be
    read as masks; other text stays.
    """
    kind = like.partition(":")[0]
    others = {"masks": ("folder", "images"), "boxes": ("folder", "images", "masks", "csv")}
    others["instances"] = ("folder", "images", "masks", "boxes")
    others = {**others, "depth": ("folder", "images", "masks", "csv", "jsonl")}.get(kind, ())
    return f"{kind}:{text}" if with_kind(text, data_dir) in [f"{other}:{text}" for other in others] else text
