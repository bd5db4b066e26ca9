"""Images with texts as token ids: the texts of a source, or the names of its classes in templates."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.mapping import EXAMPLES
from keras_vit.data.sources.base import Source

Tokens = Callable[[Sequence[str]], np.ndarray]  # texts -> token ids (b, n), such as a keras_vit.Tokenizer
_SHOWN = 3  # texts in a message


def class_tokens(tokenizer: Tokens, names: Sequence[str], templates: Sequence[str]) -> np.ndarray:
    """The token ids of each class's name in each template: (classes, templates, n) int32.

    Raises:
        ValueError: if two classes have the same ids, so that nothing could tell them apart.
    """
    texts = [template.replace("{}", name) for name in names for template in templates]
    ids = np.asarray(tokenizer(texts), "int32").reshape(len(names), len(templates), -1)
    first: dict[bytes, str] = {}
    for name, row in zip(names, ids):
        other = first.setdefault(row.tobytes(), name)
        if other is not name:
            raise ValueError(
                f'The classes "{other}" and "{name}" have the same token ids: use a tokenizer that knows their words,'
                " or give longer texts their full length."
            )
    return ids


def _encoder(tokenizer):
    """A function from a text, a scalar string tensor, to its token ids (n,) int32."""
    empty = np.asarray(tokenizer([""])[0], "int32")

    def encoded(text):
        ids = np.asarray(tokenizer([np.asarray(text, object).item().decode()])[0], "int32")
        if np.array_equal(ids, empty):
            raise ValueError("The text is empty: expected words about the image.")
        return ids

    def tokens(text):
        ids = tf.numpy_function(encoded, [text], tf.int32, stateful=False)
        return tf.ensure_shape(ids, empty.shape)

    return tokens


def image_and_tokens(
    tokenizer: Tokens, class_names: Sequence[str] = (), templates: Sequence[str] = ("{}",)
) -> Callable[[dict[str, Any]], tuple]:
    """Returns `select` of training_batches: an example to ((image (h, w, c), token ids (n,)), 0).

    The text is the example's "text", or else the name of its class in a template. Of several, the example's seed draws
    one. An empty text makes the example fail.

    Args:
        tokenizer: texts to token ids (b, n), all of the same length.
        class_names: of the source; without texts, they are its captions.
        templates: texts with "{}" for a class's name.

    Raises:
        ValueError: as in `class_tokens`; by the result for examples with neither a text nor a class.
    """
    tokens = _encoder(tokenizer)
    classes = class_tokens(tokenizer, class_names, templates) if class_names else None

    def draw(example, count):
        return tf.random.stateless_uniform((), example["seed"], 0, count, tf.int64)

    def select(example):
        if "text" in example:
            text = example["text"]
            ids = tokens(text[draw(example, tf.size(text, tf.int64))] if text.shape.rank else text)
        elif "label" in example and classes is not None:
            ids = tf.constant(classes)[example["label"], draw(example, len(templates))]
        else:
            found = ", ".join(name for name in example if name != "seed")
            raise ValueError(
                f'The examples have no "text" and no class, only {found}: give a source with texts, such as a table'
                " with a column text, csv:PATH?text=COLUMN, or a dataset with ?text=FEATURE."
            )
        return (example["image"], ids), tf.constant(0)

    return select


def _texts(source):
    """The texts of a source, in order; of several of an image the first. Reads no images."""

    def text(*key):
        found = source.read(key if len(key) > 1 else key[0])["text"]
        return found if not found.shape.rank else tf.concat([found, [""]], 0)[0]

    texts = source.keys().map(tf.autograph.experimental.do_not_convert(text), num_parallel_calls=EXAMPLES)
    return (text.decode(errors="replace") for text in texts.ignore_errors().as_numpy_iterator())


def check_texts(source: Source, tokenizer: Tokens) -> None:
    """Raises ValueError if all texts of a source have the same token ids, so that nothing can be learned.

    Stops at the first text that differs. Captions from class names are checked by `class_tokens`.
    """
    texts = iter(_texts(source))
    head = list(itertools.islice(texts, _SHOWN))
    if not head:
        return  # no example can be read: training reports why
    first = np.asarray(tokenizer(head[:1])[0])
    if all(np.array_equal(tokenizer([text])[0], first) for text in itertools.chain(head, texts)):
        same = len(set(head)) == 1
        raise ValueError(
            f'All texts of {source.name} are "{head[0]}": there is nothing to learn.'
            if same
            else f"All texts of {source.name}, such as {head}, have the same token ids: the tokenizer does not know"
            " their words, or cuts them. Use one that was trained on such texts, or a larger length."
        )
