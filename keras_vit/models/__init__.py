"""Functional models assembled from keras_vit.layers."""

from keras_vit.models.freezing import freeze, freeze_all_but_head
from keras_vit.models.spec import ROWS, ViTSpec, make_spec
from keras_vit.models.vit import ViT

__all__ = ["ROWS", "ViT", "ViTSpec", "freeze", "freeze_all_but_head", "make_spec"]
