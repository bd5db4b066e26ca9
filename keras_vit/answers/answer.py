"""What a model's outputs mean: one class for each kind of answer, in a file of its own.

A model names the kinds of its answers, `model.answers`, usually one. `bind` makes an object of each, and what predicts,
serves, exports, inspects or prints loops over these objects and asks no model what it is. A new kind needs a subclass
of Answer with `@register`, and a model that names it:

    @register
    class Dots(Answer):
        kind, does = "dots", "counts dots"
        command = "keras-vit predict --model={} --data=images:FOLDER --output=FOLDER"

        def named(self, outputs):
            return {"count": keras.ops.sum(outputs, axis=(1, 2))}  # (b, h, w, 1) -> (b, 1)

    model.answers = ("dots",)

Letters: b images, h w pixels, c channels.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np

from keras_vit.io.suggest import check_known, listed
from keras_vit.prediction.preprocessing import preprocessing_text


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: column name.
        kind: "integer" (int64), "text", or lists: "texts" and "numbers" (float32).
        length: length of the lists; None for one value.
    """

    name: str
    kind: str
    length: int | None = None

    def __str__(self):
        return self.name if self.length is None else f"{self.name}[{self.length}]"


class Entry(NamedTuple):
    """A part of the caption below a picture: a text, and the colour (red, green, blue) that it explains, or None."""

    text: str
    color: tuple[int, int, int] | None = None


class Look(NamedTuple):
    """An answer for several images, to look at.

    Attributes:
        title: of the pictures.
        text: how to read them.
        pictures: (h, w, 3) uint8 of each image.
        captions: entries below each image.
    """

    title: str
    text: str
    pictures: list[np.ndarray]
    captions: list[list[Entry]]


class Refusal(ValueError):
    """A request that the answer does not take, for the one who sent it."""


