"""Corruptions by name, with parameters for five strengths at 224 pixels (hendrycks/robustness, make_imagenet_c.py)."""

import dataclasses
from collections.abc import Callable

from keras_vit.data.ops.corruption import blur, digital, noise, spatter, weather

STRENGTHS = (1, 2, 3, 4, 5)


@dataclasses.dataclass(frozen=True)
class Corruption:
    """A corruption.

    Attributes:
        kind: str. noise, blur, weather or digital.
        function: callable. (x, draws, *row) -> x; see the package's docstring.
        rows: tuple of tuples. Parameters at strengths 1 to 5.
        is_extra: bool. Whether the authors reserve it for validation.
    """

    kind: str
    function: Callable
    rows: tuple[tuple, ...]
    is_extra: bool = False


def _column(*values):
    return tuple((value,) for value in values)


_ELASTIC = ((488.0, 170.8, 24.4), (488.0, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88))
_SNOW = (
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
_SPATTER = (
    (0.65, 0.3, 4, 0.69, 0.6, False),
    (0.65, 0.3, 3, 0.68, 0.6, False),
    (0.65, 0.3, 2, 0.68, 0.5, False),
    (0.65, 0.3, 1, 0.65, 1.5, True),
    (0.67, 0.4, 1, 0.65, 1.5, True),
)

CORRUPTIONS = {
    "gaussian_noise": Corruption("noise", noise.gaussian_noise, _column(0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": Corruption("noise", noise.shot_noise, _column(60, 25, 12, 5, 3)),
    "impulse_noise": Corruption("noise", noise.impulse_noise, _column(0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": Corruption("blur", blur.defocus_blur, ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))),
    "glass_blur": Corruption("blur", blur.glass_blur, ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
    "motion_blur": Corruption("blur", blur.motion_blur, ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
    "zoom_blur": Corruption(
        "blur", blur.zoom_blur, ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    ),
    "snow": Corruption("weather", weather.snow, _SNOW),
    "frost": Corruption("weather", weather.frost, ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
    "fog": Corruption("weather", weather.fog, ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
    "brightness": Corruption("weather", weather.brightness, _column(0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Corruption("digital", digital.contrast, _column(0.4, 0.3, 0.2, 0.1, 0.05)),
    "elastic_transform": Corruption("digital", digital.elastic_transform, _ELASTIC),
    "pixelate": Corruption("digital", digital.pixelate, _column(0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": Corruption("digital", digital.jpeg_compression, _column(25, 18, 15, 10, 7)),
    "speckle_noise": Corruption("noise", noise.speckle_noise, _column(0.15, 0.2, 0.35, 0.45, 0.6), is_extra=True),
    "gaussian_blur": Corruption("blur", blur.gaussian_blur, _column(1, 2, 3, 4, 6), is_extra=True),
    "spatter": Corruption("weather", spatter.spatter, _SPATTER, is_extra=True),
    "saturate": Corruption(
        "digital", digital.saturate, ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)), is_extra=True
    ),
}
STANDARD = tuple(name for name, row in CORRUPTIONS.items() if not row.is_extra)  # ImageNet-C's fifteen
