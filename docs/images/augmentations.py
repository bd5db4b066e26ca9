"""Draws augmentations.png, a sheet with every augmentation op on one photograph: python docs/images/augmentations.py

The photographs are scikit-learn's samples, cropped and made smaller, both CC BY 2.0: flower.jpg,
flickr.com/photos/vultilion/6056698931, and china.jpg, flickr.com/photos/danielbuechele/6061409035.
"""

import io
import pathlib

import numpy as np
import tensorflow as tf
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_image

from keras_vit.data import parse
from keras_vit.data.ops import affine, color, erasing
from keras_vit.training import Cutmix, Mixup

# RandAugment's ops, about as strong as at magnitude 10.
FIXED = {
    "autocontrast": color.autocontrast,
    "equalize": color.equalize,
    "invert": color.invert,
    "rotate": lambda x: affine.rotate(x, 30.0),
    "posterize": lambda x: color.posterize(x, 2),
    "solarize": color.solarize,
    "color": lambda x: color.saturation(x, 1.9),
    "contrast": lambda x: color.contrast(x, 1.9),
    "brightness": lambda x: color.brightness(x, 1.9),
    "sharpness": lambda x: color.sharpness(x, 1.9),
    "shear_x": lambda x: affine.shear_x(x, 0.3),
    "shear_y": lambda x: affine.shear_y(x, 0.3),
    "translate_x": lambda x: affine.translate_x(x, 45),
    "translate_y": lambda x: affine.translate_y(x, 45),
    "cutout": lambda x: erasing.cutout(x, 20, 55, 70),
    "solarize_add": lambda x: color.solarize_add(x, 110),
}
# Random ops, and the seeds to show. Shifts and squares have half as many pixels as for images of 224.
RANDOM = {
    "rand_augment(2, 10, 50, 20)": (2, 8, 11),
    "rand_augment(2, 15, 50, 20)": (2, 4, 7),
    "rand_augment(2, 20, 50, 20)": (2, 8, 10),
    "auto_augment(translate=125)": (2, 5, 9),
    "trivial_augment": (4, 8, 12),
    "color_jitter(.4, .4, .4, .1)": (2, 4),
    "random_grayscale(1)": (2,),
    "gaussian_blur(1)": (5,),
    "random_erasing(1)": (2, 5),
    "random_erasing(1, mode='const')": (2,),
}
COLUMNS, SIZE = 7, 112


def photograph():
    """(SIZE, SIZE, 3) uint8."""
    image = Image.fromarray(load_sample_image("flower.jpg")).crop((120, 40, 500, 420))
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.LANCZOS))


def panels(photo):
    """(title, [pixels, ...]) of every op, with one image per seed."""
    image = tf.constant(photo)
    yield "the photograph", [photo]
    for name, function in FIXED.items():
        yield name, [np.asarray(function(image))]
    for text, seeds in RANDOM.items():
        title = text.replace(", 50, 20", "").replace("translate=125", "").replace(", mode", ",\nmode")
        yield title, [np.asarray(parse(text).image(image, tf.constant([seed, 3], tf.int64))) for seed in seeds]
    other = np.asarray(load_sample_image("china.jpg"))[100:324:2, 200:424:2]
    pair, labels = np.stack([photo, other]), np.arange(2)
    for name, mixing, steps in (("Mixup(1)", Mixup(1.0, 2), (5,)), ("Cutmix(1)", Cutmix(1.0, 2), (2, 5))):
        yield name, [np.asarray(mixing(pair, labels, step)[0][0]).astype("uint8") for step in steps]


def main():
    cells = [(title, pixels) for title, several in panels(photograph()) for pixels in several]
    rows = -(-len(cells) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * 1.5, rows * 1.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for ax in axes:
        ax.axis("off")
    for ax, (title, pixels) in zip(axes, cells):
        ax.imshow(pixels)
        ax.set_title(title, fontsize=7)
    sheet = io.BytesIO()
    figure.savefig(sheet, format="png", dpi=80)
    # Fewer colours: a third of the bytes.
    small = Image.open(sheet).convert("RGB").quantize(160, dither=Image.Dither.NONE)
    small.save(pathlib.Path(__file__).with_name("augmentations.png"), optimize=True)


if __name__ == "__main__":
    main()
