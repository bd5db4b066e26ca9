"""Images with depth maps: "depth:PATH", a folder, or a table with the columns image, depth and, optionally, split.

Folder and file names pair images with maps: images/ or rgb/ beside depth/, and the layouts of NYU (rgb_00045.jpg beside
sync_depth_00045.png), KITTI (image_02/data/x.png, proj_depth/groundtruth/image_02/x.png) and DIODE (x.png beside
x_depth.npy and x_depth_mask.npy). A table (.parquet, .csv, .jsonl) has paths, relative to its folder, or in Parquet
files' bytes, also as datasets' {"bytes", "path"}.

A map is .npy, PNG or TIFF. Floats are metres. Integers are millimetres in NYU's layout and 1/256 m in KITTI's;
elsewhere "depth:PATH?scale=0.001" has to say how many metres a unit is; a scale applies to floats, too. Zeros, negative
numbers, NaN and infinity are void, and 0 in the example's "depth", (h, w, 1) float32 metres.
"""

import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.folder import check_folder
from keras_vit.data.sources.image_files import ENDINGS, ending, in_known_format
from keras_vit.data.splits import SPLITS, canonical, find_split, fixed_shuffle, spread, take_slice
from keras_vit.io.logs import log_once
from keras_vit.io.paths import locate, split_options
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted

_MAPS, _TABLES = (".npy", ".png", ".tif", ".tiff"), (".parquet", ".csv", ".jsonl")
_DEPTH_FOLDERS = {"depth", "depths", "depth_map", "depth_maps", "depth_gt", "proj_depth", "groundtruth"}
_IMAGE_FOLDERS = {"images", "image", "rgb", "img", "imgs", "color", "colors", "data"}  # KITTI: image_02/data
_OTHERS = {"velodyne_raw", "__MACOSX"}
_DEPTH_MARKS = ("sync_depth_", "depth_", "_depth", "-depth", ".depth")
_IMAGE_MARKS = ("rgb_", "color_", "image_", "img_", "_rgb", "_color", "_image")
_MASK = "_depth_mask"  # DIODE: 1 where the depth is valid
_SAMPLE = 16  # maps to look at before training
_FAR = 500  # metres
_UNITS = "?scale=0.001 for millimetres, 0.00390625 for KITTI's 1/256 m, 0.0002 for TUM's 1/5000 m"


class _Pair(NamedTuple):
    """An image and its map, paths or bytes; `mask` is the path of DIODE's file, or b""."""

    image: bytes
    depth: bytes
    mask: bytes = b""
    split: str = "train"


def _unmarked(stem, marks):
    """A name without the first mark that it has."""
    for mark in marks:
        if len(stem) > len(mark) and (stem.startswith(mark) if mark[-1] in "_" else stem.endswith(mark)):
            return stem[len(mark) :] if mark[-1] == "_" else stem[: -len(mark)]
    return stem


def _key(parts, stem, marks):
    """(split or "", what an image and its map share: other folders and the name) of a file."""
    splits = [canonical(part) for part in parts if canonical(part) in SPLITS]
    roles = _DEPTH_FOLDERS | _IMAGE_FOLDERS
    dates = [part for part in parts if len(part) == 10 and part.replace("_", "").isdigit()]  # KITTI's raw recordings
    place = [
        part for part in parts if part.lower() not in roles and part not in dates and canonical(part) not in SPLITS
    ]
    return splits[0] if splits else "", (*place, _unmarked(stem, marks))


def _files(root):
    """({(split, key): path} of images, the same of maps, {path of a map: path of its mask})."""
    images, maps, masks = {}, {}, {}
    for folder, _, names in tf.io.gfile.walk(root):
        parts = [part for part in folder[len(root) :].split("/") if part]
        if _OTHERS & {*parts} or any(part.startswith(".") for part in parts):
            continue
        in_depth = any(part.lower() in _DEPTH_FOLDERS for part in parts)
        for name in sorted(names):
            stem, kind = os.path.splitext(name)[0], ending(name)
            if name.startswith(".") or kind not in (*_MAPS, *ENDINGS):
                continue
            path, marked = os.path.join(folder, name), _unmarked(stem, _DEPTH_MARKS) != stem
            if stem.endswith(_MASK):
                masks[os.path.join(folder, stem.removesuffix("_mask"))] = path
                continue
            is_map = kind in _MAPS and (in_depth or marked or kind == ".npy")
            group, key = (
                (maps, _key(parts, stem, _DEPTH_MARKS)) if is_map else (images, _key(parts, stem, _IMAGE_MARKS))
            )
            if key in group:
                raise ValueError(f'"{root}" has two files for one image: {group[key]} and {path}. Remove one.')
            group[key] = path
    return images, maps, masks


