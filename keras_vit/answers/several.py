"""Several answers of one model, each under its part's name."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.answers.answer import Answer, Look, Refusal, bind, computed_values, find, register, takes
from keras_vit.io.mask_pictures import legend, rgb
from keras_vit.prediction.images import Reader, each_answer
from keras_vit.prediction.preprocessing import parse_preprocessing

if TYPE_CHECKING:
    from PIL import Image

_WHITE = (255, 255, 255)


def _joined(named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{part: {name: value}} as {"part_name": value}."""
    return {f"{part}_{name}": value for part, values in named.items() for name, value in values.items()}


@register
class Several(Answer):
    """The answers of a MultiModel's parts.

    Args:
        **options: of the parts' answers; each takes its own.
    """

    kind, task, does = "several", "several", "gives several answers"
    command, needs_size = "keras-vit serve {}", True
    example = 'model.answer("photo.jpg").picture()  # every answer in one picture'

    def __init__(
        self,
        model: Any,
        top_k: int | None = None,
        activation: str | None = None,
        threshold: float | None = None,
        iou: float | None = None,
        limit: int | None = None,
        soft: bool | None = None,
        across_classes: bool | None = None,
    ):
        super().__init__(model)
        options = {"top_k": top_k, "activation": activation, "threshold": threshold, "iou": iou, "limit": limit}
        options = {**options, "soft": soft, "across_classes": across_classes}
        parts = model.parts
        stray = [
            name
            for name, value in options.items()
            if value is not None and not any(takes(p, name) for p in parts.values())
        ]
        if stray:
            raise ValueError(f'{", ".join(stray)}: no part of "{model.name}" takes it. Leave it out.')
        self.parts: dict[str, Answer] = {
            name: bind(part, **{key: value for key, value in options.items() if takes(part, key)})[0]
            for name, part in parts.items()
        }

    @property
    def what(self) -> str:
        return "; ".join(f"{name}: {answer.what}" for name, answer in self.parts.items())

    def _each(self, method: str, outputs: Any) -> dict[str, Any]:
        return _joined({name: getattr(answer, method)(outputs[name]) for name, answer in self.parts.items()})

    def named(self, outputs: Any) -> dict[str, Any]:
        """The named outputs of each part, as "part_name"."""
        return self._each("named", outputs)

    def trained(self, outputs: Any) -> dict[str, Any]:
        return self._each("trained", outputs)

    def in_files(self, outputs: Any) -> dict[str, Any]:
        return self._each("in_files", outputs)

    def part(self, values: dict[str, Any], part: str) -> dict[str, Any]:
        """Of {"part_name": value} those of a part, by name."""
        return {name.removeprefix(f"{part}_"): value for name, value in values.items() if name.startswith(f"{part}_")}

    def expected(self, found: dict[str, Any]) -> dict[str, Any]:
        return _joined({name: answer.expected(self.part(found, name)) for name, answer in self.parts.items()})

    def about(self) -> dict[str, Any]:
        parts = {name: {"answer": answer.kind, **answer.about()} for name, answer in self.parts.items()}
        return {**super().about(), "parts": parts}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        parts = {
            name: find(about["answer"]).sentence({**metadata, **about}) for name, about in metadata["parts"].items()
        }
        return " ".join(f"Its part {name} {text.removeprefix('It ')}" for name, text in parts.items() if text)

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        for name, about in metadata["parts"].items():
            for note in find(about["answer"]).notes({**metadata, **about}):
                yield f"- **{name}** (`{name}_...`): {note.removeprefix('- ')}"

    def best(self, outputs: dict[str, Any]) -> dict[str, Any]:
        return _joined({name: answer.best(self.part(outputs, name)) for name, answer in self.parts.items()})

    def further(self) -> dict[str, tuple[Callable, str]]:
        return {
            f"{part}_{name}": signature
            for part, answer in self.parts.items()
            for name, signature in answer.further().items()
        }

    def computed(self, outputs: Any) -> dict[str, Any]:
        return self._each("computed", outputs)

    def chosen(self, values: dict[str, Any]) -> dict[str, Any]:
        return _joined({name: answer.chosen(self.part(values, name)) for name, answer in self.parts.items()})

    def in_page(self, values: dict[str, Any]) -> dict[str, Any]:
        return _joined({name: answer.in_page(self.part(values, name)) for name, answer in self.parts.items()})

    def rows(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """A JSON object for each image: {part: its own}."""
        parts = {name: answer.rows(self.part(values, name)) for name, answer in self.parts.items()}
        return [dict(zip(parts, row)) for row in zip(*parts.values())]

    def check_threshold(self, asked: float | None) -> float:
        scored = [answer for answer in self.parts.values() if answer.needs_size]
        return (scored[0] if scored else Answer(self.model)).check_threshold(asked)

    def at_size(self, row: dict[str, Any], size: tuple[int, int], threshold: float) -> dict[str, Any]:
        return {name: self.parts[name].at_size(value, size, threshold) for name, value in row.items()}

    def mask(self, run: Callable, encoded: bytes) -> bytes:
        for name, answer in self.parts.items():
            try:
                return answer.mask(lambda images, part=name: self.part(run(images), part), encoded)
            except Refusal as refusal:
                last = refusal
        raise last

    def tabled(self) -> dict[str, Any]:
        raise ValueError(
            f'"{self.model.name}" {self.does}: predict with a part, one of {", ".join(self.parts)}, or request only'
            " features."
        )

    def looks(self, pixels: np.ndarray, images: np.ndarray) -> list[Look]:
        return [look for answer in self.parts.values() for look in answer.looks(pixels, images)]


class Answered(dict):
    """The answers for an image: {part: JSON object}, as a service returns them.

    Attributes:
        image: the image, upright: pixels (h, w, c) uint8.
    """

    def __init__(self, rows: dict[str, Any], image: np.ndarray, draw: Callable):
        super().__init__(rows)
        self.image, self._draw = image, draw

    def picture(self) -> "Image.Image":
        """The image with masks, boxes and a legend: a Pillow image, to show or save."""
        from PIL import Image

        return Image.fromarray(self._draw(self.image))


def _picture(answer, image, values):
    """An image under all of its answers, above their names."""
    picture, entries = rgb(image), []
    for name in sorted(answer.parts, key=lambda name: answer.parts[name].needs_size):  # boxes last, over masks
        part, own = answer.parts[name], answer.part(values, name)
        picture, entries = part.draw(picture, own), entries + part.entries(own)
    below = legend([entry.text for entry in entries], [entry.color or _WHITE for entry in entries], picture.shape[1])
    return np.concatenate([picture, below])


def answer(model: Any, x: Any, verbose: bool | int | str = "auto", **options: Any) -> Answered | list[Answered]:
    """The answers of a MultiModel for one image or a list; see MultiModel.answer."""
    [several] = bind(model, **options)
    read, prepare = Reader(model), parse_preprocessing(several.preprocessing)

    def answers(images):
        for item, name in images:
            image = read(item, name)
            pixels = read.range.of_bytes(prepare.image(image).numpy())[None]
            [values] = computed_values(several, pixels)
            [row] = several.rows({key: value[None] for key, value in values.items()})
            sized = several.at_size(row, image.shape[:2], several.check_threshold(None))
            yield Answered(sized, image, lambda image, values=values: _picture(several, image, values))

    return each_answer(answers, x, verbose, 1)
