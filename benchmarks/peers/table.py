"""Measurements as ratios, fractions, table and picture. Ratios are medians over rounds: slow moments affect all."""

import statistics

from benchmarks.peers.measure import OWN, PASSES, Measured

_COSTS = dict(zip(PASSES, (1, 3)))  # in forward passes


def speed(found: Measured, who: str, name: str) -> float:
    """Images per second."""
    return found.case.batch / statistics.median(found.seconds[who][name])


def fraction(found: Measured, who: str, name: str) -> float:
    """Operations per second of a step, over those of the same round's matrix products."""
    step = _COSTS[name] * found.flops * found.case.batch
    return statistics.median(step / s / limit for s, limit in zip(found.seconds[who][name], found.limits[name]))


def ratio(found: Measured, who: str, name: str) -> float:
    """This package's speed relative to a peer's."""
    return statistics.median(theirs / own for theirs, own in zip(found.seconds[who][name], found.seconds[OWN][name]))


def _cell(found, who, name):
    """Images/s, with the fraction for this package, or the ratio for a peer."""
    if name not in found.seconds.get(who, {}):
        return "not run"
    if who == OWN:
        return f"{speed(found, who, name):.3g}, {fraction(found, who, name):.2f}"
    compared = f", {ratio(found, who, name):.2f}" if name in found.seconds.get(OWN, {}) else ""
    return f"{speed(found, who, name):.3g}{compared}"


def _memory(found, who, name):
    held = found.mebibytes.get(who, {}).get(name)
    return "-" if held is None else f"{held / 1024:.2f}"


def markdown(results: list[Measured], peers: list[str]) -> str:
    """The table, what was not run and why, and the participants. `peers` are its columns, OWN first."""
    others = [who for who in peers if who != OWN]
    heads = [f"{OWN}: images/s, of the products' rate", *(f"{who}: images/s, {OWN} over it" for who in others)]
    heads += ["GFLOP/s of products", f"GiB: {', '.join(peers)}"]
    lines = [f"| | {' | '.join(heads)} |", "|-" * (len(heads) + 1) + "|"]
    for found in results:
        for name in found.case.passes:
            limits = found.limits.get(name)
            cells = [_cell(found, who, name) for who in peers]
            cells.append(f"{statistics.median(limits) / 1e9:.0f}" if limits else "-")
            cells.append(", ".join(_memory(found, who, name) for who in peers))
            lines.append(f"| {found.case}, {name} | {' | '.join(cells)} |")
    taking_part = {f"{who}: {told}" for found in results for who, told in found.peers.items()}
    refused = [f"{found.case}: {who} was not run: {why}." for found in results for who, why in found.refused.items()]
    return "\n\n".join(["\n".join(lines), "\n".join(f"- {line}" for line in [*sorted(taking_part), *refused])]) + "\n"


def groups(results: list[Measured], name: str) -> dict:
    """{case: {peer: fraction of the products' rate}} of a pass, for the picture."""
    return {
        str(found.case): {who: fraction(found, who, name) for who, seconds in found.seconds.items() if name in seconds}
        for found in results
        if name in found.case.passes
    }
