"""Time and memory of a training step against image size, by kind of attention, as a Markdown table and a picture.

    python -m benchmarks.attention --output=attention_costs.png

Models of about equal parameters (a ViT with few blocks, and a Swin with as many at the same width) take one image
per step. Each kind has its own process, on Linux. Time is CPU time over all cores, the least of a few steps, so that
other work on the machine hardly counts; memory is the peak of a step above that of an image of 32 pixels. GFLOP of a
forward pass are from formulas (keras_vit.planning.counting). A size whose step would not fit into free memory is left
out; its FLOPs are in the table.
"""

import pathlib
import re

from benchmarks.own_process import in_own_process
from benchmarks.scaling import PASSES, highest
from trainers import flags

KINDS = ("global", "window(14)", "axial", "strided", "local(7)", "Swin")
SIZES = (224, 512, 1024)
_LEAST = 32  # pixels: such a step takes almost no memory
_MARGIN = 3  # a step's peak by its counted activations, at most


def case(kind, variant="Ti/16", blocks=4):
    """(variant, overrides) of a kind: a pattern, or "Swin", with stages of 2, 2 and `blocks` blocks, the last one with
    the ViT's stride, width and number of blocks.
    """
    from keras_vit.models.families import find_spec

    if kind == "Swin":
        vit = find_spec(variant)
        return "Swin-T", {"width": vit.width // 4, "depths": (2, 2, blocks), "heads": vit.heads}
    # An axial block has two attentions and MLPs. Sines and cosines: parameters do not depend on the image size.
    depth = blocks // 2 if kind == "axial" else blocks
    return variant, {"attention": kind, "depth": depth, "positions": "sincos2d"}


def counted(variant, overrides, size):
    """(parameters, FLOPs of a forward pass, bytes of a training step's activations) by formula."""
    from keras_vit.models.families import find_spec
    from keras_vit.planning import counting

    rows = counting.layer_counts(find_spec(variant, **overrides), size)
    return counting.parameters(rows), counting.flops(rows), 4 * counting.training_activations(rows)


def _available():
    """Free memory of the machine, in bytes."""
    return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])


def _step(variant, overrides, size, name, repeats):
    """(CPU seconds, the process's peak memory in bytes) of a step of one image."""
    from benchmarks.model import compiled_model, model_steps
    from keras_vit.models.families import find_spec

    model = compiled_model(find_spec(variant, **overrides), size)
    return highest(dict(zip(PASSES, model_steps(model, 1)))[name], repeats)


def measured(variant, overrides, sizes, name, repeats):
    """{size: (CPU seconds, bytes above those of a tiny image)}, without the sizes that are too large for the machine.

    The sizes ascend, since TensorFlow keeps the memory of a step for the next one.
    """
    _, least = _step(variant, overrides, _LEAST, name, repeats)
    found = {}
    for size in sizes:
        if _MARGIN * counted(variant, overrides, size)[2] < _available():
            seconds, peak = _step(variant, overrides, size, name, repeats)
            found[size] = seconds, max(peak - least, 0)
    return found


def table(results, sizes, cases):
    """Markdown from {kind: {size: (seconds, bytes)}} and {kind: (variant, overrides)}.

    In a cell: GFLOP, CPU seconds and MB, "-" where left out.
    """
    heads = [f"{size} px" for size in sizes]
    lines = [f"| | parameters | {' | '.join(heads)} |", "|-" * (2 + len(sizes)) + "|"]
    for kind, found in results.items():
        cells = []
        for size in sizes:
            parameters, flops, _ = counted(*cases[kind], size)
            seconds, peak = found.get(size, (None, None))
            rest = "-, -" if seconds is None else f"{seconds:.3g}, {peak / 1e6:,.0f}"
            cells.append(f"{flops / 1e9:.3g}, {rest}")
        lines.append(f"| {kind} | {parameters:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results):
    """Time and memory against image size on logarithmic axes, side by side, from {kind: {size: point}}: PNG."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    sizes = sorted({size for points in results.values() for size in points})
    for i, (ax, label) in enumerate(zip(figure.subplots(1, 2), ("CPU seconds of a step", "memory of a step, MB"))):
        for (kind, points), marker in zip(results.items(), "osD^vX*"):
            values = [point[i] * (1, 1e-6)[i] for point in points.values()]
            ax.plot(list(points), values, f"{marker}-", markersize=5, label=kind if not i else None)
        ax.set(xscale="log", yscale="log", xlabel="image size, px", ylabel=label)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(sizes, sizes)
        ax.grid(alpha=0.3)
    figure.legend(loc="outside right center")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return buffer.getvalue()


def main():
    values = flags.FLAGS
    cases = {kind: case(kind, values.variant, values.blocks) for kind in values.kind or KINDS}
    sizes, results = [size for size in SIZES if values.smallest <= size <= values.largest], {}
    for kind, (variant, overrides) in cases.items():
        results[kind] = in_own_process(measured, variant, overrides, sizes, values.step, values.repeats)
        for size, (seconds, peak) in results[kind].items():
            print(f"{kind:30}{size:6} px {seconds:8.3f} CPU s {peak / 1e6:10,.0f} MB", flush=True)
    print(f"\nGFLOP forward, CPU s, MB of a step ({values.step}):\n\n{table(results, sizes, cases)}")
    if values.output:
        pathlib.Path(values.output).write_bytes(draw(results))


def run():
    flags.string("output", None, "A PNG file for the picture.")
    flags.strings("kind", "Only this pattern, such as window(16), or Swin (repeatable).")
    flags.string("variant", "Ti/16", "A ViT that gives width, heads and patch size.")
    flags.integer("blocks", 4, "Number of a ViT's blocks; half as many axial ones.", lowest=2)
    flags.integer("smallest", min(SIZES), f"Smallest image size, in pixels, of {SIZES}.", highest=max(SIZES))
    flags.integer("largest", max(SIZES), f"Largest image size, in pixels, of {SIZES}.", lowest=min(SIZES))
    flags.enum("step", "training", PASSES, "What is measured.")
    flags.integer("repeats", 3, "Steps of each size; the quickest is reported.", lowest=1)
    flags.launch(main)


if __name__ == "__main__":
    run()
