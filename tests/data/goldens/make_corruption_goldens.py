"""Writes corruptions.npz: a picture, and what imagecorruptions makes of it with the draws of np.random.RandomState(0).

    python make_corruption_goldens.py      # imagecorruptions 1.1.2, opencv-python 5.0.0, scikit-image 0.26.0, SciPy
    1.17.1, Pillow 13.0.0

imagecorruptions differs from the authors' own code (hendrycks/robustness, make_imagenet_c.py) in some corruptions; here
they are as the authors have them: zooms are cut from the middle, elastic_transform begins with an affine transform, and
its strengths are for 224 pixels, pixelate enlarges by a box filter. The impulses are drawn by np.random, so that they
are known. Frost is left out: it takes photographs.
"""

import pathlib
import sys
import types

import cv2
import numpy as np
import scipy.ndimage
import skimage.filters
from PIL import Image

np.float_ = np.float64  # what the package takes of older versions
sys.modules["scipy.ndimage.interpolation"] = types.SimpleNamespace(map_coordinates=scipy.ndimage.map_coordinates)
import imagecorruptions  # noqa: E402
from imagecorruptions import corruptions as package  # noqa: E402

ELASTIC = [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)]


def gaussian(x, sigma, multichannel=False, **options):
    return skimage.filters.gaussian(x, sigma=sigma, channel_axis=-1 if multichannel else None, **options)


def clipped_zoom(image, factor):
    h, w = image.shape[:2]
    ch, cw = int(np.ceil(h / factor)), int(np.ceil(w / factor))
    top, left = (h - ch) // 2, (w - cw) // 2
    image = scipy.ndimage.zoom(image[top : top + ch, left : left + cw], (factor, factor, 1), order=1)
    top, left = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
    return image[top : top + h, left : left + w]


def random_noise(x, mode, amount):
    hit, white = np.random.uniform(size=x.shape) <= amount, np.random.uniform(size=x.shape) <= 0.5
    return np.where(hit, white.astype("float64"), x)


def elastic_transform(image, severity=1):
    stretch, sigma, skew = (244 * factor for factor in ELASTIC[severity - 1])
    image = np.array(image, dtype="float32") / 255
    size = image.shape[:2]
    centre, side = np.float32(size) // 2, min(size) // 3
    points = np.float32([centre + side, [centre[0] + side, centre[1] - side], centre - side])
    moved = points + np.random.uniform(-skew, skew, size=points.shape).astype("float32")
    matrix = cv2.getAffineTransform(points, moved)
    image = cv2.warpAffine(image, matrix, size[::-1], borderMode=cv2.BORDER_REFLECT_101)
    dx, dy = (
        gaussian(np.random.uniform(-1, 1, size=size), sigma, mode="reflect", truncate=3) * stretch for _ in range(2)
    )
    y, x, z = np.indices(image.shape)
    places = y + dy[..., None].astype("float32"), x + dx[..., None].astype("float32"), z
    return np.clip(scipy.ndimage.map_coordinates(image, places, order=1, mode="reflect"), 0, 1) * 255


def pixelate(image, severity=1):
    share, (w, h) = (0.6, 0.5, 0.4, 0.3, 0.25)[severity - 1], image.size
    return image.resize((int(w * share), int(h * share)), Image.BOX).resize((w, h), Image.BOX)


def main():
    package.gaussian, package.clipped_zoom, package.sk.util.random_noise = gaussian, clipped_zoom, random_noise
    imagecorruptions.corruption_dict |= {"elastic_transform": elastic_transform, "pixelate": pixelate}
    y, x = np.mgrid[:48, :56]
    waves = [128 + 90 * np.sin(0.3 * x + 0.2 * y), 128 + 100 * np.cos(0.5 * y), 255.0 * ((x // 8 + y // 8) % 2)]
    image = np.clip(np.stack(waves, -1) + np.random.RandomState(1).normal(scale=12, size=(48, 56, 3)), 0, 255).astype(
        "uint8"
    )
    found = {"image": image}
    for name in imagecorruptions.get_corruption_names("all"):
        for strength in (1, 5) if name != "frost" else ():
            np.random.seed(0)
            found[f"{name} {strength}"] = imagecorruptions.corrupt(image, strength, name)
    np.savez_compressed(pathlib.Path(__file__).parent / "corruptions.npz", **found)


if __name__ == "__main__":
    main()
