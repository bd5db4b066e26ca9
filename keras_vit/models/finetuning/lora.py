"""Low-rank adaptation, LoRA (arXiv 2106.09685): fine-tuning by two small matrices next to a frozen kernel.

A dense layer x W becomes x W + (alpha / rank) x A B, with A (c, rank) random and B (rank, d) zeros, so that training
starts from the unchanged model.
"""

import fnmatch
import operator
from collections.abc import Sequence

import keras

from keras_vit.layers.dense import (
    Dense,
    freeze_quantized,
    inner_layers,
    kernels_deleted_quickly,
    set_trainable,
    train_lora_alone,
)
from keras_vit.layers.fake_quantization import check_plain
from keras_vit.models import taps

TARGETS = ("query", "value")  # as in the paper's experiments


def _adaptable(model):
    """The model that gets LoRA: the encoder inside a pre-training model; ValueError for DINO."""
    encoder = taps.own_encoder(model)
    if encoder is not None:
        return encoder
    raise ValueError(
        f'"{model.name}" is a {type(model).__name__}, whose teacher is a moving average of its student, weight by'
        " weight: give LoRA to the encoder before, keras_vit.models.enable_lora(encoder, rank), and make the model of"
        " that."
    )


def _trunk(model):
    return [layer for layer in taps.trunk(model) if not isinstance(layer, keras.layers.InputLayer)]


def _dense_layers(model):
    """{path: layer} of the dense layers before the head, "block_00/attention/query"."""
    inner = {path: part for layer in _trunk(model) for path, part in inner_layers(layer, f"{layer.name}/").items()}
    return {path: part for path, part in inner.items() if isinstance(part, Dense)}


def _chosen(dense, targets):
    """The layers with paths that end with one of the patterns; ValueError for a pattern without a match."""
    found = {}
    for pattern in [targets] if isinstance(targets, str) else targets:
        matched = {
            p: part for p, part in dense.items() if fnmatch.fnmatch(p, pattern) or fnmatch.fnmatch(p, f"*/{pattern}")
        }
        if not matched:
            names = sorted({"/".join(path.split("/")[1:]) for path in dense})
            raise ValueError(f'No dense layer matches the target "{pattern}". They are: {", ".join(names)}.')
        found |= matched
    if not found:
        raise ValueError("enable_lora: targets is empty. The usual ones are query and value.")
    return found


def freeze_all_but_lora(model: keras.Model) -> None:
    """Freezes everything before the head (in pre-training, in the encoder) but LoRA, and a quantised head."""
    model = _adaptable(model)
    for part in model._flatten_layers():
        if isinstance(part, keras.Model) and not part.trainable:
            part.trainable = True  # otherwise nothing inside would train
    for layer in _trunk(model):
        train_lora_alone(layer)
    freeze_quantized(model)


def enable_lora(
    model: keras.Model, rank: int, targets: str | Sequence[str] = TARGETS, alpha: float | None = None
) -> list[str]:
    """Adds LoRA to dense layers; only LoRA and the head still train. Call it before compile.

    Outputs stay the same until training. The model may be int8 or int4; then only LoRA trains. Saving, loading and
    cloning keep LoRA; `merge_lora` makes an ordinary model, for every format.

    Args:
        model: a ViT, a model built on one, or one for pre-training, whose encoder (of a distillation the student) gets
            LoRA; a decoder or target head trains like a head. Changed in place.
        rank: columns of A and rows of B.
        targets: patterns with * and ?, for a layer's name or the end of its path: "query", "mlp/*",
            "block_1?/attention/*", "*".
        alpha: scales the product by alpha / rank; None for alpha = rank.

    Returns:
        The paths of the layers with LoRA, sorted.

    Raises:
        ValueError: for a pattern without a match, layers in float8 or already with LoRA, an invalid rank, a model
            without exactly one ViT, or DINO, whose encoder gets LoRA before.
    """
    if isinstance(rank, bool) or not hasattr(rank, "__index__") or operator.index(rank) < 1:
        raise ValueError(f"enable_lora: rank must be a positive integer, got {rank!r}.")
    encoder = _adaptable(model)
    dense = _dense_layers(encoder)
    if not dense:
        raise ValueError(
            f'enable_lora: "{model.name}" has no dense layers before its head that LoRA could adapt, as a BiT has none.'
        )
    if any(part.lora_enabled for part in dense.values()):
        raise ValueError(
            f'enable_lora: "{model.name}" has LoRA already. Merge it first: keras_vit.models.merge_lora(model).'
        )
    check_plain(encoder, "enable_lora")
    chosen = _chosen(dense, targets)
    if any(part.quantization_mode == "float8" for part in chosen.values()):
        raise ValueError("enable_lora: LoRA does not go with float8. Quantise to int8 or int4.")
    for part in chosen.values():
        part.enable_lora(operator.index(rank), lora_alpha=alpha)
    freeze_all_but_lora(encoder)
    _forget_functions(encoder, model)
    return sorted(chosen)


def merge_lora(model: keras.Model) -> None:
    """Adds (alpha / rank) A B to each kernel and drops A and B: the same function, an ordinary trainable model.

    Quantised kernels are requantised, which rounds LoRA's part. Call it before compile. ValueError without LoRA.
    """
    encoder = _adaptable(model)
    adapted = [part for part in _dense_layers(encoder).values() if part.lora_enabled]
    if not adapted:
        raise ValueError(f'merge_lora: "{model.name}" has no LoRA.')
    with kernels_deleted_quickly():
        for part in adapted:
            part.merge_lora()
    for layer in _trunk(encoder):
        set_trainable(layer, True)
    _forget_functions(encoder, model)


def _forget_functions(*models):
    """Drops compiled functions, which keep the old weights; Keras makes new ones."""
    for model in models:
        model.train_function = model.test_function = model.predict_function = None
