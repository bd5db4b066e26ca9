"""Makes augment.npz: what pillow and torchvision make of a small picture. Needs both: python make_goldens.py

The file in the repository is of pillow 13.0.0 and torchvision 0.29 (the gaussian blurs and hues only).
"""

import pathlib

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms.v2 import functional


def picture(channels=3):
    """(24, 32, channels) uint8: smooth ramps with noise on them, dark and light parts, not the whole range."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:24, :32]
    ramps = np.stack([6 * x + 2 * y, 190 - 5 * y - x, 90 + 60 * np.sin(x / 4 + y / 7)], -1)
    pixels = np.clip(ramps + rng.normal(0, 12, ramps.shape), 8, 240).astype("uint8")
    return pixels[..., :channels]


def moved(image, matrix):
    """The output's (x, y) is the input's (a x + b y + c, d x + e y + f); nearest; grey outside."""
    fill = (128,) * 3 if image.mode == "RGB" else 128
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=fill)


def pillow(image):
    """{call of color.py or affine.py: pixels}, of a PIL image."""
    fill = (128,) * 3 if image.mode == "RGB" else 128
    made = {
        "autocontrast()": ImageOps.autocontrast(image),
        "equalize()": ImageOps.equalize(image),
        "invert()": ImageOps.invert(image),
        "grayscale()": image.convert("L").convert(image.mode),
        **{f"posterize({bits})": ImageOps.posterize(image, bits) for bits in (1, 4, 6)},
        **{f"solarize({t})": ImageOps.solarize(image, t) for t in (0, 100, 256)},
        **{f"rotate({d})": image.rotate(d, Image.Resampling.NEAREST, fillcolor=fill) for d in (-45, 12.5)},
        **{f"shear_x({s})": moved(image, (1, s, 0, 0, 1, 0)) for s in (-0.3, 0.45)},
        **{f"shear_y({s})": moved(image, (1, 0, 0, s, 1, 0)) for s in (-0.3, 0.45)},
        **{f"translate_x({p})": moved(image, (1, 0, -p, 0, 1, 0)) for p in (-9, 20)},
        **{f"translate_y({p})": moved(image, (1, 0, 0, 0, 1, -p)) for p in (-9, 20)},
    }
    enhancers = {"saturation": "Color", "contrast": "Contrast", "brightness": "Brightness", "sharpness": "Sharpness"}
    for name, enhancer in enhancers.items():
        for factor in (0.0, 0.1, 1.9, 2.8):
            made[f"{name}({factor})"] = getattr(ImageEnhance, enhancer)(image).enhance(factor)
    return {name: np.asarray(result).reshape(24, 32, -1) for name, result in made.items()}


def torchvision(pixels):
    tensor = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    made = {f"hue({turn})": functional.adjust_hue(tensor, turn) for turn in (-0.4, 0.1, 0.5)}
    for sigma in (0.5, 1.7):
        made[f"gaussian_blur({sigma}, 6)"] = functional.gaussian_blur(tensor, [13, 13], [sigma, sigma])
    return {name: result.numpy().transpose(1, 2, 0) for name, result in made.items()}


if __name__ == "__main__":
    color, gray = picture(), picture(1)
    goldens = {**pillow(Image.fromarray(color)), **torchvision(color)}
    some = (
        "autocontrast()",
        "equalize()",
        "grayscale()",
        "rotate(12.5)",
        "saturation(1.9)",
        "contrast(1.9)",
        "sharpness(1.9)",
    )
    made = pillow(Image.fromarray(gray[..., 0]))
    grays = {f"gray {name}": made[name] for name in some}
    np.savez_compressed(pathlib.Path(__file__).with_name("augment.npz"), color=color, gray=gray, **goldens, **grays)
