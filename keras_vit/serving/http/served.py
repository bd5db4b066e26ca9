"""A model behind the service: encoded images to pixels, and pixels to each signature's results, row by row."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.answers import Answer, bind
from keras_vit.answers.answer import Refusal, as_rows, takes
from keras_vit.classification.classify import check_top_k
from keras_vit.detection.tiles import Tiling, Window
from keras_vit.inspection.attention import attention_map_function, head_map_function
from keras_vit.models import features
from keras_vit.models.taps import blocks, encoder_in
from keras_vit.prediction.images import Preprocessor, Reader
from keras_vit.serving.export_description import describe
from keras_vit.serving.http.bodies import Refused
from keras_vit.serving.http.texts import Search, Texts
from keras_vit.serving.openvino_engine import runner

DEFAULT = "serving_default"
EMPTY = "It is empty: there are no bytes."


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A context that answers unsuitable images and parameters with status 400."""
    try:
        yield
    except ValueError as error:
        raise Refused(400, str(error)) from None


def check_tiles(count: int, most: int) -> None:
    """Raises Refused, 413, for more tiles in a request than `most`."""
    if count > most:
        raise Refused(413, f"Its tiles are {count} images, of {most} at most: send a smaller image, or larger tiles.")


def _size(rows: int) -> int:
    """The power of two to pad batches to on JAX, so that few sizes compile."""
    return 1 << (rows - 1).bit_length()


def _padded(rows):
    """Rows padded to `_size` with copies of the last one."""
    size = _size(len(rows))
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


def _array_function(function, pixel_range):
    """`function` of tensors as images (b, h, w, c) uint8 -> arrays with b rows."""
    pads = keras.backend.backend() == "jax"

    def call(images):
        pixels = pixel_range.of_bytes(_padded(images) if pads else images)
        given = keras.ops.convert_to_tensor(pixels.astype("float32"))
        return {name: keras.ops.convert_to_numpy(value)[: len(images)] for name, value in function(given).items()}

    return call


