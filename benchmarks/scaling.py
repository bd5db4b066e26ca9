"""Speed and memory against image size, patch size and width (arXiv 2010.11929, appendix D.5, figure 12), plotted.

    python -m benchmarks.scaling --output=scaling.png

Each point has its own process, on Linux. Speed is images per second and core of the compiled forward pass and of a
training step, in CPU time, the least of ten calls, so that other work on the machine hardly counts. Memory per image is
the difference in peak memory of two batch sizes over their difference. Counted activations
(keras_vit.planning.counting) are given for comparison; a forward pass may take less where an engine writes in place.
"""

import pathlib
import re
import time

from benchmarks.own_process import in_own_process
from trainers import flags

SIZES = (64, 128, 224, 320)
PATCHES = (8, 14, 16, 28, 56)
WIDTHS = (96, 192, 384, 768)
BATCHES = (4, 12)
# Few blocks, to compile faster; a BiT with one unit per stage.
SMALL = {"Ti/16": {"depth": 4}, "Ti/32": {"depth": 4}, "R+Ti/16": {"depth": 4}, "R26x1": {"units": (1, 1, 1, 1)}}
# {axis: {line: [(position on the axis, variant, image size, overrides)]}}; one thing changes at a time.
SWEEPS = {
    "image size, px": {name: [(size, name, size, overrides) for size in SIZES] for name, overrides in SMALL.items()},
    "patch size, px": {"Ti, 224 px": [(patch, f"Ti/{patch}", 224, {"depth": 4}) for patch in PATCHES]},
    "width": {
        "224 px, patches of 16": [
            (d, "Ti/16", 224, {"depth": 4, "width": d, "heads": d // 32, "mlp_dim": 4 * d}) for d in WIDTHS
        ]
    },
}
PASSES = ("forward", "training")


def highest(function, repeats):
    """(CPU seconds of the fastest call, over all cores, peak memory in bytes meanwhile). The first call compiles."""
    function()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        seconds.append(time.process_time() - began)
    status = pathlib.Path("/proc/self/status").read_text()
    return min(seconds), 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def measured(variant, image_size, overrides, repeats):
    """One point: {pass: (images/s/core, bytes per image, counted bytes per image)}."""
    from benchmarks.model import compiled_model, model_steps
    from keras_vit.models.families import find_spec
    from keras_vit.planning import counting

    spec = find_spec(variant, **overrides)
    model = compiled_model(spec, image_size)
    small, large = (dict(zip(PASSES, model_steps(model, batch))) for batch in BATCHES)
    rows = counting.layer_counts(spec, image_size)
    counted = {"forward": counting.forward_activations(rows), "training": counting.training_activations(rows)}
    found = {}
    for name in PASSES:
        _, before = highest(small[name], repeats)
        seconds, after = highest(large[name], repeats)
        found[name] = BATCHES[1] / seconds, max(after - before, 0) / (BATCHES[1] - BATCHES[0]), 4 * counted[name]
    return found


def draw(results):
    """Speed above memory, one column per axis, training dashed, from {axis: {line: {place: point}}}: PNG."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(results), squeeze=False)
    for column, (axis, lines) in zip(panels.T, results.items()):
        for row, (ax, label, scale) in enumerate(zip(column, ("images/s/core", "memory per image, MB"), (1, 1e-6))):
            for i, (line, points) in enumerate(lines.items()):
                for name, style in zip(PASSES, ("o-", "s--")):
                    values = [point[name][row] * scale for point in points.values()]
                    named = line if name == PASSES[0] else None
                    ax.plot(list(points), values, style, color=f"C{i}", markersize=4, label=named)
            places = sorted({place for points in lines.values() for place in points})
            # Labels that do not overlap.
            places = [place for place, before in zip(places, [0, *places]) if place > 1.2 * before]
            ax.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_xticks(places, places)
            ax.grid(alpha=0.3)
        column[0].legend(fontsize=8)
        column[0].set_ylim(bottom=column[0].get_ylim()[0] / 4)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return buffer.getvalue()


def main():
    values = flags.FLAGS
    head = ("images/s/c", "training", "MB/image", "(counted)", "training", "(counted)")
    results = {}
    for axis, lines in SWEEPS.items():
        print(f"{axis:32}" + "".join(f"{word:>11}" for word in head), flush=True)
        for line, points in lines.items():
            for place, *point in points:
                found = in_own_process(measured, *point, values.repeats)
                results.setdefault(axis, {}).setdefault(line, {})[place] = found
                numbers = [found[name][0] for name in PASSES]
                numbers += [found[name][i] / 1e6 for name in PASSES for i in (1, 2)]
                print(f"{line:24}{place:8}" + "".join(f"{number:11.1f}" for number in numbers), flush=True)
    if values.output:
        pathlib.Path(values.output).write_bytes(draw(results))


def run():
    flags.string("output", None, "A PNG file for the picture.")
    flags.integer("repeats", 10, "Steps of each batch; the quickest is reported.", lowest=1)
    flags.launch(main)


if __name__ == "__main__":
    run()
