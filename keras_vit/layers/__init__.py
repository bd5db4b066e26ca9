"""Keras layers of the Vision Transformer family, one idea per file."""

from keras_vit.layers.attention.self_attention import MultiHeadSelfAttention
from keras_vit.layers.attention.window_attention import WindowAttention
from keras_vit.layers.attention.window_tokens import WindowTokens
from keras_vit.layers.blocks.axial import AxialBlock
from keras_vit.layers.blocks.mlp import MlpBlock
from keras_vit.layers.blocks.swin_block import SwinBlock
from keras_vit.layers.blocks.token_merging import ReducingBlock
from keras_vit.layers.blocks.transformer import LayerScale, PostNormBlock, TransformerBlock
from keras_vit.layers.convolutions import BottleneckUnit, StdConv2D
from keras_vit.layers.dropout import Dropout, DropPath
from keras_vit.layers.embedding.merging import PatchMerging
from keras_vit.layers.embedding.palette_encoder import PaletteEncoder
from keras_vit.layers.embedding.patch_dropout import PatchDropout
from keras_vit.layers.embedding.patches import ClassToken, PatchEncoder, PatchGrid
from keras_vit.layers.normalization import BatchNormalization, PixelNormalization
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.positions.continuous import ContinuousBias
from keras_vit.layers.positions.embeddings import AddPositionEmbs
from keras_vit.layers.positions.relative import RelativeAttention, RelativeBias
from keras_vit.layers.positions.rotary import RotaryPositions

__all__ = [
    "AddPositionEmbs",
    "AttentionPooling",
    "AxialBlock",
    "BatchNormalization",
    "BottleneckUnit",
    "ClassToken",
    "ContinuousBias",
    "DropPath",
    "Dropout",
    "LayerScale",
    "MeanPooling",
    "MlpBlock",
    "MultiHeadSelfAttention",
    "PaletteEncoder",
    "PatchDropout",
    "PatchEncoder",
    "PatchGrid",
    "PatchMerging",
    "PixelNormalization",
    "PostNormBlock",
    "ReducingBlock",
    "RelativeAttention",
    "RelativeBias",
    "RotaryPositions",
    "StdConv2D",
    "SwinBlock",
    "TokenPooling",
    "TransformerBlock",
    "WindowAttention",
    "WindowTokens",
]
