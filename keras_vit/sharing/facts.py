"""The facts on a card, from the model and its run."""

import dataclasses
from typing import Any

import keras

from keras_vit.answers import bind, find
from keras_vit.models import families
from keras_vit.models.families import Family
from keras_vit.planning.flops import run_costs
from keras_vit.serving.export_description import describe
from keras_vit.sharing.published_run import Measured, Run


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts on a card.

    Attributes:
        name: display name of the model, the last part of its address.
        address: address for `keras_vit.load`.
        licence: identifier on the Hugging Face hub.
        model: result of serving.export_description.describe.
        architecture: description in words.
        kind: class name of the model.
        family: family of the model or of its base; None if it has several bases or none.
        pretrains: whether the model trains an encoder; all sizes but `parameters` are then the encoder's.
        headless: whether the model returns features.
        flops: operations of one image's forward pass, 2 per multiply-add; None if they cannot be counted.
        run: the run's files, or None.
        other_format: "huggingface" or "timm", the second format in the folder; None if the only format is .keras.
        other_class: transformers class that reads the second format, or None.
        pictures: {path in the folder: caption}.
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
        """Whether the model is its family's own class, not one built on it."""
        return self.family is not None and self.kind == self.family.name

    @property
    def measured(self) -> list[Measured]:
        """Measures of the run's own evaluation and of its evaluators."""
        if self.run is None:
            return []
        return [*([self.run.evaluation] if self.run.evaluation else []), *self.run.evaluators()]

    @property
    def task(self) -> str | None:
        """The Hugging Face hub's name for the task; None for custom heads, which it does not name."""
        if self.kind == "ImageGPT":
            return "unconditional-image-generation"
        if self.headless and not self.model["answers"]:
            return "image-feature-extraction"
        return next((find(kind).hub_task for kind in self.model["answers"]), None)


def gather(
    model: keras.Model,
    address: str,
    licence: str,
    run: Run | None,
    other: tuple[str, str | None] | None,
    pictures: dict[str, str],
) -> Facts:
    """Gathers a card's facts; `other` is the (format, class) that lets another library read the folder, or None."""
    parts = address.partition("://")[2].split("/")
    encoder = model.get_encoder()  # of a pre-training model, the part that takes whole images
    headed = encoder is not model and any(find(kind).task for kind in model.answers)
    described = model if headed else encoder
    description = {**describe(described, bind(described)), "parameters": int(model.count_params())}
    headless = not headed and model.classes is None and (encoder is not model or model.made_from_arguments)
    return Facts(
        name=parts[-1] if len(parts) == 2 else parts[1],
        address=address,
        licence=licence,
        model=description,
        architecture="" if encoder.spec is None else encoder.spec.in_words,
        kind=type(model).__name__,
        family=None if encoder.spec is None else families.find(encoder.spec),
        pretrains=described is not model,
        headless=headless,
        flops=None if headed else run_costs(encoder, 0).get("forward_flops"),
        run=run,
        other_format=other[0] if other else None,
        other_class=other[1] if other else None,
        pictures=pictures,
    )
