"""Retrieval by a dual encoder: the texts of an image among all texts, and the images of a text among all images."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.answers import check_answers
from keras_vit.data.captions import image_and_tokens
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.features import Embedder
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.image_text.zero_shot import LOAD_TEXTS, resolve_templates

RANKS = (1, 5, 10)
_ROWS = 512  # queries at once


def ranks(queries: np.ndarray, candidates: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """How many wrong candidates are at least as near to each query as its nearest right one: (n,), 0 for none.

    Args:
        queries, candidates: normalised embeddings (n, d) and (m, d).
        pairs: (p, 2) integers. The right candidates of each query, one or more: (query, candidate).
    """
    found = np.empty(len(queries), "int64")
    for start in range(0, len(queries), _ROWS):
        cosines = queries[start : start + _ROWS] @ candidates.T  # (rows, m)
        own = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < start + len(cosines))]
        right = np.zeros(cosines.shape, bool)
        right[own[:, 0] - start, own[:, 1]] = True
        best = np.where(right, cosines, -np.inf).max(axis=1, keepdims=True)
        found[start : start + len(cosines)] = ((cosines >= best) & ~right).sum(axis=1)
    return found


def _recalls(name, positions, candidates):
    """{measure: share of queries}, without ranks that reach all candidates, which are always right."""
    return {f"{name}_recall{k}": float((positions < k).mean()) for k in RANKS if k < candidates}


def _numbered(rows):
    """(positions of the different rows, the number of each row among them) of integers (n, k)."""
    _, first, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, numbers.reshape(-1)


def _with_fingerprint(select):
    """`select` of `image_and_tokens` as (image, integers): token ids, and a number that equal images share."""

    def image_and_integers(example):
        (image, ids), _ = select(example)
        number = tf.strings.to_hash_bucket_strong(tf.io.serialize_tensor(image), 2**62, [1, 2])
        return image, tf.concat([tf.cast(ids, tf.int64), [number]], 0)

    return image_and_integers


@register("retrieval")
@dataclasses.dataclass(frozen=True)
class Retrieval(OnSource):
    """Recall at 1, 5 and 10 of texts for images and of images for texts.

    A query counts as found at k if one of its right answers is among the k nearest candidates; ties count against it.
    Equal texts are one text, and equal images one image, so that all captions of an image are right, and all images of
    a caption. Ranks that reach all candidates are left out.

    Attributes:
        source, split, preprocess: as in OnSource; examples have a text or a class.
        templates: for classes: a name in image_text.zero_shot.TEMPLATES, or texts with "{}"; the first is the caption.
    """

    score: ClassVar[str] = "image_to_text_recall1"

    templates: str | tuple[str, ...] = "photo"

    def check_options(self) -> None:
        resolve_templates(self.templates)

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        self.check_options()
        model: Any = setting.model
        check_answers(model, "embeddings", LOAD_TEXTS)
        image_setting = dataclasses.replace(setting, model=model.image_encoder)
        _, source, preprocess = open_data(self, image_setting)
        select = image_and_tokens(model.tokens, source.class_names, resolve_templates(self.templates)[:1])
        with setting.strategy.scope():
            tower = model.tower("image")
            embedder = Embedder(
                tower,
                preprocess,
                setting.batch_size,
                verbose=setting.verbose and setting.strategy.chief,
                output=tower.output,
                select=_with_fingerprint(select),
                errors=setting.errors,
            )
        embedder.check(source)

        def evaluate():
            parts = list(embedder.batches(source))
            if not parts:
                raise ValueError(f"None of the examples of {source.name} can be used: the warnings say why.")
            features, integers = (np.concatenate(part) for part in zip(*parts))
            return _measured(model, features, integers[:, :-1], integers[:, -1:])

        return evaluate


def _measured(model, features, tokens, fingerprints):
    """The Evaluation of images' embeddings (n, d), token ids (n, length) and fingerprints (n, 1)."""
    images, image_of = _numbered(fingerprints)
    texts, text_of = _numbered(tokens)
    if len(images) < 2 or len(texts) < 2:
        raise ValueError(
            f"Expected two different images and two different texts or more, got {len(images)} and {len(texts)}."
        )
    embedded = model.encode_text(tokens[texts].astype("int32")), features[images]
    pairs = np.unique(np.stack([image_of, text_of], axis=1), axis=0)
    to_text = ranks(embedded[1], embedded[0], pairs)
    to_image = ranks(embedded[0], embedded[1], pairs[:, ::-1])
    measures = {
        **_recalls("image_to_text", to_text, len(texts)),
        **_recalls("text_to_image", to_image, len(images)),
        "images": len(images),
        "texts": len(texts),
        "examples": len(features),
    }
    return Evaluation(measures)
