"""Draws cifar10.png from cifar10.csv, test accuracy against seconds of training of the runs in docs/recipes.md: python docs/images/cifar10.py

The seconds are steps times the time of a step, which was measured alone on the two cores; the keras.io example's were measured in its run.
"""

import collections
import csv
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = {"with a convolutional stem": "tab:red", "plain": "tab:blue", "timm": "tab:green", "keras.io example": "tab:gray"}


def curves():
    """{(system, run): [(seconds, accuracy in percent)]} in the order of the file."""
    found = collections.defaultdict(list)
    for row in csv.DictReader((HERE / "cifar10.csv").read_text().splitlines()):
        found[row["system"], row["run"]].append((float(row["seconds"]), 100 * float(row["accuracy"])))
    return found


def draw(found):
    """The figure: a line a run, a colour a system."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    ax, named = figure.subplots(), set()
    for (system, _), points in found.items():
        seconds, accuracy = zip(*points)
        label = system if system not in named else None
        ax.plot(seconds, accuracy, "o-", color=COLOURS[system], markersize=3, linewidth=1.2, label=label)
        named.add(system)
    ax.set(xlabel="seconds of training on 2 cores", ylabel="CIFAR-10 test accuracy, %", xlim=(0, None), ylim=(0, None))
    ax.grid(alpha=0.3)
    ax.legend(loc="lower right")
    return figure


if __name__ == "__main__":
    draw(curves()).savefig(HERE / "cifar10.png", dpi=110)
