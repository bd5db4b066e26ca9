"""Draws scenes of overlapping shapes with textures, some of them touching copies, with COCO annotations.

    python tests/instance_scenes.py FOLDER [SCENES]

writes FOLDER/train/*.png, FOLDER/val/*.png, instances_train.json and instances_val.json, seven eighths and one eighth
of the scenes. A mask is what is visible of a shape, as in COCO.
"""

import json
import math
import pathlib
import sys

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("disc", "square", "triangle", "star")
SIDE = 128  # pixels of a scene
_LEAST = 0.4  # of a shape that must be visible


def _corners(kind, radius, turn):
    """The corners (n, 2) of a shape around 0."""
    count, inner = {"disc": (40, 1.0), "square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.5)}[kind]
    radii = radius * np.where(np.arange(count) % 2, inner, 1.0)
    angles = turn + 2 * math.pi * np.arange(count) / count
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], -1)


def _inside(corners, side):
    """The pixels of a polygon, (side, side) bool."""
    picture = Image.new("1", (side, side))
    ImageDraw.Draw(picture).polygon([tuple(corner) for corner in corners], fill=1)
    return np.asarray(picture)


def _texture(rng, side):
    """Two colours in stripes, in checks or in spots: (side, side, 3)."""
    y, x = np.mgrid[:side, :side]
    period, angle = rng.integers(5, 12), rng.uniform(0, math.pi)
    wave = np.sin(2 * math.pi * (x * np.cos(angle) + y * np.sin(angle)) / period)
    across = np.sin(2 * math.pi * (y * np.cos(angle) - x * np.sin(angle)) / period)
    pattern = [wave > 0, wave * across > 0, wave + across > 0.7][rng.integers(3)]
    one, other = rng.integers(0, 256, (2, 3))
    return np.where(pattern[..., None], one, other)


def _placed(rng, side):
    """(class, corners, texture) of one shape, or of two touching copies."""
    label, radius, turn = int(rng.integers(len(CLASSES))), rng.uniform(0.09, 0.2) * side, rng.uniform(0, math.pi)
    corners, texture = _corners(CLASSES[label], radius, turn), _texture(rng, side)
    place = rng.uniform(0.1 * side, 0.9 * side, 2)
    found = [(label, corners + place, texture)]
    if rng.random() < 0.3:
        away = rng.uniform(0, 2 * math.pi)
        direction = np.array([np.cos(away), np.sin(away)])
        reach = np.ptp(corners @ direction)  # so far apart, the copies touch
        found.append((label, corners + place + direction * reach, texture))
    return found


def scene(rng: np.random.Generator, side: int = SIDE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A scene: pixels (side, side, 3) uint8, masks (m, side, side) bool of what is visible, and labels (m,)."""
    background = rng.integers(0, 256, 3) + np.linspace(-40, 40, side)[:, None, None] * rng.choice([-1, 1])
    pixels = np.broadcast_to(background, (side, side, 3)).copy()
    owner, shapes, whole = np.full((side, side), -1), [], []
    for _ in range(rng.integers(2, 6)):
        for label, corners, texture in _placed(rng, side):
            inside = _inside(corners, side)
            covered = np.where(inside, len(shapes), owner)
            areas = [*whole, inside.sum()]
            if inside.sum() < 60 or any((covered == i).sum() < _LEAST * area for i, area in enumerate(areas)):
                continue
            owner, whole = covered, areas
            shapes.append(label)
            pixels[inside] = texture[inside]
    pixels = np.clip(pixels + rng.normal(0, 8, pixels.shape), 0, 255).astype("uint8")
    return pixels, np.stack([owner == i for i in range(len(shapes))]), np.array(shapes)


def _runs(mask):
    """A mask as COCO's uncompressed run lengths."""
    flat = mask.T.reshape(-1)  # (h, w) -> (w * h)
    bounds = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff([0, *([0] if flat[0] else []), *bounds, flat.size])
    return {"size": list(mask.shape), "counts": counts.tolist()}


def annotation(mask: np.ndarray, label: int, number: int, image: int) -> dict:
    """COCO's annotation of a mask (h, w) bool."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, left = int(rows[0]), int(columns[0])
    box = [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top]
    own = {"id": number, "image_id": image, "category_id": int(label) + 1, "iscrowd": 0}
    return {**own, "bbox": box, "area": int(mask.sum()), "segmentation": _runs(mask)}


def write(folder: str | pathlib.Path, scenes: int = 400, seed: int = 0, side: int = SIDE) -> None:
    """Writes scenes and their annotations."""
    folder, rng = pathlib.Path(folder), np.random.default_rng(seed)
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)]
    parts = {"train": range(scenes - scenes // 8), "val": range(scenes - scenes // 8, scenes)}
    for split, numbers in parts.items():
        images, annotations = [], []
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            pixels, masks, labels = scene(rng, side)
            name = f"{number:04}.png"
            Image.fromarray(pixels).save(folder / split / name)
            images.append({"id": number, "file_name": name, "height": side, "width": side})
            for mask, label in zip(masks, labels):
                annotations.append(annotation(mask, label, len(annotations) + 1, number))
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / f"instances_{split}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400)
