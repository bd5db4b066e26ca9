"""Draws few_labels.png from few_labels.csv, test accuracy against minutes of training of the runs in few_labels.md:
python docs/experiments/few_labels.py

The minutes are steps of fine-tuning times 0.196 s, of igpt 0.292 s, measured alone on the two cores, after the minutes
of pre-training. Dashed lines are of another machine: 0.310 s, after 6000 steps of 0.187 s. Those with all labels are of
a third: 0.640 s (igpt: 1.6 s), after 4100 steps of 0.290 s (mae), 1600 of 0.90 (masked patches), 850 of 1.83 (igpt) or
480 of 3.36 (dino).
"""

import collections
import csv
import pathlib

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = {
    "mae": "tab:blue",
    "mae by AdamW": "tab:cyan",
    "masked patches": "tab:green",
    "igpt": "tab:orange",
    "dino": "tab:purple",
    "from scratch": "tab:gray",
    "mae (Muon throughout)": "tab:blue",
    "from scratch (Muon)": "black",
}
DASHED = ("mae (Muon throughout)", "from scratch (Muon)")
# Minutes: 9000 steps of 144 and of 129 ms, 4500 of 265 (by AdamW; Muon's steps were not measured alone), 4000 of 292.
PRETRAINING = {"mae": 21.6, "mae by AdamW": 19.4, "masked patches": 19.9, "igpt": 19.5, "mae (Muon throughout)": 18.7}
SECONDS = collections.defaultdict(lambda: 0.196, {"igpt": 0.292} | dict.fromkeys(DASHED, 0.310))
ALL_LABELS = {"mae": 19.8, "masked patches": 24.0, "igpt": 25.9, "dino": 26.9}
ALL_LABELS_SECONDS = collections.defaultdict(lambda: 0.640, igpt=1.6)


def curves():
    """{labels: {start: [(minutes, accuracy in percent)]}} in the order of the file."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in csv.DictReader((HERE / "few_labels.csv").read_text().splitlines()):
        seconds, before = SECONDS[row["start"]], PRETRAINING.get(row["start"], 0)
        if row["labels"] == "all":
            seconds, before = ALL_LABELS_SECONDS[row["start"]], ALL_LABELS.get(row["start"], 0)
        minutes = int(row["step"]) * seconds / 60 + before
        found[row["labels"]][row["start"]].append((minutes, 100 * float(row["accuracy"])))
    return found


def draw(found):
    """The figure: a panel for each share of the labels."""
    figure = Figure(figsize=(3.0 + 3.75 * len(found), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for ax, (labels, starts) in zip(axes, found.items()):
        for start, points in starts.items():
            minutes, accuracy = zip(*points)
            line = "o--" if start in DASHED else "o-"
            ax.plot(minutes, accuracy, line, color=COLOURS[start], markersize=4, label=start)
        ax.axvspan(0, (ALL_LABELS if labels == "all" else PRETRAINING)["mae"], color=COLOURS["mae"], alpha=0.08)
        ax.set(
            xlabel="minutes of training on 2 cores",
            xlim=(0, None),
            title="all labels" if labels == "all" else f"{labels} of the labels",
        )
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("CIFAR-10 test accuracy, %")
    middle, floor = PRETRAINING["mae"] / 2, axes[0].get_ylim()[0]
    axes[0].text(middle, floor + 0.5, "pre-training of mae", ha="center", color=COLOURS["mae"], fontsize=8)
    named = {}
    for ax in axes:
        named.update((label, line) for line, label in zip(*ax.get_legend_handles_labels()))
    figure.legend(named.values(), named, loc="outside right center")
    return figure


if __name__ == "__main__":
    draw(curves()).savefig(HERE / "few_labels.png", dpi=110)
