"""Draws what trained models predict: front.png, camvid.png and gallery/cells.png, and the tiles of docs/index.md.

    python docs/images/predictions.py front PHOTO SCENE SEGMENTER CELL DETECTOR
    python docs/images/predictions.py camvid CAMVID TITLE=SEGMENTER...
    python docs/images/predictions.py cells BCCD DETECTOR
    python docs/images/predictions.py tiles

PHOTO, SCENE and CELL are image files, SEGMENTER and DETECTOR runs or models of docs/segmentation.md and
docs/detection.md; CAMVID and BCCD are folders with the data. The photograph of front.png is scikit-learn's china.jpg,
CC BY 2.0, flickr.com/photos/danielbuechele/6061409035, classified by deit/tiny. `tiles` cuts its pictures from those of
this folder.
"""

import io
import pathlib
import sys

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

import keras_vit
from keras_vit.data import open_source
from keras_vit.io.box_pictures import Mark, draw
from keras_vit.io.mask_pictures import colored, palette

HERE = pathlib.Path(__file__).resolve().parent
SCENES, CELLS = (10, 45, 90), (3, 40, 71)  # rows of the validation images
TILE = (360, 200)  # pixels
# Name: the picture, and the part (left, top, right, bottom) to show, as fractions.
TILES = {
    "classify": ("front.png", (0.0, 0.0, 0.333, 1.0)),
    "segment": ("front.png", (0.333, 0.0, 0.667, 1.0)),
    "detect": ("front.png", (0.667, 0.0, 1.0, 1.0)),
    "pretrain": ("gallery/reconstructions.png", (0.0, 0.0, 0.447, 1.0)),
    "inspect": ("gallery/inspect.png", (0.0, 0.0, 0.6, 1.0)),
    "serve": ("serve_light.png", (0.0, 0.0, 1.0, 0.6)),
}


def save(picture, name, colors=256):
    """Writes a Pillow image with few colours: a third of the bytes."""
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    picture.convert("RGB").quantize(colors, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)


def rendered(figure, dpi=100):
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(dpi)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba()))


def show(ax, pixels, title=""):
    ax.imshow(pixels, interpolation="antialiased")
    ax.set_title(title, fontsize=10)
    ax.set_axis_off()


def pixels(example):
    """(h, w, 3) uint8 of an example's file."""
    return np.asarray(Image.open(io.BytesIO(example["image"].numpy())).convert("RGB"))


def grid(rows, columns, names=None):
    """A figure of pictures in rows, with titles of the columns and names of the rows."""
    figure = Figure((2.6 * len(columns), 2.0 * len(rows) + 0.7), layout="constrained")
    for r, axes in enumerate(figure.subplots(len(rows), len(columns), squeeze=False)):
        for ax, picture, title in zip(axes, rows[r], columns):
            show(ax, picture, title if r == 0 else "")
        if names:
            axes[0].text(-0.03, 0.5, names[r], rotation=90, va="center", ha="right", transform=axes[0].transAxes)
    return figure


def bars(ax, classes):
    """Class names and probabilities over the lower part of a picture."""
    height, width = ax.images[0].get_array().shape[:2]
    for i, (name, share, *_) in enumerate(classes):
        y = height * (0.72 + 0.09 * i)
        ax.barh(y, 0.62 * width * share / classes[0][1], height * 0.075, left=width * 0.02, color="#0072b2", alpha=0.85)
        ax.text(width * 0.035, y, f"{name} {share:.0%}", color="white", va="center", fontsize=9, weight="bold")
    ax.set(xlim=(0, width), ylim=(height, 0))


def front(photo, scene, segmenter, cell, detector):
    figure = Figure((10.5, 2.75), layout="constrained")
    axes = figure.subplots(1, 3)
    image = Image.open(photo).convert("RGB")
    width, height = image.size
    image = image.crop((0, 0, round(height * 4 / 3), height)) if width * 3 > height * 4 else image
    show(axes[0], np.asarray(image))
    bars(axes[0], keras_vit.load("deit/tiny").classify(photo, top_k=3))
    show(axes[1], np.asarray(keras_vit.load(segmenter).segment(scene).picture(legend=False)))
    show(axes[2], np.asarray(keras_vit.load(detector).detect(cell).picture()))
    save(rendered(figure, 130), "front.png")


def camvid(folder, models):
    """Scene, truth and each model's prediction of three validation images."""
    source = open_source(f"masks:{folder}", "val")
    colors = palette(len(source.class_names))
    examples = [source.read(row) for row in SCENES]
    rows = [[pixels(example), colored(example["mask"][..., 0], colors)] for example in examples]
    for path in models.values():
        model = keras_vit.load(path)
        for row in rows:
            row.append(colored(model.segment(row[0]).classes, colors))
    figure = grid(rows, ("scene", "truth", *models))
    patches = [Patch(color=np.array(color) / 255, label=name) for color, name in zip(colors, source.class_names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    save(rendered(figure), "camvid.png")


def cells(folder, detector):
    """Truth above the prediction of three validation images."""
    source, model = open_source(f"boxes:{folder}", "val"), keras_vit.load(detector)
    colors = palette(len(source.class_names))
    rows = []
    for row in CELLS:
        example = source.read(row)
        marks = [
            Mark(box, source.class_names[label], colors[label])
            for box, label in zip(example["boxes"].numpy(), example["labels"].numpy())
        ]
        image = pixels(example)
        rows.append([draw(image, marks), np.asarray(model.detect(image).picture())])
    save(rendered(grid(list(zip(*rows)), ("",) * len(rows), ("truth", "prediction"))), "gallery/cells.png")


def tiles():
    for name, (picture, part) in TILES.items():
        image = Image.open(HERE / picture).convert("RGB")
        box = [round(share * side) for share, side in zip(part, image.size * 2)]
        image = image.crop(box)
        scale = max(TILE[0] / image.width, TILE[1] / image.height)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
        left, top = (image.width - TILE[0]) // 2, 0
        save(image.crop((left, top, left + TILE[0], top + TILE[1])), f"tiles/{name}.png", 128)


def main(kind, *arguments):
    if kind == "camvid":
        camvid(arguments[0], dict(argument.split("=", 1) for argument in arguments[1:]))
    else:
        {"front": front, "cells": cells, "tiles": tiles}[kind](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
