"""Vision Transformers as Keras layers and functional models: train, fine-tune, export."""

import importlib as _importlib
import typing as _typing

from keras_vit.environment import choose_backend as _choose_backend
from keras_vit.environment import prepare_tpu as _prepare_tpu
from keras_vit.environment import use_onednn as _use_onednn
from keras_vit.environment import warn_of_unread_variables as _warn_of_unread_variables

if not _typing.TYPE_CHECKING:  # before Keras is imported
    _warn_of_unread_variables()
    _choose_backend()
    _prepare_tpu()
    _use_onednn()

from keras_vit import layers, training
from keras_vit.classification.distilled import Distilled
from keras_vit.depth.depth_model import DepthModel
from keras_vit.detection.detection_model import DetectionModel
from keras_vit.fit.model import Model
from keras_vit.image_text.contrastive import Contrastive
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.instances.instance_model import InstanceModel
from keras_vit.models import BiT, BiTSpec, NaFlexViT, Swin, SwinSpec, TextEncoder, TextSpec, ViT, ViTSpec
from keras_vit.models.multi_model import MultiModel
from keras_vit.pretraining.dino_model import DINO
from keras_vit.pretraining.image_gpt import ImageGPT
from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.pretraining.masked_patch_predictor import MaskedPatchPredictor
from keras_vit.segmentation.segmentation_model import SegmentationModel
from keras_vit.version import __version__

__all__ = [
    "DINO",
    "BiT",
    "BiTSpec",
    "Contrastive",
    "DepthModel",
    "DetectionModel",
    "Distilled",
    "DualEncoder",
    "ImageGPT",
    "InstanceModel",
    "MaskedAutoencoder",
    "MaskedPatchPredictor",
    "Model",
    "MultiModel",
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


# Imported when first used: importing keras_vit stays quick.
_NAMES = {
    "Tokenizer": "io.tokenizer",
    "export": "serving",
    "list_models": "checkpoints",
    "load": "checkpoints",
    "save": "checkpoints",
    "strategy": "distribution",
}
_SUBPACKAGES = (
    "answers",
    "checkpoints",
    "data",
    "distribution",
    "evaluation",
    "inference",
    "inspection",
    "optim",
    "planning",
    "runs",
    "serving",
    "sharing",
    "tasks",
)

if _typing.TYPE_CHECKING:  # all of them, for type checkers
    from keras_vit import answers as answers
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
    from keras_vit.checkpoints import list_models as list_models
    from keras_vit.checkpoints.load import load as load
    from keras_vit.checkpoints.save import save as save
    from keras_vit.distribution import strategy as strategy
    from keras_vit.io.tokenizer import Tokenizer as Tokenizer
    from keras_vit.serving.export import export as export
else:

    def __getattr__(name):
        if name in _NAMES:
            return getattr(_importlib.import_module(f"keras_vit.{_NAMES[name]}"), name)
        if name in _SUBPACKAGES:
            return _importlib.import_module(f"keras_vit.{name}")
        raise AttributeError(f"module 'keras_vit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_SUBPACKAGES})
