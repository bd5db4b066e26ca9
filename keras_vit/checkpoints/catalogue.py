"""The published models that keras_vit.load knows by name: "augreg/B_16-imagenet2012-384", "bit/M-R50x1", "deit/small-distilled".

catalogue.csv holds one row a model, with the columns of `Published`; its addresses and figures are those that the repository in
`source` gives, or timm's and open_clip's tables of results where `note` says so. This module reads it and imports nothing heavy.
"""

import csv
import dataclasses
import difflib
import fnmatch
import importlib.resources


@dataclasses.dataclass(frozen=True)
class Published:
    """A published model.

    Attributes:
        name: family/model, with the input size and training data where the family has several.
        url: gs:// (download.download takes it), or hf://owner/name, a Hugging Face repository with a safetensors file.
        sha256: the SHA-256 of the file at `url`, or its first digits, where it is published.
        source: the GitHub repository that publishes it.
        licence: of that repository.
        top1: percent of ImageNet-1k's validation images, by `measure`; None where no source gives it.
        measure: "top-1" of the file's own classifier, "linear probe" of its features, or "zero-shot" with its text tower.
        image_size: the side of the images that it was last trained on, pixels.
        preprocessing: text of the evaluation preprocessing (docs/data.md), or None where no source gives it.
        mean, std: of the normalisation, scale 0..255; None where the file's format tells.
        original: the authors' own file where `url` is a safetensors twin of it: a .pth, which needs torch.
        original_sha256: the SHA-256 of the file at `original`, or its first digits, where it is published.
        note: what else is to know.
    """

    name: str
    url: str
    sha256: str | None
    source: str
    licence: str
    top1: float | None
    measure: str | None
    image_size: int
    preprocessing: str | None
    mean: tuple | None
    std: tuple | None
    original: str | None
    original_sha256: str | None
    note: str

    @property
    def options(self):
        """The keyword arguments that keras_vit.load needs because the file cannot tell."""
        options = {name: value for name in ("preprocessing", "mean", "std") if (value := getattr(self, name)) is not None}
        family = self.name.split("/")[0]
        if family in ("bit", "flexivit"):  # convolutions, and patches of any size: the file does not say for which images
            options["image_size"] = self.image_size
        if family == "flexivit":
            options.update(patch_size=16, resample="flexivit")
        return options


def _numbers(text):
    return tuple(float(number) for number in text.split())


_TYPES = {"top1": float, "image_size": int, "mean": _numbers, "std": _numbers}


def _published(row):
    """A row of the table, {column: text}, as a Published; empty cells are None, but for the note."""
    return Published(**{key: _TYPES.get(key, str)(text) if text or key == "note" else None for key, text in row.items()})


def _read():
    with importlib.resources.files(__package__).joinpath("catalogue.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: _published(row) for row in csv.DictReader(file)}


CATALOGUE = _read()


def list_models(pattern="*"):
    """The names of the published models that match `pattern`, sorted: list_models("bit/M-*"), list_models("*16*384*").

    `*` stands for any characters, `?` for one, `[SB]` for one of those; capitals count.
    """
    return sorted(name for name in CATALOGUE if fnmatch.fnmatchcase(name, pattern))


def find(name):
    """The Published of that name.

    Raises:
        ValueError: if there is none, with the nearest names.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    lower = {known.lower(): known for known in CATALOGUE}
    near = [lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=3)]
    families = [f"{family}/" for family in dict.fromkeys(known.split("/")[0] for known in CATALOGUE)]
    hint = f"Nearest: {', '.join(near)}." if near else f"Names begin with {', '.join(families)}."
    raise ValueError(f'No published model is called "{name}". {hint} keras_vit.list_models() lists all {len(CATALOGUE)}.')
