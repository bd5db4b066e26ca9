"""Public names of data and models for cards, without names of local files."""

import dataclasses
import re

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE

# Name in tensorflow-datasets -> identifier on the Hugging Face hub.
_ON_THE_HUB = {
    "beans": "AI-Lab-Makerere/beans",
    "cats_vs_dogs": "microsoft/cats_vs_dogs",
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "food101": "ethz/food101",
    "imagenet2012": "ILSVRC/imagenet-1k",
    "mnist": "ylecun/mnist",
    "svhn_cropped": "ufldl-stanford/svhn",
}
# Kind of local files -> the hub's name for such data sets.
OWN = {
    **dict.fromkeys(("folder", "images", "masks", "boxes", "instances", "depth"), "imagefolder"),
    **{"csv": "csv", "jsonl": "json", "tfrecord": "tfrecord"},
}
_PATH = re.compile(r"[/\\~]")


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set as named on a card.

    Attributes:
        name: display name.
        kind: type in the hub's model-index: hub identifier, tensorflow-datasets name, or kind of local files.
        split: split of the data set; None if unknown or the name of a file.
        public: whether the data set is publicly available.
    """

    name: str
    kind: str
    split: str | None
    public: bool

    @property
    def on_the_hub(self) -> str | None:
        """Identifier on the Hugging Face hub, or None."""
        return self.kind if "/" in self.kind else None

    def __str__(self) -> str:
        return self.name if self.split is None else f"{self.name} ({self.split})"


def names_a_file(text: str) -> bool:
    """Whether text could name a local file: it contains a slash, a backslash or a tilde."""
    return bool(_PATH.search(text))


def find_data(source: str, split: str | None) -> Data:
    """The data set of a source, given as in config.data.source."""
    split = None if split is None or names_a_file(split) else split
    kind = re.split("[:?]", source)[0]
    if kind in OWN:
        return Data("the author's own images", OWN[kind], split, False)
    if source == "digits":
        return Data("scikit-learn's digits", "digits", split, True)
    if names_a_file(kind):
        return Data("the author's own data", "custom", split, False)
    return Data(kind, _ON_THE_HUB.get(kind, kind), split, True)


def is_public(model: str) -> bool:
    """Whether others can load a model by this name, from the catalogue or the Hugging Face hub."""
    return model in CATALOGUE or model.startswith("hf://")


def model_name(name: str) -> str:
    """An initial or teacher model as named on a card: public name and licence, or "the author's own model"."""
    if name in CATALOGUE:
        return f"{name} ({CATALOGUE[name].licence})"
    return name if is_public(name) else "the author's own model"


def on_the_hub(name: str | None) -> str | None:
    """The Hugging Face repository of a catalogue name or an hf:// address; None for any other model."""
    address = CATALOGUE[name].url if name in CATALOGUE else name or ""
    return (
        "/".join(address.removeprefix("hf://").partition("@")[0].split("/")[:2])
        if address.startswith("hf://")
        else None
    )
