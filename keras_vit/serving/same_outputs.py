"""Checks that another engine can compute a model, and computes the same outputs."""

import keras
import numpy as np

from keras_vit.layers.quantization import quantized_layers


def check_float32(model: keras.Model, what: str, fix: str) -> None:
    """Refuses a model that does not compute in float32; `what` cannot express it, `fix` is advice for a quantised one.

    Raises:
        ValueError: naming its precision.
    """
    if quantized_layers(model):
        raise ValueError(f'"{model.name}" was quantised by Keras, which {what} cannot express. {fix}')
    others = sorted({layer.compute_dtype for layer in model._flatten_layers()} & {"bfloat16", "float16"})
    if others:
        raise ValueError(
            f'{what} has float32 operations only, and "{model.name}" computes in {others[0]}. Load it with'
            ' dtype="float32", or --load.dtype=float32.'
        )


_DETECTION = ("labels", "scores", "boxes")


def _detection_names(names):
    """The names of detections among outputs: (labels, scores, boxes), with the prefix of a part in front of each."""
    prefixes = [name.removesuffix("labels") for name in names if name.endswith("labels")]
    groups = [tuple(prefix + name for name in _DETECTION) for prefix in prefixes]
    return [group for group in groups if set(group) <= set(names)]


def _detections(outputs, names, image):
    """Rows of label, score and box (m, 6) of the detections in an image."""
    labels, scores, boxes = (outputs[name][image] for name in names)
    return np.concatenate([labels[:, None], scores[:, None], boxes], axis=1)[labels >= 0]


def _missing_detections(expected, found, names):
    """(detections that only one of two engines has, detections of both), in any order."""
    missing = count = 0
    for image in range(len(expected[names[0]])):
        ours, theirs = _detections(expected, names, image), _detections(found, names, image)
        same = (np.abs(ours[:, None] - theirs[None]) <= 1e-3).all(-1)  # (ours, theirs)
        missing += int(np.sum(~same.any(1)) + np.sum(~same.any(0)))
        count += len(ours) + len(theirs)
    return missing, count


def compare(
    expected: dict[str, np.ndarray],
    found: dict[str, np.ndarray],
    engine: str,
    exact: bool = True,
    advice: str = "Please report this model.",
) -> None:
    """Refuses outputs that differ by more than 1e-3 of the largest value or 1, or, unless `exact`, half their norm.

    Of integers, such as the classes of pixels, a thousandth may differ, since floats decide between close ones, or,
    unless `exact`, half. Detections are compared in any order, and 2% or one of them may be missing.

    Raises:
        ValueError: naming the output, the difference and `advice`.
    """
    if set(expected) != set(found):
        raise ValueError(f"{engine} gives the outputs {sorted(found)}, and the model {sorted(expected)}.")
    groups = _detection_names(expected)
    detections = [name for group in groups for name in group]
    for group in groups:
        missing, count = _missing_detections(expected, found, group)
        if missing > max(1, 0.02 * count):
            raise ValueError(f"{engine} misses or invents {missing} of {count} detections. {advice}")
    for name, value in expected.items():
        value, other = np.asarray(value), np.asarray(found[name])
        if value.shape != other.shape or other.dtype != value.dtype:
            raise ValueError(
                f"{name}: {engine} returns {other.shape} {other.dtype}, and the model {value.shape} {value.dtype}."
            )
        if name in detections:
            continue
        if value.dtype.kind in "iu":
            wrong, allowed = np.mean(value != other), 1e-3 if exact else 0.5
        elif exact:
            wrong, allowed = np.abs(value - other).max(), 1e-3 * max(1.0, np.abs(value).max())
        else:
            wrong, allowed = np.linalg.norm(value - other), 0.5 * np.linalg.norm(value) + 1e-3
        if not wrong <= allowed:  # also for NaN
            raise ValueError(
                f"{name}: the outputs of {engine} differ from the model's by {wrong:.3g}, and {allowed:.3g} at most is"
                f" allowed. {advice}"
            )
