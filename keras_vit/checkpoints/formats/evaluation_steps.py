"""The two usual evaluation preprocessings of timm's and Hugging Face's configs, as preprocessing text and back."""

import ast
import dataclasses
import re
from typing import Any

import numpy as np
from absl import logging

METHODS = ("bilinear", "bicubic")


@dataclasses.dataclass(frozen=True)
class UsualSteps:
    """An image of any size at a model's size.

    Attributes:
        height, width: of the result, in pixels.
        method: of interpolation, one of METHODS, antialiased.
        shorter: pixels. The shorter side before the central crop; None to resize the whole picture, ignoring its
            aspect.
    """

    height: int
    width: int
    method: str
    shorter: int | None = None

    @property
    def text(self) -> str:
        """The steps as preprocessing text."""
        if self.shorter is None:
            return f"decode|resize({self.height}, {self.width}, method={self.method!r})"
        return f"decode|resize({self.shorter}, method={self.method!r})|central_crop({self.height}, {self.width})"


def for_channels(text: str | None, channels: int) -> str | None:
    """A text that decodes grey or colour, for a model of 1 or 3 channels; unchanged for other numbers."""
    if text is None or channels not in (1, 3):
        return text
    return re.sub(r"^\s*decode\b(\([^)]*\))?", "decode" if channels == 3 else "decode(1)", text)


def _call(part: str) -> tuple[str, dict[str, Any]]:
    """(name, {argument: value}) of a resize or central_crop in a text; no name for anything else."""
    try:
        node = ast.parse(part.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        positional = dict(zip(("height", "width", "method", "antialias"), map(ast.literal_eval, node.args)))
        return node.func.id, {**positional, **{str(k.arg): ast.literal_eval(k.value) for k in node.keywords}}
    except (AssertionError, SyntaxError, ValueError):
        return "", {}


def nearest_steps(text: str | None, image_size: tuple[int, int]) -> tuple[UsualSteps, bool]:
    """(the usual steps nearest to a preprocessing text, whether they are the same).

    Args:
        text: ops joined by "|"; None for a resize to `image_size`.
        image_size: of the model, pixels (height, width).
    """
    resized = UsualSteps(*image_size, "bilinear")
    if text is None:
        return resized, True
    ops = [_call(part) for part in text.split("|") if part.strip()]
    ops = ops[1:] if ops and ops[0][0] == "decode" else ops
    names = [name for name, _ in ops]
    if names not in (["resize"], ["resize", "central_crop"]):
        return resized, False
    resize, last = ops[0][1], ops[-1][1]
    method, shorter = resize.get("method", "bilinear"), resize.get("height")
    exact = method in METHODS and resize.get("antialias", True) is True
    method = method if method in METHODS else "bilinear"
    fits = (last.get("height"), last.get("width", last.get("height"))) == tuple(image_size)
    if fits and names == ["resize"] and "width" in resize:
        return UsualSteps(*image_size, method), exact
    if fits and names == ["resize", "central_crop"] and "width" not in resize and shorter >= min(image_size):
        return UsualSteps(*image_size, method, shorter), exact
    return resized, False


def steps_to_write(model: Any, format: str) -> UsualSteps:
    """A model's evaluation preprocessing as a format can state it; a warning names what differs."""
    steps, exact = nearest_steps(model.preprocessing, model.image_size)
    if not exact:
        logging.warning(
            'Readers of the format "%s" other than keras_vit will prepare images differently from this model: its'
            ' preprocessing is "%s", they read "%s".',
            format,
            model.preprocessing,
            steps.text,
        )
    return steps


def unit_constants(model: Any) -> list[list[float]]:
    """[mean, std] of a model, one number per channel, on the 0..1 scale."""
    constants = (model.spec.mean, model.spec.std)
    return [(np.broadcast_to(values, (model.channels,)) / 255).tolist() for values in constants]
