"""Tiny models whose layers depend on the batch, the mask or the step, compiled under a strategy, for the tests of
replicas.
"""

import keras
import numpy as np
from small_models import data

import keras_vit
from keras_vit.training import MaskClassificationLoss, SoftmaxCrossEntropy


def with_stem(chosen, optimizer, **compiled):
    """A tiny ViT with a stem of convolutions, which normalises by the statistics of the global batch, and with
    positions in its attention.
    """
    keras.utils.set_random_seed(0)
    with chosen.scope():
        stem = {"conv_stem": (8, 8, 8), "conv_strides": (2, 2, 1), "conv_form": "residual", "pool": "gap"}
        size = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "positions": "relative2d"}
        model = keras_vit.ViT("Ti/1", image_size=(8, 12), classes=5, **size, **stem)
        model.compile(optimizer(), SoftmaxCrossEntropy(), **{"jit_compile": False, **compiled})
    return model


def with_queries(chosen, optimizer, **compiled):
    """A tiny EoMT at the start of its annealing, where every query attends to its mask alone."""
    keras.utils.set_random_seed(0)
    options = {"queries": 6, "blocks": 1, "annealing_steps": 1000}
    with chosen.scope():
        model = keras_vit.SegmentationModel(
            "Ti/4", "eomt", 3, (8, 12), head_options=options, auxiliary=1.0, depth=1, width=16, heads=2, mlp_dim=16
        )
        model.compile(optimizer(), MaskClassificationLoss(3), **{"jit_compile": False, **compiled})
    return model


def with_windows(chosen, optimizer, **compiled):
    """A tiny Swin with shifted windows on padded maps."""
    keras.utils.set_random_seed(0)
    with chosen.scope():
        size = {"depths": (2, 1), "width": 8, "heads": 2, "window": 2, "patch_size": (2, 4)}
        model = keras_vit.Swin("Swin-T", image_size=(8, 12), classes=5, **size)
        model.compile(optimizer(), SoftmaxCrossEntropy(), **{"jit_compile": False, **compiled})
    return model


def masks(n):
    """(images (n, 8, 12, 3), masks (n, 8, 12)) of up to 3 classes and void."""
    images, _ = data(n)
    return images, np.where(images[..., 0] < 40, 255, images[..., 1] % np.arange(1, n + 1)[:, None, None] % 3)
