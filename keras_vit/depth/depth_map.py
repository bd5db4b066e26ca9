"""Depths of images of any size, for `DepthModel.estimate`, and their pictures: (h, w), void where not above 0."""

import dataclasses
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.io.mask_pictures import rgb, text
from keras_vit.prediction.images import Reader, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing
from keras_vit.segmentation.segment import whole_text

if TYPE_CHECKING:
    from PIL import Image

MILLIMETRES = 65535  # the largest depth of a 16-bit file in millimetres
# Colours of the shares 0, 0.25... 1 from dark to light, those of matplotlib's viridis: distinct with any colour vision.
_COLORS = np.array(((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)), "float64")
_BAR = 12  # pixels of a scale's height


def known(depth: Any) -> np.ndarray:
    """Where a map has a depth, a finite number above 0."""
    depth = np.asarray(depth)
    return np.isfinite(depth) & (depth > 0)


def depth_range(*depths: np.ndarray) -> tuple[float, float]:
    """(least, largest) depth of maps; (0, 1) without any."""
    found = np.concatenate([np.asarray(depth)[known(depth)].reshape(-1) for depth in depths])
    return (float(found.min()), float(found.max())) if found.size else (0.0, 1.0)


def in_colors(values: Any, low: float, high: float) -> np.ndarray:
    """Values from `low` to `high` as colours from dark to light: (h, w) -> (h, w, 3) uint8."""
    shares = np.clip((np.nan_to_num(np.asarray(values, "float64")) - low) / max(high - low, 1e-9), 0, 1)
    stops = np.linspace(0, 1, len(_COLORS))
    return np.stack([np.interp(shares, stops, column) for column in _COLORS.T], axis=-1).round().astype("uint8")


def depth_picture(depth: Any, low: float, high: float) -> np.ndarray:
    """A map in colours, near dark and far light, black where void: (h, w) -> (h, w, 3) uint8."""
    return np.where(known(depth)[..., None], in_colors(depth, low, high), 0).astype("uint8")


def scale_bar(low: float, high: float, width: int, unit: str = "m") -> np.ndarray:
    """The colours from `low` to `high` in a row, with both numbers below: (h, width, 3) uint8, on white."""
    bar = in_colors(np.tile(np.linspace(low, high, width), (_BAR, 1)), low, high)
    left, right = (text(f"{value:.2f} {unit}".rstrip()) for value in (low, high))
    words = np.full((len(left), width, 3), 255, "uint8")
    words[:, : left.shape[1]] = left[:, :width]
    if left.shape[1] + right.shape[1] <= width:
        words[:, width - right.shape[1] :] = right
    return np.concatenate([np.full((4, width, 3), 255, "uint8"), bar, words])


def with_scale(picture: np.ndarray, low: float, high: float, unit: str = "m") -> np.ndarray:
    """A picture (h, w, 3) uint8 above its scale."""
    return np.concatenate([picture, scale_bar(low, high, picture.shape[1], unit)])


def resized_depth(depth: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map (h, w) at (height, width), bilinear: float32."""
    from PIL import Image

    if tuple(depth.shape) == tuple(size):
        return np.asarray(depth, "float32")
    return np.asarray(Image.fromarray(np.asarray(depth, "float32")).resize(size[::-1], Image.Resampling.BILINEAR))


@dataclasses.dataclass(frozen=True, eq=False)
class DepthMap:
    """The depth of every pixel of an image.

    Attributes:
        depth: (h, w) float32: metres, or for "relative" an inverse depth, larger is nearer; h, w are those of the
            upright image.
        kind: "metric" or "relative".
        image: the image, upright: pixels (h, w, c) uint8.
    """

    depth: np.ndarray
    kind: str
    image: np.ndarray

    @property
    def unit(self) -> str:
        """ "m", or "" for relative depth."""
        return "m" if self.kind == "metric" else ""

    def picture(self, beside: bool = True) -> "Image.Image":
        """The depth in colours above its scale: a Pillow image, to show or save.

        Args:
            beside: whether to put the image to its left.
        """
        from PIL import Image

        limits = depth_range(self.depth)
        drawn = with_scale(depth_picture(self.depth, *limits), *limits, self.unit)
        if beside:
            image = rgb(self.image)
            white = np.full((len(drawn) - len(image), image.shape[1], 3), 255, "uint8")
            drawn = np.concatenate([np.concatenate([image, white]), drawn], axis=1)
        return Image.fromarray(drawn)

    def png(self) -> bytes:
        """The depth in millimetres as a 16-bit PNG file; ValueError for relative depth, or one above 65.5 m."""
        from PIL import Image

        if self.kind != "metric" or depth_range(self.depth)[1] * 1000 > MILLIMETRES:
            raise ValueError(
                "A PNG of millimetres holds metric depths up to 65.5 m: save the array instead,"
                ' numpy.save("depth.npy", found.depth).'
            )
        file = io.BytesIO()
        Image.fromarray((self.depth * 1000).round().astype("uint16")).save(file, "PNG")
        return file.getvalue()

    def npy(self) -> bytes:
        """The depth as a NumPy file, (h, w) float32."""
        file = io.BytesIO()
        np.save(file, self.depth)
        return file.getvalue()

    def __repr__(self):
        height, width = self.depth.shape
        low, high = depth_range(self.depth)
        return f"DepthMap({height} x {width} pixels, {self.kind}: {low:.3g} to {high:.3g}{self.unit and ' m'})"


def maps_of_pixels(model, images, batch_size: int = 8):
    """The DepthMaps of pixels 0..255 (h, w, c) uint8 in a model's channels, in order."""
    whole, pixel_range = parse_preprocessing(whole_text(model)), Reader(model).range

    def maps(batch):
        pixels = np.stack([whole.image(image).numpy() for image in batch])
        depths = np.asarray(model.predict_on_batch(pixel_range.of_bytes(pixels)), "float32")[..., 0]
        for image, depth in zip(batch, depths):
            yield DepthMap(resized_depth(depth, image.shape[:2]), model.kind, image)

    batch = []
    for image in images:
        batch.append(image)
        if len(batch) == batch_size:
            yield from maps(batch)
            batch = []
    if batch:
        yield from maps(batch)


def estimate(model, x: Any, batch_size: int, verbose: bool | int | str) -> DepthMap | list[DepthMap]:
    """The depth of every pixel of one image or a list; see DepthModel.estimate."""
    read = Reader(model)

    def answers(images):
        return maps_of_pixels(model, (read(item, name) for item, name in images), batch_size)

    return each_answer(answers, x, verbose, batch_size)
