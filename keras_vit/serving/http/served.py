"""A model behind the service: encoded images to pixels, and pixels to each signature's results, row by row."""

import base64
import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.classification.classify import check_top_k, probability_function
from keras_vit.detection.detect import class_names, finds_objects, in_image, shown_text, visible
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.inspection.attention import attention_map_function, head_map_function
from keras_vit.io.mask_pictures import mask_png
from keras_vit.models import Classifier, features
from keras_vit.models.taps import blocks, encoder_in
from keras_vit.prediction.images import Preprocessor, Reader
from keras_vit.prediction.preprocessing import parse_preprocessing
from keras_vit.segmentation.segment import (
    Segmenter,
    estimates_depth,
    is_dense,
    names_and_colors,
    segments,
    whole_text,
)
from keras_vit.serving.export_description import describe
from keras_vit.serving.http.bodies import Refused
from keras_vit.serving.http.texts import Search, Texts
from keras_vit.serving.openvino_engine import runner
from keras_vit.serving.signatures import depths, named_outputs

DEFAULT = "serving_default"
LEAST_SCORE = 0.05  # of objects that are computed; requests choose among them


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


class Served:
    """A named model.

    Args:
        name: in addresses.
        model: a keras_vit.Model with one image input, or a DualEncoder with its tokenizer.
        top_k: classes to return.
        activation: as in `keras_vit.export`.
        engine: for classes, outputs and features: None for Keras, or an engine of `keras_vit.serving.runner`. Keras
            computes attention.
        search: for a DualEncoder, what finds images of an index by an embedding.

    Attributes:
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
        self.texts, self._tower = None, None
        if isinstance(model, DualEncoder):
            self.texts, self._tower, model = Texts(model, search), model.tower("image"), model.image_encoder
        if isinstance(model, Classifier):
            model.check_head()
        if is_dense(model):
            model = model.without_auxiliary()
        self.name, self.model, self.top_k = name, model, check_top_k(top_k)
        self.description = describe(model, activation)
        if finds_objects(model):
            self.description["score_threshold"] = model.score_threshold
        if self.texts is not None:
            self.description |= {"texts": True, "search": search is not None}
        # Masks and boxes lie over the whole image, so nothing of it is cropped.
        whole = whole_text(model) if segments(model) else shown_text(model) if finds_objects(model) else None
        self._prepare = Preprocessor(model) if whole is None else Reader(model, whole)
        self._whole, self._read = whole, Reader(model)
        self._engine, self._segmenter = engine, None
        self.signatures = self._signatures(activation)
        self._heads: dict[int, Callable] = {}  # of requested blocks

    def _signatures(self, activation):
        found, model = {}, self.model
        if finds_objects(model):
            found[DEFAULT] = self._objects(model)
        elif segments(model):
            found[DEFAULT] = self._masks(model)
        elif estimates_depth(model):
            found[DEFAULT] = _rows(self._function(depths(model.output)))
        elif model.classes is not None:
            found[DEFAULT] = self._named(
                self._function({"probabilities": probability_function(model, activation)(model.output)})
            )
        elif not isinstance(model, Classifier):
            found[DEFAULT] = _rows(self._function(named_outputs(model.output)))
        tensor = None
        with contextlib.suppress(ValueError):  # it does not pool
            tensor = features(model)
        if tensor is not None:
            found["encoded_features"] = _rows(self._function({"features": tensor}))
        if self._tower is not None:
            found["embeddings"] = _rows(self._function({"embeddings": self._tower.output}, self._tower))
        with contextlib.suppress(ValueError):  # it has no attention
            found["encoded_attention"] = _rows(
                _array_function(_compiled(self._attention(), (*model.image_size, model.channels)), self._prepare.range)
            )
        return {DEFAULT: found["encoded_features"], **found} if DEFAULT not in found else found

    def _function(self, outputs, model=None):
        """Returns images (b, h, w, c) uint8 -> arrays of these symbolic outputs of the model, by name."""
        part = keras.Model((model or self.model).input, outputs)
        if self._engine is not None:
            part.check_pixels = False  # they come from files
            run, pixel_range = runner(part, self._engine), self._prepare.range
            return lambda images: run(pixel_range.of_bytes(images))
        compiled = _compiled(lambda images: part(images, training=False), part.input.shape[1:])
        return _array_function(compiled, self._prepare.range)

    def _attention(self):
        maps = attention_map_function(self.model)
        return lambda images: {"attention": maps(images)}

    def _named(self, function):
        """`function` to probabilities (b, classes) as one to the top k classes and their probabilities."""
        names = self.model.class_names or [str(i) for i in range(self.model.classes)]

        def best(images):
            probabilities = function(images)["probabilities"].astype("float64")
            order = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self.top_k]
            return [
                {"classes": [names[i] for i in chosen], "probabilities": row[chosen].tolist()}
                for row, chosen in zip(probabilities, order)
            ]

        return best

    def _objects(self, model):
        """Images (b, h, w, c) uint8 -> each one's objects, best first; boxes are fractions of the pixels given."""
        least = min(LEAST_SCORE, model.score_threshold)
        function, names = self._detections(model.finder(threshold=least)), class_names(model)

        def row(boxes, scores, labels):
            there = labels >= 0
            return {
                "classes": [names[label] for label in labels[there]],
                "scores": scores[there].astype("float64").tolist(),
                "boxes": boxes[there].astype("float64").tolist(),
                "labels": labels[there].tolist(),
            }

        def rows(images):
            found = function(images)
            return [row(*each) for each in zip(found["boxes"], found["scores"], found["labels"].astype("int64"))]

        return rows

    def _detections(self, finder):
        """Images (b, h, w, c) uint8 -> a finder's outputs; of an engine's candidates Keras chooses."""
        if self._engine is None:
            return self._function(finder.output)
        candidates, suppression = self._function(self.model.output), finder.get_layer("suppression")

        def chosen(images):
            found = candidates(images)
            rows = suppression(found["logits"], found["boxes"])
            return {name: keras.ops.convert_to_numpy(value) for name, value in rows.items()}

        return chosen

    def _masks(self, model):
        """Images (b, h, w, c) uint8 -> each one's classes, largest first, with shares, colours and a PNG mask."""
        function = self._function({"logits": model.output})
        self._segmenter = Segmenter(model, function=lambda images: function(images)["logits"])
        names, colors = names_and_colors(model)

        def row(ids):
            counts = np.bincount(ids.reshape(-1), minlength=len(names))
            order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
            return {
                "classes": [names[i] for i in order],
                "shares": (counts[order] / ids.size).tolist(),
                "colors": [list(colors[i]) for i in order],
                "mask": {"b64": base64.b64encode(mask_png(ids, colors)).decode()},
            }

        return lambda images: [row(logits.argmax(-1)) for logits in function(images)["logits"]]

    def mask(self, encoded: bytes) -> bytes:
        """The mask of an encoded image at its own size: a PNG of class numbers, with the classes' colours.

        Raises:
            Refused: 400 for a model that does not segment, or anything but an image.
        """
        if self._segmenter is None:
            raise Refused(400, f'"{self.name}" does not give every pixel a class: send images to :predict.')
        if not encoded:
            raise Refused(400, "It is empty: there are no bytes.")
        try:
            return next(self._segmenter([(encoded, "It")])).png()
        except ValueError as error:
            raise Refused(400, str(error)) from None

    def decode(self, encoded: bytes) -> np.ndarray:
        """The pixels (h, w, c) uint8 of an encoded image.

        Raises:
            Refused: 400 for anything else, with the reason.
        """
        return self.decode_with_size(encoded)[0]

    def decode_with_size(self, encoded: bytes) -> tuple[np.ndarray, tuple[int, int] | None]:
        """The same, and for a detector the upright image's own height and width, which `in_pixels` takes."""
        if not encoded:
            raise Refused(400, "It is empty: there are no bytes.")
        try:
            if not finds_objects(self.model):
                return self._prepare(encoded, "It"), None
            image = self._read(encoded, "It")
            return parse_preprocessing(self._whole).image(image).numpy(), image.shape[:2]
        except ValueError as error:
            raise Refused(400, str(error)) from None

    def threshold(self, asked: float | None) -> float:
        """The score above which a request gets objects: the one it asks for, or the model's.

        Raises:
            Refused: 400 for one out of range, or a model that finds no objects.
        """
        if asked is None:
            return getattr(self.model, "score_threshold", 0.0)
        if not finds_objects(self.model):
            raise Refused(400, f'"{self.name}" finds no objects: leave the parameter "threshold" out.')
        if not LEAST_SCORE <= asked <= 1:
            raise Refused(400, f"threshold={asked:g}: expected a score from {LEAST_SCORE} to 1.")
        return asked

    def in_pixels(self, row: dict[str, Any], size: tuple[int, int] | None, threshold: float) -> dict[str, Any]:
        """The objects of a result with scores above `threshold`, boxes in pixels of the image of this size, and the
        size itself; other results stay.
        """
        if size is None or "boxes" not in row:
            return row
        boxes = in_image(self._whole, np.reshape(row["boxes"], (-1, 4)), size)
        chosen = np.flatnonzero((np.array(row["scores"]) > threshold) & visible(boxes))
        row = {name: [values[i] for i in chosen] for name, values in row.items()}
        return {**row, "boxes": (boxes[chosen] * np.tile(size, 2)).tolist(), "size": list(size)}

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
        return _array_function(
            _compiled(lambda images: {"heads": maps(images)}, (*self.model.image_size, self.model.channels)),
            self._prepare.range,
        )

    def warm_up(self, max_rows: int = 1, wanted: Callable[[], bool] = lambda: True) -> None:
        """Compiles all signatures, on JAX for every batch size up to `max_rows`; stops early unless still `wanted`."""
        sizes = [1 << i for i in range(_size(max_rows).bit_length())] if keras.backend.backend() == "jax" else [1]
        for size in sizes:
            images = np.full((size, *self.model.image_size, self.model.channels), 128, "uint8")
            for function in self.signatures.values():
                if not wanted():
                    return
                function(images)


def _rows(function: Callable) -> Callable:
    """`function` to {name: array with b rows} as one to b results {name: list}; several outputs stay apart."""

    def rows(images):
        found = function(images)
        return [
            {name: value[i].astype("float64").tolist() for name, value in found.items()} for i in range(len(images))
        ]

    return rows
