"""An image encoder and a text encoder with a common space: CLIP, SigLIP, and LiT (arXiv 2111.07991)."""

import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np
from absl import logging

from keras_vit.fit.model import Model
from keras_vit.io.suggest import check_known
from keras_vit.layers.registration import serializable
from keras_vit.layers.similarity import Similarity
from keras_vit.models.checks import model_name, output_policy
from keras_vit.models.classifier import Classifier
from keras_vit.models.composite import CompositeModel
from keras_vit.models.text import TextEncoder

# {activation: (exp(t), b) at the start of training}.
STARTS = {"sigmoid": (10.0, -10.0), "softmax": (1 / 0.07, None)}

if TYPE_CHECKING:
    from keras_vit.classification.classify import Prediction
    from keras_vit.io.tokenizer import Tokenizer


def _check_towers(image, text, activation):
    if not isinstance(image, Classifier) or image.classes is not None:
        raise ValueError(
            "DualEncoder expected an image encoder without a head, such as keras_vit.ViT(..., classes=None) or"
            f' keras_vit.load(path, head="drop"), got {image!r}.'
        )
    if not isinstance(text, TextEncoder):
        raise ValueError(f"DualEncoder expected a keras_vit.TextEncoder, got {text!r}.")
    check_known(activation, "activation", STARTS)


def _embedding(features, projection, policy, name):
    """Features (b, c) to normalised embeddings (b, d) in full precision, projected to that width unless None."""
    if projection is not None:
        normal = keras.initializers.RandomNormal(stddev=features.shape[-1] ** -0.5)
        linear = keras.layers.Dense(
            projection, use_bias=False, kernel_initializer=normal, dtype=policy, name=f"{name}_projection"
        )
        features = linear(features)
    return keras.layers.UnitNormalization(dtype=output_policy(policy, f"{name}_embedding"), name=f"{name}_embedding")(
        features
    )


