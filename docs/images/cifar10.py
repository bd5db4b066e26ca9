"""Draws cifar10.png from cifar10.csv, test accuracy against seconds of training of the runs in docs/recipes.md: python
docs/images/cifar10.py

The seconds are steps times the time of a step, which was measured alone on the two cores; the keras.io example's were
measured in its run.
"""

import collections
import csv
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = {
    "with a convolutional stem": "tab:red",
    "plain": "tab:blue",
    "timm": "tab:green",
    "keras.io example": "tab:gray",
}
TITLES = {"6": "recipes for six minutes", "20": "recipes for twenty minutes"}


def curves():
    """{minutes: {(system, run): [(seconds, accuracy in percent)]}} in the order of the file."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in csv.DictReader((HERE / "cifar10.csv").read_text().splitlines()):
        found[row["minutes"]][row["system"], row["run"]].append((float(row["seconds"]), 100 * float(row["accuracy"])))
    return found


def panel(ax, found):
    """A line a run, a colour a system."""
    named = set()
    for (system, _), points in found.items():
        seconds, accuracy = zip(*points)
        label = system if system not in named else None
        ax.plot(seconds, accuracy, "o-", color=COLOURS[system], markersize=3, linewidth=1.2, label=label)
        named.add(system)
    ax.set(xlabel="seconds of training on 2 cores", xlim=(0, None), ylim=(0, 100))
    ax.grid(alpha=0.3)


def draw(found):
    """The figure: a panel a budget of time."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(found), sharey=True)
    for ax, (minutes, runs) in zip(axes, found.items()):
        panel(ax, runs)
        ax.set_title(TITLES[minutes], fontsize=10)
    axes[0].set_ylabel("CIFAR-10 test accuracy, %")
    axes[0].legend(loc="lower left")
    return figure


if __name__ == "__main__":
    draw(curves()).savefig(HERE / "cifar10.png", dpi=110)
