"""The published models that keras_vit.load knows by name, such as "augreg/B_16-imagenet2012-384" or "bit/M-R50x1".

catalogue.csv has one row per model, with the columns of `Published`. Addresses and figures come from the repository in
`source`, or from the result tables of timm and open_clip where `note` says so. This module imports nothing heavy.
"""

import ast
import csv
import dataclasses
import fnmatch
import importlib.resources
from typing import Any

from keras_vit.io.suggest import nearest


@dataclasses.dataclass(frozen=True)
class Published:
    """A published model.

    Attributes:
        name: family/model, with input size and training data where the family has several.
        url: gs:// address, or hf://owner/name of a Hugging Face repository with a safetensors file.
        sha256: SHA-256 of the file at `url`, or its first digits; None if unpublished.
        source: GitHub repository that publishes the model.
        licence: of that repository.
        top1: percent on ImageNet-1k's validation images, see `measure`; None if no source gives it.
        measure: "top-1" of the file's classifier, "linear probe" of its features, or "zero-shot" with its text tower.
        variant: architecture in this package, "B/16", at the patch size that load builds.
        fields: {field of the spec: value} where the weights' shapes differ from that variant.
        head, head_options: of a SegmentationModel, DetectionModel or InstanceModel (mask_stride), a row of HEADS in
            segmentation_heads.py, detection_heads.py or instance_heads.py and its options; None and {} for others.
        classes: of the file's head, 1 for depth; None without a head.
        labels: "imagenet" for a classifier of ImageNet-1k's 1000 classes, "coco" for a detector of COCO's, else None.
        image_size: pixels, side or (height, width) of the images at the end of training.
        preprocessing: text of the evaluation preprocessing (docs/data.md); None if no source gives it.
        mean, std: of the normalisation, on the 0..255 scale; None if the format determines them.
        original: the authors' .pth if `url` is a safetensors copy of it.
        original_sha256: SHA-256 of the file at `original`, or its first digits; None if unpublished.
        note: anything else worth knowing.
    """

    name: str
    url: str
    sha256: str | None
    source: str
    licence: str
    top1: float | None
    measure: str | None
    labels: str | None
    variant: str
    fields: dict[str, Any]
    head: str | None
    head_options: dict[str, Any]
    classes: int | None
    image_size: int | tuple[int, int]
    preprocessing: str | None
    mean: tuple | None
    std: tuple | None
    original: str | None
    original_sha256: str | None
    note: str

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    @property
    def chosen_size(self) -> int | tuple[int, int] | None:
        """`image_size` if the weights fit any size and the file states none; None if the file determines it."""
        return self.image_size if self.family in ("bit", "flexivit") else None

    @property
    def fields_to_load(self) -> dict[str, Any]:
        """The fields of the spec that the file does not state."""
        stated = {name: value for name in ("mean", "std") if (value := getattr(self, name)) is not None}
        return {**stated, "patch_size": 16} if self.family == "flexivit" else stated

    @property
    def resample(self) -> str | None:
        """How to resample its positions, a row of resample.METHODS; None for the format's method."""
        return "flexivit" if self.family == "flexivit" else None


def _numbers(text):
    return tuple(float(number) for number in text.split())


def _size(text):
    """224 from "224", (800, 1328) from "800 1328"."""
    sides = tuple(map(int, text.split()))
    return sides if len(sides) == 2 else sides[0]


def _fields(text):
    """{"registers": 4, "pool": "map"} from "registers=4 pool=map"."""
    pairs = (field.split("=") for field in text.split())
    return {
        name: value if value.isidentifier() and value not in ("True", "False") else ast.literal_eval(value)
        for name, value in pairs
    }


_TYPES = {
    **{"top1": float, "classes": int, "image_size": _size, "mean": _numbers, "std": _numbers},
    **dict.fromkeys(("fields", "head_options"), _fields),
}
_NEVER_NONE = ("note", "fields", "head_options")


def _published(row):
    """A row of the table, {column: text}, as a Published; empty cells become None except in _NEVER_NONE."""
    return Published(
        **{key: _TYPES.get(key, str)(text) if text or key in _NEVER_NONE else None for key, text in row.items()}
    )


def _read():
    with importlib.resources.files(__package__).joinpath("catalogue.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: _published(row) for row in csv.DictReader(file)}


CATALOGUE = _read()


def list_models(pattern: str = "*") -> list[str]:
    """The names of the published models that match `pattern`, sorted: list_models("bit/M-*"), list_models("*16*384*").

    `*` matches any characters, `?` any single one, `[SB]` one of these; case matters.
    """
    return sorted(name for name in CATALOGUE if fnmatch.fnmatchcase(name, pattern))


def find(name: str) -> Published:
    """The published model of that name; ValueError, with the nearest names, if unknown."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    lower = {known.lower(): known for known in CATALOGUE}
    near = [lower[match] for match in nearest(name.lower(), lower, 3)]
    families = [f"{family}/" for family in dict.fromkeys(known.split("/")[0] for known in CATALOGUE)]
    hint = f"Nearest: {', '.join(near)}." if near else f"Names begin with {', '.join(families)}."
    raise ValueError(
        f'No published model has the name "{name}". {hint} keras_vit.list_models() lists all {len(CATALOGUE)}.'
    )