def _in_folder(root):
    """The pairs of a folder; ValueError without any."""
    images, maps, masks = _files(root)
    if not all(any(split for split, _ in group) for group in (images, maps)):  # one of them has no splits
        images, maps = ({key: (split, path) for (split, key), path in group.items()} for group in (images, maps))
    else:
        images, maps = ({each: (each[0], path) for each, path in group.items()} for group in (images, maps))
    both = sorted(images.keys() & maps.keys())
    if not both:
        raise ValueError(
            f'"{root}": expected images with depth maps of the same names, such as images/a.jpg and depth/a.png, or'
            f" a.png and a_depth.npy beside it; found {counted(len(images), 'image')} and {counted(len(maps), 'map')}."
            f" A folder of maps is called {', '.join(sorted(_DEPTH_FOLDERS))}; a table pairs files of any name."
        )
    alone = [group[key][1] for group, other in ((images, maps), (maps, images)) for key in group.keys() - other.keys()]
    if alone:
        count = counted(len(alone), "file")
        logging.warning("%s: left out %s without an image or a map, such as %s.", root, count, min(alone))
    found = []
    for key in both:
        (split, image), (other, depth) = images[key], maps[key]
        mask = masks.get(os.path.splitext(depth)[0], "")
        found.append(_Pair(os.fsencode(image), os.fsencode(depth), os.fsencode(mask), split or other or "train"))
    return found


def _in_table(path):
    """The pairs of a table; ValueError for one without the columns."""
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    read = {".parquet": pyarrow.parquet.read_table, ".csv": pyarrow.csv.read_csv, ".jsonl": pyarrow.json.read_json}
    table = read[os.path.splitext(path)[1].lower()](path)
    if not {"image", "depth"} <= {*table.column_names}:
        raise ValueError(f'"{path}": expected the columns image and depth, got {", ".join(table.column_names)}.')

    def cell(value):
        if isinstance(value, dict):  # of datasets
            value = value["bytes"] or value["path"]
        return value if isinstance(value, bytes) else os.fsencode(os.path.join(os.path.dirname(path), value))

    rows = table.to_pylist()
    for number, row in enumerate(rows):
        if not (row["image"] and row["depth"]):
            raise ValueError(f'"{path}", example {number}: expected an image and a depth map, and one is empty.')
    return [_Pair(cell(row["image"]), cell(row["depth"]), b"", canonical(row.get("split") or "train")) for row in rows]


def _is_content(cell):
    return b"\0" in cell  # in no path, and in every file of images or numbers


def _read(path):
    with tf.io.gfile.GFile(os.fsdecode(path), "rb") as file:
        return file.read()


def _what_is(encoded):
    """What stands where a map should, in words."""
    if not encoded:
        return "the file is empty"
    whole = encoded.startswith((b"\x89PNG", b"II*", b"MM\0*"))
    return "the file is damaged: copy it again, or remove it with its image" if whole else "the file is none of them"


def stored_depths(encoded: bytes) -> np.ndarray:
    """The numbers of a map as stored, (h, w); ValueError for a file that is none."""
    if encoded[:6] == b"\x93NUMPY":
        try:
            values = np.load(io.BytesIO(encoded), allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"Expected a depth map (h, w) of numbers as .npy: {error}.") from None
    else:
        from PIL import Image

        try:
            image = Image.open(io.BytesIO(encoded), formats=("PNG", "TIFF"))
            values = np.asarray(image)
        except OSError:
            raise ValueError(f"Expected a depth map as .npy, PNG or TIFF; {_what_is(encoded)}.") from None
        if image.mode == "P":
            raise ValueError("Expected a depth map (h, w) of numbers, got an image with a palette of colours.")
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        raise ValueError(f"Expected a depth map (h, w) of numbers, got {values.dtype} {values.shape}.")
    return values


def as_metres(encoded: bytes, mask: bytes, scale: float) -> np.ndarray:
    """A map's depths, (h, w, 1) float32 metres, 0 where void. `mask` is that of DIODE as .npy, or b""."""
    metres = stored_depths(encoded).astype("float32") * np.float32(scale)
    valid = np.isfinite(metres) & (metres > 0)
    if mask:
        valid &= stored_depths(mask) > 0
    return np.where(valid, metres, np.float32(0))[..., None]


