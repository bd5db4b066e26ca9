"""A preprocessing text as data for the page, which has its own code for the ops in STEPS."""

import inspect
from typing import Any

from keras_vit.data import parse
from keras_vit.data.ops.op_registry import OPS, parse_call

# The ops of page/pixels.js, with the values of `method` that it knows.
STEPS = ("decode", "resize", "central_crop", "crop_border", "letterbox", "pad_to", "multiply")
METHODS = ("bilinear", "bicubic", "nearest")


def page_steps(text: str, name: str) -> list[dict[str, Any]]:
    """The ops of a text as [{"op": name, parameter: value, ...}], with defaults.

    Args:
        text: a model's preprocessing, without random ops.
        name: the model's.

    Raises:
        ValueError: for an op or an interpolation that the page lacks.
    """
    parse(text)  # refuses invalid texts
    steps = []
    for expression in filter(None, (part.strip() for part in text.split("|"))):
        op, args, kwargs = parse_call(expression)
        if "image" not in OPS[op].keys:
            continue  # of labels
        bound = inspect.signature(OPS[op].factory).bind(*args, **kwargs)
        bound.apply_defaults()
        method = bound.arguments.get("method", METHODS[0])
        if op not in STEPS or method not in METHODS:
            what, valid = ("op", STEPS) if op not in STEPS else ("method of resizing", METHODS)
            raise ValueError(
                f'The preprocessing of "{name}", "{text}", has the {what} {op if op not in STEPS else method}, which'
                f' format="web" lacks: the page computes {", ".join(valid)}. Set model.preprocessing to a text of'
                " these, or serve the model: keras-vit serve."
            )
        steps.append({"op": op, **bound.arguments})
    if not steps or steps[0]["op"] != "decode":
        raise ValueError(f'The preprocessing of "{name}", "{text}", should start with decode to read image files.')
    return steps
