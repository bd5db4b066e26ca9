"""Texts behind the service: how well an image fits labels, and the images of an index that fit a text."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.image_text.zero_shot import label_embeddings, resolve_templates
from keras_vit.serving.http.bodies import Refused

MOST_LABELS, MOST_CHARACTERS, MOST_FOUND = 200, 500, 50
# (embedding (d,), count) -> [(name, cosine similarity, pixels (h, w, c))], the most similar first
Search = Callable[[np.ndarray, int], list[tuple[str, float, np.ndarray]]]


def _checked(name, texts, most=1):
    """Texts of a request's parameter, stripped; Refused, 400, for none, too many, empty or long ones."""
    found = tuple(text.strip() for text in texts)
    if not 1 <= len(found) <= most or not all(0 < len(text) <= MOST_CHARACTERS for text in found):
        count = f"1 to {most} {name}s, each" if most > 1 else f"a {name}"
        raise Refused(400, f"Expected {count} of 1 to {MOST_CHARACTERS} characters, such as ?{name}=a%20dog.")
    return found


class Texts:
    """The text encoder of a served model.

    Args:
        model: a DualEncoder with its tokenizer.
        search: finds images of an index by an embedding; None without an index.

    Raises:
        ValueError: without a tokenizer.
    """

    def __init__(self, model: DualEncoder, search: Search | None = None):
        model.tokens(["a text"])  # refuses a model without a tokenizer
        self.model, self.search = model, search
        self._embeddings = functools.lru_cache(64)(lambda *labels: label_embeddings(model, labels[1:], labels[0]))

    def zero_shot(self, embeddings: Sequence[Sequence[float]], labels: Sequence[str], templates: str) -> list[dict]:
        """The labels of each image, the most probable first, with probabilities.

        Args:
            embeddings: (b, d), of the images.
            labels: texts for the templates.
            templates: a name in image_text.zero_shot.TEMPLATES, or a text with "{}".

        Raises:
            Refused: 400 for other labels or templates.
        """
        labels = _checked("label", labels, MOST_LABELS)
        try:
            resolve_templates(templates)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        if len(set(labels)) < len(labels):
            raise Refused(400, f"The labels repeat: {', '.join(labels)}. Expected different ones.")
        logits = self.model.scale * np.asarray(embeddings) @ self._embeddings(templates, *labels).T + self.model.bias
        if self.model.activation == "sigmoid":
            values = 1 / (1 + np.exp(-logits))
        else:
            values = np.exp(logits - logits.max(-1, keepdims=True))
            values /= values.sum(-1, keepdims=True)
        order = np.argsort(-values, axis=-1, kind="stable")
        return [
            {"classes": [labels[i] for i in best], "probabilities": row[best].astype("float64").tolist()}
            for row, best in zip(values, order)
        ]

    def images(self, text: str, count: int) -> list[tuple[str, float, Any]]:
        """The images of the index that fit a text: (name, cosine similarity, pixels), the best first.

        Raises:
            Refused: 400 without an index, for an empty or long text, or a count out of range.
        """
        if self.search is None:
            raise Refused(400, "There is no index to search: start the service with --index=FOLDER.")
        if not 1 <= count <= MOST_FOUND:
            raise Refused(400, f"count={count}: expected 1 to {MOST_FOUND}.")
        [text] = _checked("text", [text])
        return self.search(self._embeddings("label", text)[0], count)
