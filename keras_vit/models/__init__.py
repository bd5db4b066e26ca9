"""Functional models made of keras_vit.layers."""

from typing import TYPE_CHECKING

from keras_vit.io.lazy import attach
from keras_vit.models.bit import BIT, BIT_VARIANTS, BiT, BiTSpec, make_bit_spec
from keras_vit.models.classifier import Classifier
from keras_vit.models.encoder import embed, encode
from keras_vit.models.families import build, register
from keras_vit.models.naflex import NaFlexViT
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
    "DepthModel",
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
    "quantize_aware",
    "tokens",
    "whiten",
    "without_fake_quantization",
]

if TYPE_CHECKING:
    from keras_vit.classification.distilled import Distilled as Distilled
    from keras_vit.depth.depth_model import DepthModel as DepthModel
    from keras_vit.detection.detection_model import DetectionModel as DetectionModel
    from keras_vit.image_text.contrastive import Contrastive as Contrastive
    from keras_vit.image_text.dual_encoder import DualEncoder as DualEncoder
    from keras_vit.models.finetuning.freezing import freeze as freeze
    from keras_vit.models.finetuning.freezing import freeze_all_but_head as freeze_all_but_head
    from keras_vit.models.finetuning.lora import enable_lora as enable_lora
    from keras_vit.models.finetuning.lora import merge_lora as merge_lora
    from keras_vit.models.finetuning.quantization_aware import quantize_aware as quantize_aware
    from keras_vit.models.finetuning.quantization_aware import without_fake_quantization as without_fake_quantization
    from keras_vit.models.finetuning.whitening import whiten as whiten
    from keras_vit.pretraining.dino_model import DINO as DINO
    from keras_vit.pretraining.image_gpt import ImageGPT as ImageGPT
    from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder as MaskedAutoencoder
    from keras_vit.pretraining.masked_model import MaskedModel as MaskedModel
    from keras_vit.pretraining.masked_model import Reconstruction as Reconstruction
    from keras_vit.pretraining.masked_model import hidden_count as hidden_count
    from keras_vit.pretraining.masked_patch_predictor import MaskedPatchPredictor as MaskedPatchPredictor
    from keras_vit.segmentation.segmentation_model import SegmentationModel as SegmentationModel
else:
    # Models with their losses live above this room; here are the names.
    __getattr__ = attach(
        __name__,
        {
            "Contrastive": "keras_vit.image_text.contrastive",
            "DINO": "keras_vit.pretraining.dino_model",
            "DepthModel": "keras_vit.depth.depth_model",
            "DetectionModel": "keras_vit.detection.detection_model",
            "Distilled": "keras_vit.classification.distilled",
            "DualEncoder": "keras_vit.image_text.dual_encoder",
            "ImageGPT": "keras_vit.pretraining.image_gpt",
            "MaskedAutoencoder": "keras_vit.pretraining.masked_autoencoder",
            "MaskedModel Reconstruction hidden_count": "keras_vit.pretraining.masked_model",
            "MaskedPatchPredictor": "keras_vit.pretraining.masked_patch_predictor",
            "SegmentationModel": "keras_vit.segmentation.segmentation_model",
            "freeze freeze_all_but_head": "keras_vit.models.finetuning.freezing",
            "enable_lora merge_lora": "keras_vit.models.finetuning.lora",
            "quantize_aware without_fake_quantization": "keras_vit.models.finetuning.quantization_aware",
            "whiten": "keras_vit.models.finetuning.whitening",
        },
    )
