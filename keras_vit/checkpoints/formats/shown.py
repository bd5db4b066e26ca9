"""The fields of a spec that a file's arrays show, by the format's table of names."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats.name_map import Entry, Names
from keras_vit.io.suggest import did_you_mean


def need(arrays: Mapping[str, np.ndarray], name: str, rank: int) -> np.ndarray:
    """arrays[name]; ValueError, with the nearest name, unless it exists, has `rank` axes and is not empty."""
    if name not in arrays:
        raise ValueError(f'The array "{name}" is missing.{did_you_mean(name, list(arrays))}')
    if arrays[name].ndim != rank:
        raise ValueError(f'The array "{name}" should have {rank} axes, but has shape {arrays[name].shape}.')
    if not arrays[name].size:
        raise ValueError(f'The array "{name}" is empty: it has shape {arrays[name].shape}.')
    return arrays[name]


def renamed(arrays: Mapping[str, np.ndarray], new_name: Callable[[str], str]) -> dict[str, np.ndarray]:
    """The arrays under new names; `new_name` maps the old name. ValueError if two would collide."""
    names, result = {}, {}
    for name, array in arrays.items():
        new = new_name(name)
        if new in result:
            raise ValueError(f'The arrays "{names[new]}" and "{name}" are two versions of the same array, "{new}".')
        names[new], result[new] = name, array
    return result


def rewriter(rules: Iterable[tuple[str, Any]], prefix: str = "") -> Callable[[str], str]:
    """A function that removes the prefix of a name and applies rules for re.sub in order."""

    def new_name(name):
        name = name.removeprefix(prefix)
        for pattern, new in rules:
            name = re.sub(pattern, new, name)
        return name

    return new_name


def depth(names: Iterable[str], pattern: str) -> int:
    """The number of blocks; `pattern` has one group, a block's number. ValueError if a number is missing."""
    numbers = {int(match.group(1)) for match in map(re.compile(pattern).match, names) if match}
    if numbers != set(range(len(numbers))) or not numbers:
        raise ValueError(f"Expected blocks numbered from 0 without a gap, got {sorted(numbers)[:50]}.")
    return len(numbers)


class Shown:
    """What the arrays of a file show of our weights: those outside the blocks, and the first block's.

    places: {our path: (name in the file, or in the first spelling if it is missing, Entry)}.

    Args:
        names: the format's table.
        arrays: {name in the table: array}.
    """

    def __init__(self, names: Names, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.places: dict[str, tuple[str, Entry]] = {}
        for row in (row for row in names.rows if row.part[0] == 0):
            name, entry = row.theirs.format(i=0), names.entry(row, {"width": 1, "heads": 1, "classes": 1})
            for path in entry.ours[:1] if row.stored == "without_key" else entry.ours:
                # Parts come first: SwiGLU's second layer may have the name of a plain MLP's first.
                if path not in self.places or (name in arrays and (path not in self or entry.parts > 1)):
                    self.places[path] = (name, entry)
        self.block = next((row.theirs for row in names.rows if "{i}" in row.theirs), "")

    def __contains__(self, path: str) -> bool:
        return path in self.places and self.places[path][0] in self.arrays

    def shape(self, path: str, rank: int = 1) -> tuple[int, ...]:
        """The shape of our weight; `rank` is that of an array with values in the same order. ValueError as `need`."""
        name, entry = self.places[path]
        first, *others = need(self.arrays, name, len(entry.axes) or rank).shape
        sizes = dict(zip(entry.axes or range(rank), (first // len(entry.ours), *others)))
        *outer, last = (sizes[axis] for axis in range(len(sizes)))
        return (*outer, last * entry.parts)

    @property
    def depth(self) -> int:
        """The number of blocks; ValueError for a gap in their numbers."""
        before, _, after = self.block.partition("{i}")
        return depth(self.arrays, rf"{re.escape(before)}(\d+){re.escape(after[0])}")

    @property
    def classes(self) -> int | None:
        """Of the head; None without one."""
        return self.shape("head/kernel", 2)[-1] if "head/kernel" in self else None

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.shape("stem_conv/kernel" if "stem_conv/kernel" in self else "patch_encoder/kernel", 4)[2]

    def stem_fields(self, unit: str) -> dict[str, Any]:
        """The fields of a hybrid's stem, {} without one; `unit` is a pattern of a unit's stage and number."""
        if "stem_conv/kernel" not in self:
            return {}
        units = {tuple(map(int, match.groups())) for match in map(re.compile(unit).match, self.arrays) if match}
        stages = [stage for stage, _ in units]
        stem = tuple(stages.count(stage) for stage in sorted(set(stages)))
        return {"stem": stem, "stem_width": self.shape("stem_conv/kernel", 4)[3]}

    def vit_fields(self) -> dict[str, Any]:
        """The fields of a ViTSpec that arrays show in any format."""
        h, w, _, d = self.shape("patch_encoder/kernel", 4)
        block = "block_00"
        hidden, out = (self.shape(f"{block}/mlp/{layer}/kernel", 2) for layer in ("hidden", "out"))
        biases = {name: f"{block}/attention/{name}/bias" in self for name in ("query", "key")}
        return {
            "patch_size": (h, w),
            "depth": self.depth,
            "width": d,
            "mlp_dim": out[0],
            "mlp_form": "swiglu" if hidden[1] == 2 * out[0] else "plain",
            "class_token": "class_token/tokens" in self,
            "distillation_token": "distillation_token/tokens" in self,
            "registers": self.shape("registers/tokens", 3)[1] if "registers/tokens" in self else 0,
            "qkv_bias": biases["query"],
            "key_bias": biases["key"] or not biases["query"],
            "qk_norm": f"{block}/attention/query_norm/gamma" in self,
            "layer_scale": 1e-5 if f"{block}/attention_scale/gamma" in self else None,
            "hidden_norm": f"{block}/mlp/norm/gamma" in self,
            "patch_norm": "patch_encoder/pixel_norm/gamma" in self,
            "pre_norm": "pre_norm/gamma" in self,
            "fc_norm": "fc_norm/gamma" in self,
            "final_norm": "encoder_norm/gamma" in self or "fc_norm/gamma" in self,
            "pre_logits": self.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in self else None,
        }
