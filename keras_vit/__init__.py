"""Vision Transformers as Keras layers and functional models: train, fine-tune, export."""

import importlib as _importlib
import importlib.util as _util
import os as _os

if not any(_util.find_spec(engine) for engine in ("tensorflow", "jax")):
    raise ImportError(
        "keras_vit needs TensorFlow or JAX, which an extra installs: pip install "
        '"keras-vit[cpu]", "keras-vit[gpu]" or "keras-vit[tpu]" for TensorFlow, "keras-vit[jax]" for JAX.'
    )
if _util.find_spec("tensorflow"):
    from keras_vit.environment import prepare_tpu as _prepare_tpu

    _prepare_tpu()
else:
    _os.environ.setdefault("KERAS_BACKEND", "jax")

from keras_vit import layers
from keras_vit.checkpoints import list_models, load, save
from keras_vit.distribution import strategy
from keras_vit.models import BiT, BiTSpec, ViT, ViTSpec
from keras_vit.serving import export
from keras_vit.training import Model
from keras_vit.version import __version__

__all__ = [
    "BiT",
    "BiTSpec",
    "Model",
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

# Subpackages that are imported when first used, as attributes: importing keras_vit stays quick.
_SUBPACKAGES = ("data", "distribution", "evaluation", "inspection", "optim", "planning", "runs", "tasks")


def __getattr__(name):
    if name in _SUBPACKAGES:
        return _importlib.import_module(f"keras_vit.{name}")
    raise AttributeError(f"module 'keras_vit' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *_SUBPACKAGES})
