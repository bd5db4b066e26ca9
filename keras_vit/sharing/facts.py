"""Everything that a card says of a model, gathered from the model and from its run."""

import dataclasses
from typing import Any

import keras

from keras_vit.models import families
from keras_vit.models.families import Family
from keras_vit.planning.flops import run_costs
from keras_vit.serving.description import describe
from keras_vit.sharing.run import Measured, Run


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a card says.

    Attributes:
        name: of the model, for people: the last part of its address.
        address: what `keras_vit.load` takes.
        licence: its identifier on the Hugging Face hub.
        model: what every export says of its model, see serving.description.describe.
        architecture: in words.
        kind: the name of the model's class.
        family: of the model that it is, or is built on; None if it is built on several, or none.
        pretrains: whether it is there to train its encoder, to which all sizes but the number of parameters refer.
        headless: whether it gives features.
        flops: operations of one image's forward pass, 2 per multiply-add; None if they cannot be counted.
        run: the run's files, or None.
        other_format: "huggingface" or "timm", whichever format the folder holds beside .keras; None for neither.
        other_class: the class of Hugging Face that reads it.
        pictures: {path in the folder: what it shows}.
    """

    name: str
    address: str
    licence: str
    model: dict[str, Any]
    architecture: str
    kind: str
    family: Family | None
    pretrains: bool
    headless: bool
    flops: int | None
    run: Run | None
    other_format: str | None
    other_class: str | None
    pictures: dict[str, str]

    @property
    def is_plain(self) -> bool:
        """Whether it is a family's own model, and not one that is built on it."""
        return self.family is not None and self.kind == self.family.name

    @property
    def measured(self) -> list[Measured]:
        """What the run's own evaluation and its evaluators measured."""
        if self.run is None:
            return []
        return [*([self.run.evaluation] if self.run.evaluation else []), *self.run.evaluators()]

    @property
    def task(self) -> str | None:
        """The Hugging Face hub's name of what the model does; None for a head of one's own, which it has no name
        for.
        """
        if self.kind == "ImageGPT":
            return "unconditional-image-generation"
        if self.headless:
            return "image-feature-extraction"
        return None if self.model["classes"] is None else "image-classification"


def gather(
    model: keras.Model,
    address: str,
    licence: str,
    run: Run | None,
    other: tuple[str, str | None] | None,
    pictures: dict[str, str],
) -> Facts:
    """The facts of a card.

    Args:
        model: a model of images.
        address: where it is shared.
        licence: its licence.
        run: its run, or None.
        other: (format, class) of the other library that reads the folder, or None.
        pictures: {path in the folder: what it shows}.
    """
    parts = address.partition("://")[2].split("/")
    encoder = model.get_encoder()  # of a model of pre-training: what sees whole images
    description = {**describe(encoder, None), "parameters": int(model.count_params())}
    headless = model.classes is None and (encoder is not model or model.made_from_arguments)
    return Facts(
        name=parts[-1] if len(parts) == 2 else parts[1],
        address=address,
        licence=licence,
        model=description,
        architecture="" if encoder.spec is None else encoder.spec.in_words,
        kind=type(model).__name__,
        family=None if encoder.spec is None else families.find(encoder.spec),
        pretrains=encoder is not model,
        headless=headless,
        flops=run_costs(encoder, 0).get("forward_flops"),
        run=run,
        other_format=other[0] if other else None,
        other_class=other[1] if other else None,
        pictures=pictures,
    )
