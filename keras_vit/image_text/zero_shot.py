"""Zero-shot classifiers: the embeddings of the classes' names as a head (arXiv 2103.00020, section 3.1)."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.fit.model import Model
from keras_vit.io.suggest import check_known
from keras_vit.models.checks import output_policy, plain_names

# {name: texts}. "clip7" are the seven that CLIP's authors chose for ImageNet, in their notebook on prompts.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "label": ("{}",),
    "photo": ("This is a photo of {}.",),
    "clip": ("a photo of a {}.",),
    "clip7": (
        "itap of a {}.",
        "a bad photo of the {}.",
        "a origami {}.",
        "a photo of the large {}.",
        "a {} in a video game.",
        "art of the {}.",
        "a photo of the small {}.",
    ),
}

LOAD_TEXTS = "Load the texts, too: keras_vit.load(path, text=True), at the shell --load.text=True."


def resolve_templates(templates: str | Sequence[str]) -> tuple[str, ...]:
    """Templates by name, or as given.

    Raises:
        ValueError: for an unknown name, or a template without "{}".
    """
    if isinstance(templates, str):
        if "{}" in templates:
            return (templates,)
        check_known(templates, "templates", TEMPLATES, ', or texts with {} for the label, as in "a photo of a {}."')
        return TEMPLATES[templates]
    found = tuple(templates)
    wrong = [template for template in found if "{}" not in template]
    if wrong or not found:
        raise ValueError(f"Templates should be texts with {{}} for the label, got {wrong[0] if wrong else found!r}.")
    return found


def label_embeddings(
    model: Any, labels: Sequence[str], templates: str | Sequence[str], batch_size: int = 64
) -> np.ndarray:
    """The normalised mean of the embeddings of each label's texts: (classes, d) float32."""
    forms = resolve_templates(templates)
    texts = [form.replace("{}", label) for label in labels for form in forms]
    found = model.encode_text(texts, batch_size)
    means = found.reshape(len(labels), len(forms), -1).mean(1)  # (classes * forms, d) -> (classes, d)
    return means / np.linalg.norm(means, axis=-1, keepdims=True)


def classifier(model: Any, labels: Sequence[str], templates: str | Sequence[str], batch_size: int = 64) -> Model:
    """The classifier of a DualEncoder; see DualEncoder.classifier."""
    labels, encoder = plain_names(labels), model.image_encoder
    kernel = model.scale * label_embeddings(model, labels, templates, batch_size).T  # (d, classes)
    policy = output_policy(encoder.dtype_policy, "zero_shot")
    head = [keras.layers.UnitNormalization(dtype=policy), keras.layers.Dense(len(labels), dtype=policy, name="labels")]
    if model.projection is not None:
        head.insert(0, keras.layers.Dense(model.projection, use_bias=False, dtype=policy, name="projection"))
    result = encoder.with_head(keras.Sequential(head, name="zero_shot"), class_names=labels, name="zero_shot")
    if model.projection is not None:
        head[0].kernel.assign(model.get_layer("image_projection").kernel)
    head[-1].kernel.assign(kernel)
    head[-1].bias.assign(np.full(len(labels), model.bias, "float32"))
    result.activation = model.activation
    return result
