"""Plans as text: one plan in lines, several as a table, and the cost by part."""

from collections.abc import Sequence

from keras_vit.io.suggest import counted
from keras_vit.planning.rows_of_text import rows, short
from keras_vit.planning.slice.plan import Plan

GIB = 2**30
NOTE = "Predictions of XLA's compiler: no TPU was used."
UNREAD = (
    "XLA cannot write this program as text, so its HBM traffic and estimated cycles are unknown, and the time covers"
    " only arithmetic."
)


def _hbm(plan):
    """HBM traffic in words."""
    c, accessed = plan.compiled, f"cost analysis: {short(plan.compiled.bytes_accessed, 'B')} accessed"
    if c.hbm is None:
        return f"unknown ({accessed})"
    return f"{short(c.hbm, 'B')} per chip, {1e3 * plan.floors['HBM']:.3g} ms ({accessed})"


def _batch(plan):
    return f"{counted(plan.batch_size, 'image')}, {plan.batch_size // plan.where.chips:,} per chip" + (
        f"; matrices over {plan.model_parallel} chips" if plan.model_parallel else ""
    )


def _sums(plan):
    """Collectives in words."""
    parts = [f"{count:,} {kind} of {short(size, 'B')}" for kind, (count, size) in sorted(plan.compiled.sums.items())]
    return f"{', '.join(parts) or 'none'}; {1e3 * plan.floors['sums between chips']:.3g} ms without overlap"


def plan_text(plan: Plan) -> str:
    """One plan in lines."""
    c, floors = plan.compiled, plan.floors
    parts = (
        f"arguments {c.arguments / GIB:.2f}, temporaries {c.temporaries / GIB:.2f}, code and results"
        f" {(c.code + c.results) / GIB:.2f}"
    )
    hours = (
        f"{plan.hours:,.2f} hours, {plan.hours * plan.where.chips:,.1f} chip-hours for {counted(plan.steps, 'step')}"
    )
    return rows(
        [
            ("slice", f"{plan.where.name}, {counted(plan.where.chips, 'chip')}"),
            ("batch", _batch(plan)),
            ("memory", f"{c.memory / GIB:.2f} GiB of a chip's {plan.where.chip.memory / 1e9:.0f} GB: {parts}"),
            ("arithmetic", f"{short(c.flops, 'FLOP')} per chip, {1e3 * floors['arithmetic']:.3g} ms at peak rate"),
            ("HBM", _hbm(plan)),
            ("between chips", _sums(plan)),
            (
                "step",
                (
                    f"{1e3 * plan.estimate:.3g} ms, bound by {plan.binds}; at best {plan.images_per_chip:,.0f} images/s"
                    " per chip"
                ),
            ),
            ("run", f"{hours}, at best, without evaluations"),
            ("compiled in", f"{c.seconds:.0f} s"),
            ("note", NOTE if c.hbm is not None else f"{NOTE} {UNREAD}"),
        ]
    )


_HEAD = (
    "slice",
    "batch per chip",
    "memory GiB",
    "GFLOP",
    "HBM GB",
    "between chips",
    "ms per step",
    "bound by",
    "images/s/chip",
    "chip-hours",
)


def _row(plan):
    c = plan.compiled
    moved = sum(size for _, size in plan.compiled.sums.values())
    split = f" / {plan.model_parallel}" if plan.model_parallel else ""
    return (
        f"{plan.where.name}{split}",
        f"{plan.batch_size / plan.where.chips:g}",
        f"{c.memory / GIB:.2f}",
        f"{c.flops / 1e9:,.0f}",
        "-" if c.hbm is None else f"{c.hbm / 1e9:.2f}",
        short(moved, "B"),
        f"{1e3 * plan.estimate:.1f}",
        plan.binds,
        f"{plan.images_per_chip:,.0f}",
        f"{plan.hours * plan.where.chips:,.1f}",
    )


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        [f"| {' | '.join(head)} |", "|-" * len(head) + "|", *(f"| {' | '.join(line)} |" for line in lines)]
    )


def comparison(named: Sequence[tuple[str, Plan | str]]) -> str:
    """A table of named plans; a failed one is given by its reason."""
    lines = []
    for name, plan in named:
        lines.append((name, *_row(plan)) if isinstance(plan, Plan) else (name, plan, *[""] * (len(_HEAD) - 1)))
    return f"{_table(('', *_HEAD), lines)}\n\n{NOTE}"


def where(plan: Plan) -> str:
    """Time and bytes of each part of the step."""
    c, clock = plan.compiled, plan.where.chip.clock
    if c.hbm is None:
        return UNREAD
    total = c.cycles or 1
    lines = [
        (g.name, g.direction, f"{1e3 * g.cycles / clock:.2f}", f"{g.cycles / total:.1%}", f"{g.hbm / 1e9:.3f}")
        for g in c.groups
        if g.cycles / total >= 0.0005 or g.hbm / max(c.hbm, 1) >= 0.0005
    ]
    lines.append(("all", "", f"{1e3 * c.cycles / clock:.2f}", "100%", f"{c.hbm / 1e9:.3f}"))
    table = _table(("part", "", "ms", "share", "HBM GB"), lines)
    if not c.random_cycles:
        return table
    random = f"{1e3 * c.random_cycles / clock:.2f} ms of this in instructions that also draw random numbers"
    return f"{table}\n\n{random}, such as dropout masks."
