"""Plans as text: large numbers, one-line curves, rows of names and values."""

import textwrap

_BARS = "▁▂▃▄▅▆▇█"
_UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(number, unit=""):
    """A number with three digits and a prefix: 35.2e9 -> "35.2 G"."""
    scale, letter = next((row for row in _UNITS if number >= row[0]), (1, ""))
    return f"{number / scale:.3g} {letter}{unit}".rstrip() if number < 999.5e18 else f"{number / 1e18:,.0f} E{unit}"


def sparkline(values):
    """Numbers as a line of bars, from the lowest for 0 or less to the highest for the maximum."""
    top = max(values)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[max(0, min(len(_BARS) - 1, int(value / top * len(_BARS))))] for value in values)


def rows(pairs, width=120):
    """(name, text) pairs as aligned lines; long texts wrap with indentation."""
    indent = max(len(name) for name, _ in pairs) + 2

    def wrap(text):
        return textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [""]

    lines = [(name if i == 0 else "").ljust(indent) + line for name, text in pairs for i, line in enumerate(wrap(text))]
    return "\n".join(line.rstrip() for line in lines)


def aligned(lines):
    """Rows of cells as text: the first column left-aligned, and the last if it is words; numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    words = (0, 6)
    aligned = [
        [cell.ljust(width) if i in words else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def models_table(models) -> str:
    """The rows as text."""
    head = ("", "px", "parameters", "GFLOP", "forward", "training", "files")
    cells = [
        (
            model.name,
            str(model.image_size[0]) if len(set(model.image_size)) == 1 else "{}x{}".format(*model.image_size),
            f"{model.parameters:,}",
            f"{model.flops / 1e9:,.2f}",
            short(model.forward_bytes, "B"),
            short(model.training_bytes, "B"),
            ", ".join(model.files),
        )
        for model in models
    ]
    return aligned([head, *cells])
