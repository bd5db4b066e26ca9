"""Occlusion of the patches that a ViT attends to most or least.

As in arXiv 2105.10497, Sec. 3.1, but by the model's own attention rollout instead of DINO's attention.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_vit.data import ExampleErrors, evaluation_batches
from keras_vit.evaluation.features import top_hits
from keras_vit.evaluation.registry import Setting
from keras_vit.inspection.attention import attention_maps
from keras_vit.io.progress import stage

_IMAGES = 16  # per batch, to limit the memory for the attention of all blocks and heads


def without_patches(images: np.ndarray, maps: np.ndarray, share: float, most: bool, fill: int = 0) -> np.ndarray:
    """Fills round(share * patches) patches of each image: those with the largest or smallest map values.

    Args:
        images: (b, height, width, c).
        maps: (b, h, w). A value per patch; the first patch wins ties.
        share: share of patches to fill.
        most: whether to fill the largest values instead of the smallest.
        fill: level of the filled patches.

    Raises:
        ValueError: the patches do not divide the images evenly.
    """
    b, h, w = maps.shape
    if images.shape[1] % h or images.shape[2] % w:
        raise ValueError(
            f"A map of {h}x{w} patches cannot divide images of {images.shape[1]}x{images.shape[2]} pixels evenly."
        )
    values = maps.reshape(b, h * w)
    order = np.argsort(-values if most else values, axis=-1, kind="stable")
    dropped = np.zeros((b, h * w), bool)
    np.put_along_axis(dropped, order[:, : round(share * h * w)], True, axis=-1)
    mask = dropped.reshape(b, h, w).repeat(images.shape[1] // h, axis=1).repeat(images.shape[2] // w, axis=2)
    return np.where(mask[..., None], np.asarray(fill, images.dtype), images)


def _batches(setting, source, preprocess) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Batches of (images, labels, which rows count) of a source."""
    errors = setting.errors or ExampleErrors()
    with errors.raised():
        for images, labels, weights in evaluation_batches(source, preprocess, setting.batch_size, errors=errors):
            yield np.asarray(images), np.asarray(labels), np.asarray(weights) > 0


def accuracies(
    setting: Setting, source, preprocess: str, shares: Sequence[float], most: bool, fill: int
) -> tuple[float, dict[str, dict[str, float]], int]:
    """(top-1 on whole images, {share: {"salient" or "least_salient": top-1}}, number of examples), by batch.

    Raises:
        ValueError: the model has no attention, or no image is readable.
    """
    hits, n = dict.fromkeys((0.0, *shares), 0), 0
    model, verbose = setting.model, setting.verbose and setting.strategy.chief
    with stage("Measuring occluded images", source.size, "images", verbose) as work:
        for images, labels, counted in _batches(setting, source, preprocess):
            maps = np.concatenate(
                [attention_maps(model, images[i : i + _IMAGES]) for i in range(0, len(images), _IMAGES)]
            )
            for share in hits:
                logits = model.predict_on_batch(without_patches(images, maps, share, most, fill))
                hits[share] += top_hits(np.asarray(logits)[counted], labels[counted], 1)
            n += int(counted.sum())
            work.advance(int(counted.sum()))
    if not n:
        raise ValueError(f"None of the {source.size} examples of {source.name} can be used: the warnings say why.")
    column = "salient" if most else "least_salient"
    return hits[0.0] / n, {str(share): {column: hits[share] / n} for share in shares}, n
