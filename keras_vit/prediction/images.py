"""Turns images of any kind into a model's pixels, for `model.preprocess`.

An image is a path, encoded bytes or an open file, a PIL image, or an array (h, w) or (h, w, c) of pixels 0..255. All
give the same as `data.parse(text).image`, as in evaluation and in an exported model.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.pixels import PIXELS, InputRange, check_range
from keras_vit.prediction.preprocessing import Preprocessing, parse_preprocessing, preprocessing_text


def _is_pil(x):
    return hasattr(x, "getbands") and hasattr(x, "convert")


def listed(x) -> tuple[list, bool]:
    """(images, whether `x` is a single one)."""
    if isinstance(x, (str, bytes, bytearray, memoryview, os.PathLike)) or _is_pil(x) or hasattr(x, "read"):
        return [x], True
    if hasattr(x, "element_spec") or isinstance(x, dict):
        raise ValueError(
            f"Expected an image or a list of images, got {type(x).__name__}. For a dataset: model.predict(dataset)."
        )
    if not hasattr(x, "shape"):
        if not isinstance(x, Iterable):
            raise ValueError(f"Expected a path, bytes, a PIL image, an array or a list of these, got {x!r}.")
        return list(x), False
    array = np.asarray(x)
    if array.dtype.kind in "SUO" and array.ndim < 2:
        return ([array.item()], True) if not array.ndim else (array.tolist(), False)
    if array.ndim in (2, 3):
        return [array], True
    if array.ndim == 4:
        return list(array), False
    raise ValueError(f"Expected an image (h, w, c) or images (b, h, w, c), got an array of shape {array.shape}.")


def _read(path):
    """A file's bytes, from this machine or a bucket."""
    text = os.fspath(path)
    if text.startswith(("http://", "https://")):
        raise ValueError("an address: download the image, and give its path or its bytes")
    if "://" in text:
        import tensorflow as tf

        try:
            with tf.io.gfile.GFile(text, "rb") as file:
                return file.read()
        except tf.errors.OpError as error:
            raise FileNotFoundError(f'Cannot read "{text}": {error.message}.') from None
    text = os.path.expanduser(text)
    if os.path.isdir(text):
        raise ValueError(f'a folder: give its files, such as pathlib.Path("{text}").rglob("*.jpg")')
    try:
        with open(text, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise FileNotFoundError(f'There is no image file "{text}".') from None


def _pil_pixels(image):
    """A PIL image's pixels as `decode` reads its file: upright, without alpha."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        pixels = np.asarray(image)
        return pixels.astype("uint16") if image.mode == "I" and 0 <= pixels.min() and pixels.max() < 2**16 else pixels
    return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB"))


def _eight_bits(pixels, check_pixels):
    """Pixels on 0..255, else ValueError; 16-bit integers by their high 8 bits, as in a PNG, if any value needs them."""
    kind = pixels.dtype.kind
    if kind not in "iuf" or not pixels.size:
        raise ValueError(f"expected pixels, integers or floats, got {pixels.dtype} of shape {pixels.shape}")
    low, high = pixels.min(), pixels.max()
    if pixels.dtype == np.uint16:
        return (pixels // 256 if high > 255 else pixels).astype("uint8")
    lowest, highest = (-255, 511) if kind == "f" else (0, 255)  # filters overshoot; clipping follows
    if not lowest <= low <= high <= highest:
        raise ValueError(f"expected pixels 0..255 (or uint16 of 16 bits), got values from {low} to {high}")
    if check_pixels:
        check_range(pixels[None], PIXELS)
    return pixels.astype("uint8" if kind != "f" else "float32")


def _pixels(array, channels, check_pixels):
    """An array as pixels 0..255, (h, w, c), without alpha; ValueError for another shape or scale."""
    array = np.asarray(array)
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[-1] not in (1, 2, 3, 4, channels):
        first = (
            " Is the first axis the channels? Then transpose it to the end." if array.shape[:1] in ((1,), (3,)) else ""
        )
        raise ValueError(
            f"expected an array (h, w), or (h, w, c) with c of 1 to 4 channels, got shape {array.shape}.{first}"
        )
    pixels = _eight_bits(array, check_pixels)
    with_alpha = pixels.shape[-1] in (2, 4) and pixels.shape[-1] != channels
    return pixels[..., :-1] if with_alpha else pixels


def _image(item, channels, check_pixels):
    """One image as encoded bytes or pixels (h, w, c)."""
    if isinstance(item, (str, os.PathLike)):
        return _read(item)
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    if hasattr(item, "read"):
        return item.read()
    if _is_pil(item):
        return _pixels(_pil_pixels(item), channels, check_pixels)
    if hasattr(item, "shape") and np.asarray(item).dtype.kind in "SO" and not np.asarray(item).ndim:
        return _image(np.asarray(item).item(), channels, check_pixels)
    if not hasattr(item, "shape"):
        raise ValueError(f"expected a path, bytes, a PIL image or an array, got {type(item).__name__}")
    return _pixels(item, channels, check_pixels)


def item_name(item, number, single):
    """An image's name in messages."""
    if isinstance(item, (str, os.PathLike)):
        return f'"{os.fspath(item)}"'
    return "The image" if single else f"Image {number} of the list"


def encoder_advice(model) -> str:
    """The end of a message about a model that takes no image: its encoder, if it trains one that does; or ""."""
    own = model.get_encoder() is model
    return "" if own else ' Use its encoder: model.get_encoder(), or load it with head="drop" (--load.head=drop).'


class Reader:
    """From images of any kind to their pixels 0..255, upright and unscaled, in a model's channels: uint8 (h, w, c).

    Attributes:
        range: of the model's own pixels, made of these by `range.of_bytes`.
    """

    def __init__(self, model, text: str | None = None):
        if model.image_size is None:
            raise ValueError(
                f'"{model.name}" does not take one image (b, h, w, c) of fixed size: its input is {model.input_shape}.'
                f"{encoder_advice(model)}"
            )
        self.range, self.check_pixels = InputRange.known(model), model.check_pixels
        self.channels = model.channels
        self.text = text or f"decode({model.channels}, whole=True)"
        self.preprocess = parse_preprocessing(self.text)

    def __call__(self, item, name):
        """The pixels of one image.

        Raises:
            FileNotFoundError: for a missing file.
            ValueError: for anything but an image; `name` names it.
        """
        import tensorflow as tf

        from keras_vit.data.errors import reason
        from keras_vit.data.sources.image_files import to_known_format

        try:
            image = _image(item, self.channels, self.check_pixels)
            if isinstance(image, bytes):
                image = to_known_format(image, os.fspath(item) if isinstance(item, (str, os.PathLike)) else "")
            return self.preprocess.image(image).numpy()
        except tf.errors.OpError as error:
            raise ValueError(f"{name} cannot be decoded as an image: {reason(error)}") from None
        except ValueError as error:
            own = f" Here images have pixels 0..255, and become the model's own, {self.range}."
            raise ValueError(f"{name}: {error}{'' if self.range.is_bytes else own}") from None


class Preprocessor(Reader):
    """From images of any kind to pixels 0..255 of the model's size, uint8 (height, width, c)."""

    def __init__(self, model, text: str | None = None):
        super().__init__(model, (text or preprocessing_text(model)) if model.image_size else None)
        self.shape = (*model.image_size, model.channels)

    def __call__(self, item, name):
        """The pixels of one image.

        Raises:
            FileNotFoundError: for a missing file.
            ValueError: for anything but an image, or a preprocessing that gives another size; `name` names the image.
        """
        pixels = super().__call__(item, name)
        if pixels.shape != self.shape:
            raise ValueError(
                f'{name}: the model\'s preprocessing "{self.text}" gives pixels of shape {pixels.shape}, and the model'
                f' takes {self.shape}. Set model.preprocessing to a text for its size, such as "decode|resize(224,'
                ' 224)".'
            )
        return pixels


class ReadsImages:
    """The base of functions from images of any kind to a model's answers: reads the images, one by one.

    Attributes:
        model: a keras_vit.Model.
    """

    model: Any

    def of_pixels(self, images: Iterable[np.ndarray]) -> Iterator[Any]:
        """The answers for pixels 0..255 (h, w, c) uint8 in the model's channels, in order."""
        raise NotImplementedError

    def __call__(self, images: Iterable[tuple[Any, str]]) -> Iterator[Any]:
        """The answers for (image, its name in messages), in order; reads images as it goes.

        Raises:
            FileNotFoundError: for a missing file.
            ValueError: for anything but an image, which `name` names.
        """
        read = Reader(self.model)
        return self.of_pixels(read(item, name) for item, name in images)


def each_answer(answer: Callable[[Iterable], Iterable], x: Any, verbose: bool | int | str, batch_size: int) -> Any:
    """The answer for an image, or a list of them for several.

    Args:
        answer: an iterable of (image, its name in messages) -> their answers, in order.
        x: an image or a list.
        verbose: whether to show progress, for more images than `batch_size`.
    """
    images, single = listed(x)
    shown = verbose and len(images) > batch_size
    bar, results = keras.utils.Progbar(len(images), unit_name="image") if shown else None, []
    for found in answer((item, item_name(item, i, single)) for i, item in enumerate(images)):
        results.append(found)
        if bar:
            bar.update(len(results))
    return results[0] if single else results


def preprocess(model, x: Any):
    """The model's pixels of an image or a list; see Model.preprocess."""
    if isinstance(x, keras.KerasTensor) or hasattr(x, "graph"):  # symbolic: in a Keras model or tf.data
        found, text = InputRange.known(model), preprocessing_text(model)
        pixels = Preprocessing(text, check_pixels=model.check_pixels, dtype="uint8")(x)
        return pixels if found.is_bytes else keras.layers.Rescaling(found.factor, found.offset, dtype="float32")(pixels)
    images, single = listed(x)
    prepare = Preprocessor(model)
    each = [prepare(item, item_name(item, i, single)) for i, item in enumerate(images)]
    pixels = prepare.range.of_bytes(np.stack(each) if each else np.zeros((0, *prepare.shape), "uint8"))
    return pixels[0] if single else pixels
