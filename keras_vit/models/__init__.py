"""Functional models made of keras_vit.layers."""

from keras_vit.models.bit import BIT, BIT_VARIANTS, BiT, BiTSpec, make_bit_spec
from keras_vit.models.classifier import Classifier
from keras_vit.models.detection import DetectionModel
from keras_vit.models.dual_encoder import DualEncoder
from keras_vit.models.encoder import embed, encode
from keras_vit.models.families import build, register
from keras_vit.models.finetuning.freezing import freeze, freeze_all_but_head
from keras_vit.models.finetuning.lora import enable_lora, merge_lora
from keras_vit.models.finetuning.whitening import whiten
from keras_vit.models.naflex import NaFlexViT
from keras_vit.models.pretraining.contrastive import Contrastive
from keras_vit.models.pretraining.dino import DINO
from keras_vit.models.pretraining.distilled import Distilled
from keras_vit.models.pretraining.image_gpt import ImageGPT
from keras_vit.models.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.models.pretraining.masked_model import MaskedModel, Reconstruction, hidden_count
from keras_vit.models.pretraining.masked_patches import MaskedPatchPredictor
from keras_vit.models.segmentation import SegmentationModel
from keras_vit.models.spec import ViTSpec, make_spec
from keras_vit.models.swin import SWIN, Swin
from keras_vit.models.swin_spec import SWIN_VARIANTS, SwinSpec, make_swin_spec
from keras_vit.models.taps import feature_map, features, tokens
from keras_vit.models.text import TEXT_VARIANTS, TextEncoder, TextSpec, make_text_spec
from keras_vit.models.variants import ROWS, STEMS
from keras_vit.models.vit import VIT, ViT

for family in (VIT, BIT, SWIN):
    register(family)
del family

__all__ = [
    "BIT_VARIANTS",
    "DINO",
    "ROWS",
    "STEMS",
    "SWIN_VARIANTS",
    "TEXT_VARIANTS",
    "BiT",
    "BiTSpec",
    "Classifier",
    "Contrastive",
    "DetectionModel",
    "Distilled",
    "DualEncoder",
    "ImageGPT",
    "MaskedAutoencoder",
    "MaskedModel",
    "MaskedPatchPredictor",
    "NaFlexViT",
    "Reconstruction",
    "SegmentationModel",
    "Swin",
    "SwinSpec",
    "TextEncoder",
    "TextSpec",
    "ViT",
    "ViTSpec",
    "build",
    "embed",
    "enable_lora",
    "encode",
    "feature_map",
    "features",
    "freeze",
    "freeze_all_but_head",
    "hidden_count",
    "make_bit_spec",
    "make_spec",
    "make_swin_spec",
    "make_text_spec",
    "merge_lora",
    "tokens",
    "whiten",
]
