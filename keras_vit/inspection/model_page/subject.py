"""What a page about a model is made of: the model and its images, and the sections that come out."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit.io.suggest import did_you_mean
from keras_vit.models import Classifier, taps
from keras_vit.models.families import Family
from keras_vit.training.prediction.classify import probabilities_of


def computed(model: keras.Model, images: np.ndarray, batch_size: int = 8) -> np.ndarray:
    """The outputs of a model for images (b, height, width, c), float32: (b, ...)."""
    starts = range(0, len(images), batch_size)
    parts = [model(np.asarray(images[i : i + batch_size], "float32"), training=False) for i in starts]
    return np.concatenate([keras.ops.convert_to_numpy(keras.ops.cast(part, "float32")) for part in parts])


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and images to look at.

    Attributes:
        model: a keras_vit.Model with one input of images.
        pixels: (b, height, width, c), 0..255, of all images.
        names: of all images.
        shown: the numbers of those that are shown.
        chosen: the class of which maps are drawn; None for each image's predicted one.
    """

    model: Any
    pixels: np.ndarray
    names: list[str]
    shown: np.ndarray
    chosen: int | None = None

    @property
    def encoder(self) -> keras.Model:
        """The model in whose graph the blocks are."""
        return taps.encoder_in(self.model)[0]

    @property
    def family(self) -> Family:
        """The family of the encoder, which says what it offers."""
        return taps.family_in(self.encoder)

    @property
    def shown_pixels(self) -> np.ndarray:
        """(m, height, width, c), the images that are shown."""
        return self.pixels[self.shown]

    def why_no_classes(self) -> str:
        """Why there are no class maps, a sentence; "" if there are."""
        shape = self.model.output_shape
        if not isinstance(self.model.output, keras.KerasTensor) or len(shape) != 2:
            return f"There are no maps of a class: the model's outputs {shape} are not one number per class."
        if self.model.classes is None and self.chosen is None:
            return (
                "There are no maps of a class: the model has no head, or one whose outputs are not known to be classes."
            )
        if isinstance(self.model, Classifier) and self.model.has_zero_head():
            return "There are no maps of a class: the head is all zeros, as before any training."
        return ""

    def predictions(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The (class (m,), probability (m,)) that the model predicts for the images that are shown; None without
        classes.
        """
        if self.model.classes is None or self.why_no_classes():
            return None
        outputs = computed(self.model, self.shown_pixels)  # (m, classes)
        probabilities = keras.ops.convert_to_numpy(probabilities_of(self.model)(outputs))
        return probabilities.argmax(-1), probabilities.max(-1)

    def class_name(self, number: int) -> str:
        """The name of a class, or its number."""
        return self.model.class_names[number] if self.model.class_names else f"class {number}"


def class_number(model: keras.Model, text: str) -> int:
    """The class that a name or number means.

    Raises:
        ValueError: if the model has no such class.
    """
    names = list(model.class_names or ())
    folded = [name.casefold() for name in names]
    if text.casefold() in folded:
        return folded.index(text.casefold())
    shape, is_headless = model.output_shape, isinstance(model, Classifier) and model.classes is None
    count = model.classes or (
        shape[-1] if isinstance(model.output, keras.KerasTensor) and len(shape) == 2 and not is_headless else 0
    )
    if text.isdecimal() and int(text) < count:
        return int(text)
    known = (
        f"a name or a number from 0 to {count - 1}"
        if names
        else f"a number from 0 to {count - 1}; the model knows no names"
    )
    expected = f"Expected {known}." if count else "Its outputs are not classes."
    raise ValueError(f'The model has no class "{text}".{did_you_mean(text, names)} {expected}')


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        body: HTML.
        files: {name: PNG bytes}, what is written next to the page.
        numbers: what inspection.json has of it.
    """

    title: str
    body: str
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
