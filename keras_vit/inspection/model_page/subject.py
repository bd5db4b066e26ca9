"""Input and output of a model's page: the model and its images, and sections."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit.answers import Answer, does, find
from keras_vit.classification.classify import probability_function
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.suggest import did_you_mean
from keras_vit.models import taps
from keras_vit.models.families import Family


def computed(model: keras.Model, images: np.ndarray, batch_size: int = 8) -> np.ndarray:
    """The model's outputs (b, ...) float32 for images (b, height, width, c)."""
    starts = range(0, len(images), batch_size)
    parts = [model(np.asarray(images[i : i + batch_size], "float32"), training=False) for i in starts]
    return np.concatenate([keras.ops.convert_to_numpy(keras.ops.cast(part, "float32")) for part in parts])


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and images to inspect.

    Attributes:
        model: keras_vit.Model with a single image input.
        pixels: (b, height, width, c). All images, as the model takes them.
        names: names of all images.
        shown: positions of the images to show.
        chosen: class for the maps; None for each image's predicted one.
        whole: the model that answers, `model` or one with `model` as its encoder.
        answers: its answers.
    """

    model: Any
    pixels: np.ndarray
    names: list[str]
    shown: np.ndarray
    chosen: int | None = None
    whole: Any = None
    answers: tuple[Answer, ...] = ()

    @property
    def encoder(self) -> keras.Model:
        """The model with the blocks in its graph."""
        return taps.encoder_in(self.model)[0]

    @property
    def family(self) -> Family:
        """The encoder's family, which describes its features."""
        return taps.family_in(self.encoder)

    @property
    def shown_pixels(self) -> np.ndarray:
        """(m, height, width, c), the images to show."""
        return self.pixels[self.shown]

    @property
    def shown_photographs(self) -> np.ndarray:
        """(m, height, width, c), the images to show as pixels 0..255."""
        return InputRange.of(self.model).to_bytes(self.shown_pixels)

    def why_no_classes(self) -> str:
        """Why there are no class maps, in a sentence; "" if there are some."""
        shape = self.model.output_shape
        if self.whole is not self.model:
            return f"No class maps: the model {does(self.whole)}."
        if not isinstance(self.model.output, keras.KerasTensor) or len(shape) != 2:
            return f"No class maps: the model's outputs {shape} are not one number per class."
        if self.model.classes is None and self.chosen is None:
            return "No class maps: the model has no head, or its outputs are not known to be classes."
        if self.model.has_zero_head():
            return "No class maps: the head is all zeros, as before training."
        return ""

    def predictions(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(classes (m,), probabilities (m,)) predicted for the shown images; None without classes."""
        if self.model.classes is None or self.why_no_classes():
            return None
        outputs = computed(self.model, self.shown_pixels)  # (m, classes)
        probabilities = keras.ops.convert_to_numpy(probability_function(self.model)(outputs))
        return probabilities.argmax(-1), probabilities.max(-1)

    def class_name(self, number: int) -> str:
        """The name of a class, or else its number."""
        return self.model.class_names[number] if self.model.class_names else f"class {number}"


def class_number(model: keras.Model, text: str) -> int:
    """The number of a class given by name or number; ValueError if the model has no such class."""
    if any(find(kind).task for kind in model.answers):
        raise ValueError(f'"{model.name}" {does(model)}: it has no class maps, so leave out the class.')
    names = list(model.class_names or ())
    folded = [name.casefold() for name in names]
    if text.casefold() in folded:
        return folded.index(text.casefold())
    shape, is_headless = model.output_shape, "features" in model.answers
    count = model.classes or (
        shape[-1] if isinstance(model.output, keras.KerasTensor) and len(shape) == 2 and not is_headless else 0
    )
    if text.isdecimal() and int(text) < count:
        return int(text)
    known = (
        f"a name or a number from 0 to {count - 1}"
        if names
        else f"a number from 0 to {count - 1}; the model has no class names"
    )
    expected = f"Expected {known}." if count else "Its outputs are not classes."
    raise ValueError(f'The model has no class "{text}".{did_you_mean(text, names)} {expected}')


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: heading.
        body: HTML.
        files: {name: PNG bytes} to write next to the page.
        numbers: entries of inspection.json.
    """

    title: str
    body: str
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
