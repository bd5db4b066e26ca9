"""Draws camvid.png, what models make of validation scenes of CamVid: python docs/images/camvid.py SCENES TITLE=MODEL...

SCENES is CamVid's folder val/; each MODEL is a run directory of segmentation (docs/segmentation.md has the commands).
"""

import pathlib
import sys

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import keras_vit

NUMBERS = (10, 45, 90)  # of the scenes, in the order of their names


def main(scenes, models):
    paths = sorted(pathlib.Path(scenes).glob("*.jpg"))
    figure = Figure((2.6 * len(models), 2 * len(NUMBERS) + 0.7), layout="constrained")
    axes = figure.subplots(len(NUMBERS), len(models), squeeze=False)
    for column, (title, path) in enumerate(models.items()):
        model = keras_vit.load(path)
        axes[0, column].set_title(title, fontsize=9)
        for row, number in enumerate(NUMBERS):
            found = model.segment(paths[number])
            colors = np.asarray(found.colors, "uint8")
            axes[row, column].imshow(colors[found.classes])
            axes[row, column].set_axis_off()
    patches = [Patch(color=c / 255, label=name) for c, name in zip(colors, found.names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    FigureCanvasAgg(figure).print_png(pathlib.Path(__file__).with_name("camvid.png"))


if __name__ == "__main__":
    main(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:]))
