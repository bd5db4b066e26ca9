"""Draws inspection.png, what `keras-vit inspect` shows of a model, from two pages: python docs/images/inspection.py
PHOTOGRAPHS MANY

PHOTOGRAPHS is the --output of a page on a few images, of which the rows are taken, MANY that of a page on many, of
which the measures are taken. inspection.png in the docs is of DeiT-Ti/16, with three photographs and with 101: COCO's
39769 (cats.png), and scikit-learn's samples, both CC BY 2.0: flower.jpg, flickr.com/photos/vultilion/6056698931, and
china.jpg, flickr.com/photos/danielbuechele/6061409035.
"""

import io
import pathlib
import sys

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

TITLES = ("image", "attention rollout", "the class", "features as colours", "foreground")
MEASURES = {
    "filters.png": "filters of the patch embedding",
    "positions.png": "similarity of positions",
    "attention_distance.png": "attention distance",
}


def on_white(path):
    """A PNG file's pixels (h, w, 3) uint8, white where it is transparent."""
    image = Image.open(path).convert("RGBA")
    return np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB"))


def show(axes, pixels, title=""):
    axes.imshow(pixels, interpolation="antialiased")
    axes.set_title(title, fontsize=10)
    axes.axis("off")


def draw(photographs, many):
    """The figure: a row for each photograph, and below them the measures."""
    sheet = on_white(photographs / "images.png")
    figure = Figure(figsize=(8.2, 7.1), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subfigures(2, 1, height_ratios=(2.05, 1))
    columns = np.array_split(np.arange(sheet.shape[1] + 6), len(TITLES))
    for axes, title, column in zip(above.subplots(1, len(TITLES)), TITLES, columns):
        show(axes, sheet[:, column[0] : column[-1] - 5], title)
    for axes, (name, title) in zip(below.subplots(1, len(MEASURES), width_ratios=(1.35, 0.8, 1.3)), MEASURES.items()):
        show(axes, on_white(many / name), title)
    return figure


def main():
    buffer = io.BytesIO()
    draw(*map(pathlib.Path, sys.argv[1:3])).savefig(buffer, format="png", dpi=100)
    # Fewer colours: a third of the bytes.
    small = Image.open(buffer).convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE)
    small.save(pathlib.Path(__file__).with_name("inspection.png"), optimize=True)


if __name__ == "__main__":
    main()