class Answer:
    """One kind of answer of a model.

    Args:
        model: a keras_vit.Model.
        **options: of subclasses, by name; None for the default.

    Attributes:
        kind: name, as in `model.answers` and --answers.
        does: what the model does, as a predicate.
        command: a command line that shows it, "{}" for the model.
        example: a line of Python that shows an answer of `model`, or "".
        reads_exports: whether this command takes exported models, too.
        task: name in an export's metadata.json; None for classes and what has no name.
        hub_task: the Hugging Face hub's name for the task, or None.
        signature: name of the service's signature.
        needs_size: whether `at_size` needs the height and width of a request's image.
        reads_texts: whether the model compares images with texts of a request, too.
        is_by_product: whether most other models give it, too, and exports have signatures for it.
        title, reading: title of the answer's pictures, "" for none, and how to read them.
        classified: what has a class each, in the plural.
        refused: {option of other kinds: why this one does not take it}.
        finds_objects: whether `finder` makes functions from images to objects.
        has_masks: whether each object has a mask.
    """

    kind: ClassVar[str]
    does: ClassVar[str]
    command: ClassVar[str]
    example: ClassVar[str] = ""
    reads_exports: ClassVar[bool] = False
    task: ClassVar[str | None] = None
    hub_task: ClassVar[str | None] = None
    signature: ClassVar[str] = "serving_default"
    needs_size: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = False
    is_by_product: ClassVar[bool] = False
    title: ClassVar[str] = ""
    reading: ClassVar[str] = ""
    classified: ClassVar[str] = "images"
    refused: ClassVar[dict[str, str]] = {}
    finds_objects: ClassVar[bool] = False
    has_masks: ClassVar[bool] = False

    def __init__(self, model: Any):
        self.model = model

    @staticmethod
    def finder(model: Any, batch_size: int = 8, **finding: Any) -> Any:
        """A function from images to the objects in each, with `of_pixels` as detection.detect.Finder has."""
        raise NotImplementedError

    @staticmethod
    def segmenter(model: Any, batch_size: int = 8, **windows: Any) -> Any:
        """A function from images to pictures of regions with `shares`, such as segmentation.segment.Segmenter.

        Args:
            model: a keras_vit.Model.
            batch_size: images, or windows, at once.
            **windows: the other arguments of Segmenter.
        """
        raise NotImplementedError

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(inspect.signature(cls).parameters)[1:]

    @property
    def image_model(self) -> Any:
        """The model of images, whose features and attention a service returns, too."""
        return self.model

    # What comes out.

    @property
    def what(self) -> str:
        """The outputs in words, for an export's table of signatures."""
        return "the model's outputs"

    def named(self, outputs: Any) -> dict[str, Any]:
        """The model's outputs by name: symbolic or not, float32, or integers."""
        return as_float32(named_outputs(outputs))

    def trained(self, outputs: Any) -> dict[str, Any]:
        """The outputs that losses take, by name."""
        return self.named(outputs)

    def in_files(self, outputs: Any) -> dict[str, Any]:
        """All outputs of an ONNX or LiteRT file, by name."""
        return self.named(outputs)

    def expected(self, found: dict[str, Any]) -> dict[str, Any]:
        """Of a file's outputs `found` those that follow from its others, recomputed: rounding decides close ones."""
        return {}

    @property
    def preprocessing(self) -> str:
        """The text that makes an image of any size the model's input."""
        return preprocessing_text(self.model)

    def about(self) -> dict[str, Any]:
        """The entries about the answer in an export's metadata.json."""
        classes, names = self.model.classes, self.model.class_names
        return {"classes": classes, "class_names": None if names is None else list(names), "activation": None}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        """A sentence about a model for its card, from the metadata; "" if there is nothing to add."""
        return ""

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        """Sentences on the outputs for an export's README.md, from its metadata."""
        yield from ()

    # Inside a SavedModel.

    def best(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Of the named outputs what an export returns for encoded images."""
        return outputs

    def of_encoded(self, decode: Callable, outputs: Callable) -> Callable:
        """Returns encoded images (b,) strings -> `best` outputs with "status".

        Args:
            decode: encoded images -> (the model's pixels, status).
            outputs: the model's pixels -> `named` outputs.
        """
        from keras_vit.prediction.decoding_in_graph import with_status

        return with_status(decode, lambda images: self.best(outputs(images)))

    def further(self) -> dict[str, tuple[Callable, str]]:
        """{name: (function of encoded images, purpose)} of further signatures."""
        return {}

    # Behind a service.

    @property
    def computes(self) -> Any:
        """The model that computes the answer, from images."""
        return self.model

    def computed(self, outputs: Any) -> dict[str, Any]:
        """Of the model's outputs, symbolic or not, what an engine computes, by name."""
        return self.named(outputs)

    def chosen(self, values: dict[str, Any]) -> dict[str, Any]:
        """Of what was `computed` what the answer is made of, by Keras."""
        return values

    def in_page(self, values: dict[str, Any]) -> dict[str, Any]:
        """Of what was `computed` what an exported page draws, by Keras."""
        return self.chosen(values)

    def rows(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """A JSON object for each of b images, from `chosen` arrays (b, ...)."""
        return as_rows(values)

    def check_threshold(self, asked: float | None) -> float:
        """The score that objects must exceed in a request; Refusal if the answer has no scores, or for a bad one."""
        if asked is not None:
            raise Refusal(f'"{self.model.name}" finds no objects: leave the parameter "threshold" out.')
        return 0.0

    def at_size(self, row: dict[str, Any], size: tuple[int, int], threshold: float) -> dict[str, Any]:
        """A JSON object of `rows`, for an image of this height and width."""
        return row

    def of_windows(
        self, rows: list[dict[str, Any]], windows: list[tuple], size: tuple[int, int], threshold: float
    ) -> dict[str, Any]:
        """`at_size` of an image, from the `rows` of its windows (detection/tiles.py), if `finds_objects`."""
        raise NotImplementedError

    def mask(self, run: Callable, encoded: bytes) -> bytes:
        """An encoded image's mask at its own size, a PNG file; Refusal if the answer is not one.

        Args:
            run: images (b, h, w, c) uint8 -> `chosen` arrays.
        """
        raise Refusal(f'"{self.model.name}" does not give every pixel a class: send images to :predict.')

    # In tables, and for people.

    def tabled(self) -> dict[str, Any]:
        """The symbolic outputs that `columns` and `values` need, by name; ValueError if tables do not suit them."""
        found = self.named(self.model.output)
        deep = [name for name, tensor in found.items() if len(tensor.shape) != 2]
        if deep:
            raise ValueError(
                f'"{self.model.name}" {self.does}: its {listed(deep)} are no rows of numbers. Use model.predict, or'
                " request only features."
            )
        return found

    def columns(self) -> tuple[Column, ...]:
        """The columns of a table with a row for each image."""
        return tuple(Column(name, "numbers", int(tensor.shape[-1])) for name, tensor in self.tabled().items())

    def values(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """{column: (b, length)} from the outputs of `tabled` as float32 arrays."""
        return {column.name: outputs[column.name] for column in self.columns()}

    def draw(self, picture: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
        """A picture (h', w', c) uint8 of a whole image with its answer, from its `chosen` arrays."""
        return picture

    def entries(self, values: dict[str, np.ndarray]) -> list[Entry]:
        """The answer for an image in words, from its `chosen` arrays."""
        return []

    def looks(self, pixels: np.ndarray, images: np.ndarray) -> list[Look]:
        """Pictures of the answers; [] if there is nothing to see.

        Args:
            pixels: (b, h, w, c). As the model takes them.
            images: (b, h, w, c) uint8. The same, to draw on.
        """
        if not self.title:
            return []
        values = list(computed_values(self, pixels))
        pictures = [self.draw(image, found) for image, found in zip(images, values)]
        return [Look(self.title, self.reading, pictures, [self.entries(found) for found in values])]


ANSWERS: dict[str, type[Answer]] = {}


def register(answer: type[Answer]) -> type[Answer]:
    """Adds a kind to the table."""
    ANSWERS[answer.kind] = answer
    return answer


def find(kind: str) -> type[Answer]:
    """The class of a kind; ValueError for an unknown one."""
    check_known(kind, "answer", ANSWERS, ". For one of your own, import the file that registers it first")
    return ANSWERS[kind]


def takes(model: Any, option: str) -> bool:
    """Whether an answer of the model has this option."""
    return any(option in find(kind).options() for kind in model.answers)


def does(model: Any) -> str:
    """What a model does, as a predicate."""
    if not hasattr(model, "answers"):
        return f"is a plain {type(model).__name__}"
    return " and ".join(find(kind).does for kind in model.answers) or "trains another model"


def check_answers(model: Any, kind: str, fix: str = "") -> None:
    """Raises ValueError, which ends with `fix`, unless the model gives answers of this kind."""
    if kind not in getattr(model, "answers", ()):
        raise ValueError(f'"{model.name}" {does(model)}: it does not give {kind}.{fix and f" {fix}"}')


def object_kind(model: Any) -> type[Answer] | None:
    """The kind of a model's answers that are objects, or None."""
    return next((kind for kind in map(find, getattr(model, "answers", ())) if kind.finds_objects), None)


def object_finder(model: Any, batch_size: int = 8, **finding: Any) -> Any:
    """A function from images to the objects in each, such as detection.detect.Finder, by the model's own answer.

    Args:
        model: a keras_vit.Model.
        batch_size: images, or tiles, at once.
        **finding: the other arguments of the model's `detect`.

    Raises:
        ValueError: for a model that finds no objects, or an argument that it does not take or that is out of range.
    """
    found = object_kind(model)
    if found is None:
        raise ValueError(f'"{model.name}" {does(model)}: it finds no objects.')
    return found.finder(model, batch_size, **finding)


def bind(model: Any, **options: Any) -> tuple[Answer, ...]:
    """A model's answers, with those of the options that each takes; None for an option's default.

    Raises:
        ValueError: for an option that no answer of the model takes, or out of range.
    """
    kinds = [find(kind) for kind in model.answers]
    passed = {name: value for name, value in options.items() if value is not None}
    stray = [name for name in passed if not any(name in kind.options() for kind in kinds)]
    if stray:
        whys = [kind.refused[name] for kind in kinds for name in stray if name in kind.refused]
        why = whys[0] if whys else f"{does(model)}, for which there is nothing to choose"
        raise ValueError(f'{", ".join(stray)}: "{model.name}" {why}. Leave {"it" if len(stray) == 1 else "them"} out.')
    return tuple(kind(model, **{name: passed[name] for name in passed.keys() & {*kind.options()}}) for kind in kinds)


def named_outputs(outputs: Any) -> dict[str, Any]:
    """A model's outputs as a dict: one tensor is "outputs", a list "outputs_0"..."""
    if isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, (list, tuple)):
        return {f"outputs_{i}": value for i, value in enumerate(outputs)}
    return {"outputs": outputs}


def as_float32(outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs in float32; integers stay."""
    integers = {name for name, value in outputs.items() if keras.backend.is_int_dtype(value.dtype)}
    return {name: value if name in integers else keras.ops.cast(value, "float32") for name, value in outputs.items()}


def computed_values(answer: Answer, pixels: Any, batch_size: int = 8) -> Iterator[dict[str, np.ndarray]]:
    """For each image the `chosen` arrays of an answer, from pixels (b, h, w, c) as the model takes them."""
    model = answer.computes
    part = keras.Model(model.input, answer.computed(model.output))
    for start in range(0, len(pixels), batch_size):
        found = part(np.asarray(pixels[start : start + batch_size], "float32"), training=False)
        found = {name: keras.ops.convert_to_numpy(x) for name, x in answer.chosen(found).items()}
        for row in zip(*found.values()):
            yield dict(zip(found, row))


def as_rows(values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """{name: array with b rows} as b JSON objects {name: list}."""
    lists = {name: array.astype("float64").tolist() for name, array in values.items()}
    return [dict(zip(lists, row)) for row in zip(*lists.values())]