@serializable
class DualEncoder(CompositeModel):
    """Images and texts in one space: `model.zero_shot("cat.jpg", ["a cat", "a dog"])`.

    Args:
        image: a ViT, BiT or Swin without a head.
        text: a TextEncoder.
        activation: from logits to probabilities: "sigmoid" for each pair (SigLIP), or "softmax" over the texts of an
            image (CLIP). It sets what scale and bias start from, and whether there is a bias.
        projection: width of a linear layer without bias after the image encoder (CLIP); None for none.
        tokenizer: of the texts; without one texts are given as token ids.
        name: of the model.

    Inputs: pixels 0..255 (b, height, width, c) and token ids (b, length). Output: the logits of each image with
    each text (b, b), float32.

    Attributes:
        image_encoder, text_encoder: the two models, sharing weights with this one.
        tokenizer: a Tokenizer or None; it can be set. `.keras` files keep it.

    Raises:
        ValueError: for other models, or embeddings of different widths.
    """

    PARTS = {"image": "image_encoder", "text": "text_encoder"}
    task = "image_text"  # which evaluates it

    def __init__(
        self,
        image: Classifier,
        text: TextEncoder,
        activation: str = "sigmoid",
        projection: int | None = None,
        tokenizer: "Tokenizer | None" = None,
        name: str | None = "dual_encoder",
    ):
        _check_towers(image, text, activation)
        policy = image.dtype_policy
        inputs = [
            keras.Input(model.input.shape[1:], dtype=model.input.dtype, name=kind)
            for kind, model in (("image", image), ("text", text))
        ]
        embeddings = [
            _embedding(image(inputs[0]), projection, policy, "image"),
            _embedding(text(inputs[1]), None, text.dtype_policy, "text"),
        ]
        scale, bias = STARTS[activation]
        logits = Similarity(scale, bias, dtype=output_policy(policy, "similarity"), name="similarity")(*embeddings)
        super().__init__(inputs, logits, name=model_name(name, "dual_encoder"))
        self.activation, self.projection, self.tokenizer = activation, projection, tokenizer
        self.spec, self.image_size, self.channels = image.spec, image.image_size, image.channels
        self.preprocessing = image.preprocessing
        # In a closure: as attributes Keras would count and save their layers twice.
        self._encoders = lambda: (image, text)

    def _usual_answers(self) -> tuple[str, ...]:
        return ("embeddings",)

    @property
    def image_encoder(self) -> Classifier:
        return self._encoders()[0]

    @property
    def text_encoder(self) -> TextEncoder:
        return self._encoders()[1]

    @property
    def scale(self) -> float:
        """exp(t), by which cosines are multiplied."""
        return math.exp(float(self.get_layer("similarity").log_scale))

    @property
    def bias(self) -> float:
        """b, which is added to them; 0 without one."""
        layer = self.get_layer("similarity")
        return 0.0 if layer.bias is None else float(layer.offset)

    def get_encoder(self) -> Classifier:
        return self.image_encoder

    def tower(self, kind: str) -> Model:
        """The model from images or texts ("image", "text") to normalised embeddings (b, d), sharing weights."""
        if kind not in ("image", "text"):
            raise ValueError(f"Unknown tower {kind!r}. Valid: image, text.")
        made = self.__dict__.setdefault("_towers", {})
        if kind not in made:
            place = ("image", "text").index(kind)
            tower = Model(self.inputs[place], self.get_layer(f"{kind}_embedding").output, name=f"{kind}_tower")
            tower.check_pixels = kind == "image"
            made[kind] = tower
        return made[kind]

    def tokens(self, texts: Any) -> np.ndarray:
        """Texts as token ids (b, length); ids stay as they are.

        Raises:
            ValueError: for texts without a tokenizer, ids of another length, or ids outside the vocabulary.
        """
        found, vocabulary = self._token_ids(texts), self.text_encoder.text_spec.vocabulary
        if found.size and not 0 <= found.min() <= found.max() < vocabulary:
            raise ValueError(
                f"Expected token ids from 0 to {vocabulary - 1}, the text encoder's vocabulary, got {found.min()} to"
                f" {found.max()}: use the tokenizer that it was trained with."
            )
        return found

    def _token_ids(self, texts):
        numbers = np.asarray(texts) if not isinstance(texts, str) else None
        length = self.text_encoder.text_spec.length
        if numbers is not None and numbers.dtype.kind in "iu":
            if numbers.shape[1:] != (length,):
                raise ValueError(f"Expected numbers of {length} tokens per text, (b, {length}), got {numbers.shape}.")
            return numbers.astype("int32")
        if self.tokenizer is None:
            raise ValueError(
                f'No tokenizer: set model.tokenizer = keras_vit.Tokenizer.load("tokenizer.json", {length}),'
                f" or pass token ids (b, {length})."
            )
        return self.tokenizer(texts)

    def encode_text(self, texts: str | Sequence[str] | np.ndarray, batch_size: int = 64) -> np.ndarray:
        """The normalised embeddings of texts, or of token ids (b, length): (b, d) float32.

        Raises:
            ValueError: as in `tokens`.
        """
        return np.asarray(self.tower("text").predict(self.tokens(texts), batch_size=batch_size, verbose=0), "float32")

    def encode_image(self, images: Any, batch_size: int = 32) -> np.ndarray:
        """The normalised embeddings of images, one or several as for `classify`: (b, d) float32.

        Raises:
            FileNotFoundError, ImportError, ValueError: as in `preprocess`.
        """
        from keras_vit.prediction.images import Preprocessor, item_name, listed

        items, single = listed(images)
        prepare, tower, found = Preprocessor(self.image_encoder), self.tower("image"), []
        for start in range(0, len(items), batch_size):
            numbered = enumerate(items[start : start + batch_size], start)
            pixels = np.stack([prepare(item, item_name(item, i, single)) for i, item in numbered])
            found.append(np.asarray(tower.predict_on_batch(prepare.range.of_bytes(pixels)), "float32"))
        return np.concatenate(found)

    def similarity(self, images: Any, texts: Any) -> np.ndarray:
        """The logits of each image with each text, of any numbers of both: (b, c) float32.

        `sigmoid(logits)`, or for CLIP `softmax(logits)` over the texts, are probabilities.
        """
        return self.scale * self.encode_image(images) @ self.encode_text(texts).T + self.bias

    def classifier(
        self, labels: Sequence[str], templates: str | Sequence[str] = "photo", batch_size: int = 64
    ) -> Model:
        """A zero-shot classifier: the image encoder with the labels' embeddings as its head.

        It is a model like any other: it classifies, is evaluated, saved, exported and fine-tuned.

        Args:
            labels: names of the classes.
            templates: a name in zero_shot.TEMPLATES, or texts with "{}" for the label. A class is the mean of its
                texts' embeddings, normalised again (prompt ensembling: CLIP, section 3.1.4).
            batch_size: texts at once.

        Raises:
            ValueError: for templates without "{}", or as in `tokens`.
        """
        from keras_vit.image_text import zero_shot

        return zero_shot.classifier(self, labels, templates, batch_size)

    def zero_shot(
        self, images: Any, labels: Sequence[str], templates: str | Sequence[str] = "photo", top_k: int = 5
    ) -> "list[Prediction] | list[list[Prediction]]":
        """The most probable labels of an image, or of each of several, as `classify` returns them.

        For many calls with the same labels, make the `classifier` once.

        Args:
            images: an image or several, as for `classify`.
            labels, templates: as in `classifier`.
            top_k: maximum number of labels.
        """
        return self.classifier(labels, templates).classify(images, top_k, verbose=0)

    def clone(self, name: str | None = None) -> Self:
        copy = super().clone(name)
        copy.tokenizer = self.tokenizer
        return copy

    def save_assets(self, folder: str) -> None:
        """Writes the tokenizer into a `.keras` file; Keras calls it."""
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    def load_assets(self, folder: str) -> None:
        """Reads the tokenizer of a `.keras` file; Keras calls it."""
        from keras_vit.io.tokenizer import FILE

        path = pathlib.Path(folder, FILE)
        if path.is_file():
            self.read_tokenizer(path.read_text("utf-8"))

    def read_tokenizer(self, data: str) -> None:
        """Sets the tokenizer to the one in the content of a tokenizer.json; without the library a warning.

        Raises:
            ValueError: for other content.
        """
        from keras_vit.io.tokenizer import Tokenizer

        try:
            self.tokenizer = Tokenizer(data, self.text_encoder.text_spec.length)
        except ImportError as error:
            logging.warning('"%s" loads without its tokenizer. %s', self.name, error)

    def options(self) -> dict[str, Any]:
        return {"activation": self.activation, "projection": self.projection, "name": self.name}
