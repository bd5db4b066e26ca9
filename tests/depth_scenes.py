"""Scenes with known depth: textured planes and spheres in perspective, by exact ray intersections.

A camera at the origin looks along z, at a floor, two walls at the sides, one at the back and spheres, all with coloured
textures that shrink with distance; the depth is z in metres, as in NYU and KITTI. A scene is a function of its number.
"""

import pathlib
import sys

import numpy as np

FOCAL = 1.0  # of the image's width
HEIGHT = 1.5  # metres of the camera above the floor


def _rays(height, width):
    """Directions (h, w, 3) with z = 1 through the pixels' centres; y is up."""
    x = (np.arange(width) + 0.5 - width / 2) / (FOCAL * width)
    y = -(np.arange(height) + 0.5 - height / 2) / (FOCAL * width)
    return np.stack([*np.meshgrid(x, y), np.ones((height, width))], -1)


def _texture(points, rng):
    """Colours 0..1 of points (..., 3): checks of random colours and size, and stripes."""
    a, b = rng.uniform(0.1, 0.9, (2, 3))
    size, phase = rng.uniform(0.25, 0.7), rng.uniform(0, 1, 3)
    cells = np.floor(points / size + phase).astype(int).sum(-1) % 2
    stripes = 0.08 * np.sin(points @ rng.normal(0, 12, 3))
    return np.clip(np.where(cells[..., None] == 1, a, b) + stripes[..., None], 0, 1)


def scene(number: int, height: int = 96, width: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """(image (h, w, 3) uint8, depth (h, w) float32 metres) of the scene with this number."""
    rng, rays = np.random.default_rng(number), _rays(height, width)
    left, right, back = rng.uniform(1.2, 4), rng.uniform(1.2, 4), rng.uniform(4, 9.5)
    planes = [((0, -1, 0), HEIGHT), ((-1, 0, 0), left), ((1, 0, 0), right), ((0, 0, 1), back), ((0, 1, 0), 1.5)]
    depth, color = np.full((height, width), np.inf), np.zeros((height, width, 3))

    def see(z, normals):
        """Draws a surface at depths z (h, w), inf where it is not."""
        nonlocal depth, color
        nearer = (z > 0.3) & (z < depth)
        points = rays * np.where(nearer, z, 1)[..., None]
        light = 0.55 + 0.45 * np.abs(normals @ np.array((0.3, 0.8, -0.5)))
        drawn = _texture(points, rng) * light[..., None]
        depth, color = np.where(nearer, z, depth), np.where(nearer[..., None], drawn, color)

    for normal, distance in planes:
        along = rays @ np.array(normal, float)
        see(np.where(along > 1e-9, distance / np.maximum(along, 1e-9), np.inf), np.broadcast_to(normal, rays.shape))
    for _ in range(rng.integers(1, 5)):
        radius, z = rng.uniform(0.25, 0.8), rng.uniform(1.6, back - 0.5)
        center = np.array((rng.uniform(-0.4, 0.4) * z, rng.uniform(radius - HEIGHT, 0.6), z))
        b, c = rays @ center, center @ center - radius**2
        square = (rays * rays).sum(-1)
        root = b**2 - square * c
        z = np.where(root > 0, (b - np.sqrt(np.maximum(root, 0))) / square, np.inf)
        see(z, (rays * np.where(root > 0, z, 0)[..., None] - center) / radius)
    noise = rng.normal(0, 0.02, color.shape)
    return (255 * np.clip(color + noise, 0, 1)).round().astype("uint8"), depth.astype("float32")


def write(folder: pathlib.Path, counts: tuple[int, ...] = (300, 60, 60), size: tuple[int, int] = (96, 128)):
    """Writes train/, val/ and test/ with images/x.png and depth/x.png in millimetres: "depth:FOLDER?scale=0.001"."""
    from PIL import Image

    for number, (split, count) in enumerate(zip(("train", "val", "test"), counts)):
        for name in ("images", "depth"):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image, depth = scene(100_000 * number + i, *size)
            Image.fromarray(image).save(folder / split / "images" / f"{i:04d}.png")
            Image.fromarray((depth * 1000).round().astype("uint16")).save(folder / split / "depth" / f"{i:04d}.png")
    return folder


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
