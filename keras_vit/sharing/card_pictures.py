"""A card's pictures: learning curves, calibration, and the charts of a run's evaluators."""

import re

from keras_vit.inspection import figures
from keras_vit.inspection.html_report import curve_points
from keras_vit.io.paths import paths_in
from keras_vit.sharing.published_run import Run

_CURVES = {"loss": ("loss", 1), "accuracy": ("accuracy, %", 100)}  # key of metrics.jsonl -> (label, scale)


def _curves(records):
    """{file name: (caption, PNG)} of the curves with more than one point."""
    found = {}
    for key, (label, scale) in _CURVES.items():
        lines = {line: tuple(zip(*points)) for line, points in curve_points(records, key, scale).items()}
        if any(len(xs) > 1 for xs, _ in lines.values()):
            found[f"{key}.png"] = f"{label.partition(',')[0]} over the steps", figures.lines(lines, "step", label)
    return found


def _drawn(run):
    """Charts that evaluators saved next to their JSON files, except those that show images."""
    found = {}
    for name in run.config.get("evals") or {}:
        for path in paths_in(run.path, f"{name}_", ".png") if not run.caption(name) else ():
            title = path.name.removesuffix(".png").removeprefix(f"{name}_").replace("_", " ")
            found[path.name] = f"{name.replace('_', ' ')}: {title}", path.read_bytes()
    return found


def _sample_pictures(run):
    """The evaluators' latest pictures with images: reconstructions, samples."""
    found = {}
    for name in run.config.get("evals") or {}:
        last = {}
        for path in paths_in(run.path / "pictures", f"{name}_", ".png"):
            match = re.fullmatch(rf"{re.escape(name)}_(.+)_(\d+)\.png", path.name)
            last |= {match[1]: path} if match else {}
        caption = run.caption(name) or name.replace("_", " ")
        found |= {f"{name}_{title}.png": (caption, path.read_bytes()) for title, path in last.items()}
    return found


def pictures(run: Run | None, images: bool = False) -> dict[str, tuple[str, bytes]]:
    """{file name: (caption, PNG)} of a run ({} for None), with the data's images if `images`. Needs matplotlib."""
    if run is None:
        return {}
    found = _curves(run.records)
    calibration = run.evaluation and run.evaluation.details.get("calibration")
    if calibration:
        found["calibration.png"] = "accuracy against confidence", figures.reliabilities({"evaluation": calibration})
    return found | _drawn(run) | (_sample_pictures(run) if images else {})