def _compiled(function, shape):
    """`function` of images (b, *shape), compiled once for all b on TensorFlow, and for each on JAX."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, input_signature=[tf.TensorSpec((None, *shape), tf.float32)], autograph=False)


def _rows(run, rows):
    """`rows` of what `run` returns, as one function of images."""
    return lambda images: rows(run(images))


class Served:
    """A named model.

    Args:
        name: in addresses.
        model: a keras_vit.Model with one image input, or a DualEncoder with its tokenizer.
        top_k: classes to return.
        activation: as in `keras_vit.export`.
        engine: for answers and features: None for Keras, or an engine of `keras_vit.serving.runner`. Keras computes
            attention.
        search: for a DualEncoder, what finds images of an index by an embedding.

    Attributes:
        answers: what the model answers, bound.
        texts: the text encoder of a DualEncoder; None for other models.
        signatures: {name: images (b, h, w, c) uint8 -> a list of b results, JSON}.

    Raises:
        ValueError: for an input other than one image, a model that predicts nothing, a top_k below 1, or an engine that
            cannot compute it.
        ImportError: if the engine is not installed.
    """

    def __init__(
        self,
        name: str,
        model: keras.Model,
        top_k: int = 5,
        activation: str | None = None,
        engine: str | None = None,
        search: Search | None = None,
    ):
        model, top_k = model.without_auxiliary(), check_top_k(top_k)
        # One --top_k is for the models of all kinds.
        self.answers = bind(model, top_k=top_k if takes(model, "top_k") else None, activation=activation)
        self.texts = Texts(model, search) if any(answer.reads_texts for answer in self.answers) else None
        self.name, self._engine = name, engine
        self.model = self.answers[0].image_model if self.answers else model
        self.model.check_head()
        self.description = describe(self.model, self.answers)
        if self.texts is not None:
            self.description |= {"texts": True, "search": search is not None}
        # Masks and boxes lie over the whole image, so nothing of it is cropped.
        text = self.answers[-1].preprocessing if self.answers else None
        self._prepare, self._read = Preprocessor(self.model, text), Reader(self.model)
        self._needs_size = any(answer.needs_size for answer in self.answers)
        self.signatures = self._signatures()
        self._heads: dict[int, Callable] = {}  # of requested blocks

    def _signatures(self):
        found = {}
        for answer in self.answers:
            if not answer.is_by_product:
                source = answer.computes
                self._chosen = self._run(source, answer.computed(source.output), answer.chosen)
                found[answer.signature] = _rows(self._chosen, answer.rows)
        tensor = None
        with contextlib.suppress(ValueError):  # it does not pool
            tensor = features(self.model)
        if tensor is not None:
            found["encoded_features"] = _rows(self._run(self.model, {"features": tensor}), as_rows)
        with contextlib.suppress(ValueError):  # it has no attention
            found["encoded_attention"] = _rows(self._compiled(self._attention()), as_rows)
        return {DEFAULT: found["encoded_features"], **found} if DEFAULT not in found else found

    def _run(self, model, outputs, after=lambda values: values):
        """Returns images (b, h, w, c) uint8 -> arrays, `after` of a model's symbolic outputs, by name."""
        part = keras.Model(model.input, outputs)
        if self._engine is None:
            return self._compiled(lambda images: after(part(images, training=False)))
        part.check_pixels = False  # they come from files
        run, pixel_range = runner(part, self._engine), self._prepare.range

        def arrays(images):
            found = after(run(pixel_range.of_bytes(images)))
            return {name: keras.ops.convert_to_numpy(value) for name, value in found.items()}

        return arrays

    def _compiled(self, function):
        """`function` of pixels as one of images (b, h, w, c) uint8 that returns arrays."""
        compiled = _compiled(function, (*self.model.image_size, self.model.channels))
        return _array_function(compiled, self._prepare.range)

    def _attention(self):
        maps = attention_map_function(self.model)
        return lambda images: {"attention": maps(images)}

    def mask(self, encoded: bytes) -> bytes:
        """The mask of an encoded image at its own size: a PNG of class numbers, with the classes' colours.

        Raises:
            Refused: 400 for a model that does not segment, or anything but an image.
        """
        if not self.answers:
            raise Refused(400, f'"{self.name}" does not give every pixel a class: send images to :predict.')
        with _refusals():
            if not encoded:
                raise Refusal(EMPTY)
            return self.answers[-1].mask(self._chosen, encoded)

    def decode_with_size(self, encoded: bytes) -> tuple[np.ndarray, tuple[int, int] | None]:
        """The pixels (h, w, c) uint8 of an encoded image, and its upright height and width if the answer needs them.

        Raises:
            Refused: 400 for anything else, with the reason.
        """
        with _refusals():
            if not encoded:
                raise Refusal(EMPTY)
            if not self._needs_size:
                return self._prepare(encoded, "It"), None
            image = self._read(encoded, "It")
            return self._prepare.preprocess.image(image).numpy(), image.shape[:2]

    def tiling(self, signature: str, tiles: int) -> Tiling:
        """How tiles of a request cover its images.

        Raises:
            Refused: 400 for a size out of range, or a signature that does not find objects.
        """
        with _refusals():
            if not self.answers or not self.answers[-1].finds_objects:
                raise Refusal(f'"{self.name}" finds no objects: leave the parameter "tiles" out.')
            if signature != self.answers[-1].signature:
                raise Refusal(f'"{signature}" is of whole images: leave the parameter "tiles" out.')
            return Tiling(tiles)

    def decode_tiles(
        self, encoded: bytes, tiling: Tiling, most: int
    ) -> tuple[list[np.ndarray], list[Window], tuple[int, int]]:
        """The pixels (h, w, c) uint8 of an encoded image and of its tiles, these windows, and the image's size.

        Raises:
            Refused: as `decode_with_size`, and 413 for more than `most` tiles.
        """
        with _refusals():
            if not encoded:
                raise Refusal(EMPTY)
            image = self._read(encoded, "It")
            windows = tiling.windows(*image.shape[:2])
        check_tiles(len(windows), most)
        parts = (image[top:bottom, left:right] for top, left, bottom, right in windows)
        return [self._prepare.preprocess.image(part).numpy() for part in parts], windows, image.shape[:2]

    def of_windows(
        self, rows: list[dict[str, Any]], windows: list[Window], size: tuple[int, int], threshold: float
    ) -> dict[str, Any]:
        """The objects in an image of this height and width, from the results of its windows."""
        return self.answers[-1].of_windows(rows, windows, size, threshold)

    def threshold(self, asked: float | None) -> float:
        """The score above which a request gets objects: the one it asks for, or the model's.

        Raises:
            Refused: 400 for one out of range, or a model that finds no objects.
        """
        with _refusals():
            return (self.answers[-1] if self.answers else Answer(self.model)).check_threshold(asked)

    def at_size(
        self, signature: str, row: dict[str, Any], size: tuple[int, int] | None, threshold: float
    ) -> dict[str, Any]:
        """A result for an image of this height and width: boxes in pixels, with scores above `threshold`."""
        answered = [answer for answer in self.answers if answer.signature == signature and size is not None]
        return answered[0].at_size(row, size, threshold) if answered else row

    def heads(self, pixels: np.ndarray, block: int) -> dict[str, Any]:
        """Attention per head of a block from the output's token, for one image (h, w, c): {"block", "heads" (k, h, w)}.

        Raises:
            Refused: 400 for a model without attention, or an unknown block.
        """
        try:
            count = len(blocks(encoder_in(self.model)[0]))
            number = block + count if block < 0 else block
            if number not in self._heads:
                self._heads[number] = self._compiled_heads(block)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        maps = self._heads[number](pixels[None])["heads"][0]
        return {"block": number, "blocks": count, "heads": np.round(maps.astype("float64"), 6).tolist()}

    def _compiled_heads(self, block):
        maps = head_map_function(self.model, block)
        return self._compiled(lambda images: {"heads": maps(images)})

    def warm_up(self, max_rows: int = 1, wanted: Callable[[], bool] = lambda: True) -> None:
        """Compiles all signatures, on JAX for every batch size up to `max_rows`; stops early unless still `wanted`."""
        sizes = [1 << i for i in range(_size(max_rows).bit_length())] if keras.backend.backend() == "jax" else [1]
        for size in sizes:
            images = np.full((size, *self.model.image_size, self.model.channels), 128, "uint8")
            for function in self.signatures.values():
                if not wanted():
                    return
                function(images)