def _sample(pairs):
    """Some maps as stored; an error names the file."""
    found = []
    for pair in spread(pairs, _SAMPLE):
        name = "a row's depth" if _is_content(pair.depth) else os.fsdecode(pair.depth)
        try:
            found.append(stored_depths(pair.depth if _is_content(pair.depth) else _read(pair.depth)))
        except (ValueError, tf.errors.NotFoundError) as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def _scale_of(title, pairs, given, sample):
    """Metres per unit: given, or shown by the layout or the numbers; ValueError where neither does."""
    if given:
        try:
            scale = float(given)
        except ValueError:
            scale = 0.0
        if not 0 < scale < float("inf"):
            raise ValueError(f"{title}: scale={given}: expected metres per unit, a number above 0: {_UNITS}.")
        return scale
    whole = [values for values in sample if values.dtype.kind != "f"]
    if not whole:
        return 1.0
    first = "" if _is_content(pairs[0].depth) else os.fsdecode(pairs[0].depth)
    if len(whole) == len(sample) and whole[0].dtype.itemsize > 1:
        if os.path.basename(first).startswith("sync_depth_"):
            return 0.001
        if "proj_depth" in first.split("/"):
            return 1 / 256
    raise ValueError(
        f"{title}: the depth maps have integers, up to {max(int(values.max()) for values in whole):,}, and nothing"
        f" shows their unit. Write how many metres a unit is: {_UNITS}."
    )


def _report(title, split, pairs, scale, sample):
    """Logs the number of pairs, the range of depths and the share of void."""
    metres = np.concatenate([(values * scale).reshape(-1) for values in sample])
    known = metres[np.isfinite(metres) & (metres > 0)]
    if not known.size:
        raise ValueError(f"{title}, {split}: none of {counted(len(sample), 'map')} has a depth above 0.")
    if np.median(known) > _FAR:
        logging.warning(
            "%s: half of the depths are above %d m. If they are millimetres, write ?scale=0.001 (%s).",
            title,
            _FAR,
            _UNITS,
        )
    log_once(
        logging.INFO,
        f"{title}, {split}: {counted(len(pairs), 'pair')} of image and depth; {known.min():.2f} to {known.max():.2f} m,"
        f" {1 - known.size / metres.size:.1%} void, in {counted(len(sample), 'map')} at {scale:g} m per unit.",
    )


def source_of_depths(title: str, pairs: Sequence[Any], scale: float) -> RandomAccess:
    """Makes a source of pairs (image, depth, mask), paths or bytes, in this order."""
    images, maps, masks = (tf.constant([pair[i] for pair in pairs]) for i in range(3))
    in_memory = _is_content(pairs[0].image), _is_content(pairs[0].depth)

    def lookup(i):
        image, depth = (
            cells[i] if held else tf.io.read_file(cells[i]) for cells, held in zip((images, maps), in_memory)
        )
        return {"image": in_known_format(image), "depth": depth, "depth_mask": masks[i]}

    def metres(encoded, mask):
        encoded, mask = (np.asarray(value, object).item() for value in (encoded, mask))
        return as_metres(encoded, mask and _read(mask), scale)

    def parse(example):
        given = [example["depth"], example["depth_mask"]]
        depth = tf.ensure_shape(tf.numpy_function(metres, given, tf.float32, stateful=False), (None, None, 1))
        return {"image": example["image"], "depth": depth}

    def name_of(i):
        return images[i]

    return RandomAccess(title, (), None, lookup, None if in_memory[0] else name_of, count=len(pairs), parse=parse)


def depths(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of images with depth maps, relative to `data_dir` if given; logs one line about them.

    Args:
        path: str. A folder or table, with the option scale=, metres per unit.
        split: str. A split named by folders or the column split, else "train". Slices use a fixed random order.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if there is no such folder or table.
        ValueError: if nothing matches, the split is missing, or the unit of depths is unclear.
    """
    place, chosen = split_options(path, scale="")
    root, title = locate(place, data_dir).rstrip("/"), f"depth:{place}"
    with stage(f"Reading {root}"):
        if root.lower().endswith(_TABLES):
            pairs = _in_table(root)
        else:
            check_folder(root)
            pairs = _in_folder(root)
    asked = find_split(f'"{root}"', split, dict.fromkeys(pair.split for pair in pairs))
    own = [pair for pair in pairs if pair.split == asked]
    sample = _sample(own)
    scale = _scale_of(title, own, chosen["scale"], sample)
    _report(title, asked, own, scale, sample)
    return source_of_depths(title, take_slice(split, fixed_shuffle(own)), scale)
