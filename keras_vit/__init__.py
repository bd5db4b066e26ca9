"""Vision Transformers as Keras layers and functional models: train, fine-tune, export."""

import importlib as _importlib
import typing as _typing

from keras_vit.environment import choose_backend as _choose_backend
from keras_vit.environment import prepare_tpu as _prepare_tpu
from keras_vit.environment import use_onednn as _use_onednn

if not _typing.TYPE_CHECKING:  # before Keras is imported
    _choose_backend()
    _prepare_tpu()
    _use_onednn()

from keras_vit import layers
from keras_vit.checkpoints import list_models, load, save
from keras_vit.checkpoints.save import register_sharer as _register_sharer
from keras_vit.distribution import strategy
from keras_vit.io.tokenizer import Tokenizer
from keras_vit.models import (
    DINO,
    BiT,
    BiTSpec,
    Contrastive,
    DetectionModel,
    Distilled,
    DualEncoder,
    ImageGPT,
    MaskedAutoencoder,
    MaskedPatchPredictor,
    NaFlexViT,
    SegmentationModel,
    Swin,
    SwinSpec,
    TextEncoder,
    TextSpec,
    ViT,
    ViTSpec,
)
from keras_vit.serving import export
from keras_vit.training import Model
from keras_vit.version import __version__

__all__ = [
    "DINO",
    "BiT",
    "BiTSpec",
    "Contrastive",
    "DetectionModel",
    "Distilled",
    "DualEncoder",
    "ImageGPT",
    "MaskedAutoencoder",
    "MaskedPatchPredictor",
    "Model",
    "NaFlexViT",
    "SegmentationModel",
    "Swin",
    "SwinSpec",
    "TextEncoder",
    "TextSpec",
    "Tokenizer",
    "ViT",
    "ViTSpec",
    "__version__",
    "export",
    "layers",
    "list_models",
    "load",
    "save",
    "strategy",
]


@_register_sharer
def _share(model, address, **options):
    """What `save` does for hf:// and kaggle://; imported then."""
    return _importlib.import_module("keras_vit.sharing").share(model, address, **options)


# Subpackages that are imported when first used, as attributes: importing keras_vit stays quick.
_SUBPACKAGES = (
    "data",
    "distribution",
    "evaluation",
    "inference",
    "inspection",
    "optim",
    "planning",
    "runs",
    "sharing",
    "tasks",
)

if _typing.TYPE_CHECKING:  # all subpackages, for type checkers
    from keras_vit import checkpoints as checkpoints
    from keras_vit import data as data
    from keras_vit import distribution as distribution
    from keras_vit import evaluation as evaluation
    from keras_vit import inference as inference
    from keras_vit import inspection as inspection
    from keras_vit import models as models
    from keras_vit import optim as optim
    from keras_vit import planning as planning
    from keras_vit import runs as runs
    from keras_vit import serving as serving
    from keras_vit import sharing as sharing
    from keras_vit import tasks as tasks
    from keras_vit import training as training
else:

    def __getattr__(name):
        if name in _SUBPACKAGES:
            return _importlib.import_module(f"keras_vit.{name}")
        raise AttributeError(f"module 'keras_vit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
