"""Costs of variants and published models, one row each, from counts.csv (written by `make generate`).

Imports nothing else of this package: `keras-vit models` works without an engine.
"""

import csv
import dataclasses
import fnmatch
import pathlib
from collections.abc import Iterable

COUNTS = pathlib.Path(__file__).with_name("counts.csv")


@dataclasses.dataclass(frozen=True)
class ModelCount:
    """A model's row.

    Attributes:
        name: name of a variant or published model.
        image_size: pixels (height, width).
        parameters: number of values in the weights.
        flops: operations of one image's forward pass, 2 per multiply-add.
        forward_bytes, training_bytes: bytes of one image's activations in float32; see `model_counts`.
        files: formats of the weight files: .npz, safetensors, .pth.
    """

    name: str
    image_size: tuple[int, int]
    parameters: int
    flops: int
    forward_bytes: int
    training_bytes: int
    files: tuple[str, ...] = ()


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that match a pattern such as "deit/*"; ValueError if none does."""
    found = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise ValueError(
            f'No variant or published model matches "{pattern}". Use patterns as for files: "deit/*", "*L_16*".'
        )
    return found


def as_csv(models: Iterable[ModelCount]) -> str:
    """The text of counts.csv."""
    lines = [",".join(field.name for field in dataclasses.fields(ModelCount))]
    for model in models:
        name, size, *numbers, files = dataclasses.astuple(model)
        lines.append(",".join([name, " ".join(map(str, size)), *map(str, numbers), " ".join(files)]))
    return "\n".join(lines) + "\n"


def read_counts(pattern: str = "*") -> list[ModelCount]:
    """Reads the rows of counts.csv that match: variants at 224 pixels, published models at the size in their files.

    Raises:
        ValueError: no name matches.
    """
    with COUNTS.open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    found = []
    for name in matching(rows, pattern):
        row = rows[name]
        height, width = map(int, row["image_size"].split())
        keys = ("parameters", "flops", "forward_bytes", "training_bytes")
        parameters, flops, forward, training = (int(row[key]) for key in keys)
        found.append(
            ModelCount(name, (height, width), parameters, flops, forward, training, tuple(row["files"].split()))
        )
    return found
