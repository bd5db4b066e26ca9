"""What a card calls data and models: names that anybody knows, never those of files on this machine."""

import dataclasses
import re

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE

# tensorflow-datasets' name -> the data set's identifier on the Hugging Face hub.
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
# Kinds of sources that are files of one's own -> the hub's name for a data set of that kind.
OWN = {"folder": "imagefolder", "images": "imagefolder", "csv": "csv", "jsonl": "json", "tfrecord": "tfrecord"}
_PATH = re.compile(r"[/\\~]")


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set, as a card names it.

    Attributes:
        name: for people.
        kind: for the hub's model-index: an identifier on the hub, a name of tensorflow-datasets, or the kind of one's
            own files.
        split: of the data set; None if it is not known, or names a file.
        public: whether others have it.
    """

    name: str
    kind: str
    split: str | None
    public: bool

    @property
    def on_the_hub(self) -> str | None:
        """Its identifier on the Hugging Face hub, None without one."""
        return self.kind if "/" in self.kind else None

    def __str__(self) -> str:
        return self.name if self.split is None else f"{self.name} ({self.split})"


def names_a_file(text: str) -> bool:
    """Whether a text could name a file of this machine: it has a slash, a backslash or a tilde."""
    return bool(_PATH.search(text))


def data_of(source: str, split: str | None) -> Data:
    """The data that a source, as in config.data.source, names."""
    split = None if split is None or names_a_file(split) else split
    kind = re.split("[:?]", source)[0]
    if kind in OWN:
        return Data("images of the author's own", OWN[kind], split, False)
    if source == "digits":
        return Data("scikit-learn's digits", "digits", split, True)
    if names_a_file(kind):
        return Data("data of the author's own", "custom", split, False)
    return Data(kind, _ON_THE_HUB.get(kind, kind), split, True)


def is_public(model: str) -> bool:
    """Whether others can load a model by that name: one of the catalogue, or of the Hugging Face hub."""
    return model in CATALOGUE or model.startswith("hf://")


def model_name(name: str) -> str:
    """What a card calls the model that a run started from, or was taught by: its public name and licence, or that it is
    one's own.
    """
    if name in CATALOGUE:
        return f"{name} ({CATALOGUE[name].licence})"
    return name if is_public(name) else "a model of the author's own"


def on_the_hub(name: str | None) -> str | None:
    """The Hugging Face repository of a model that `keras_vit.load` takes by a name or an hf:// address; None for any
    other.
    """
    address = CATALOGUE[name].url if name in CATALOGUE else name or ""
    return (
        "/".join(address.removeprefix("hf://").partition("@")[0].split("/")[:2])
        if address.startswith("hf://")
        else None
    )
