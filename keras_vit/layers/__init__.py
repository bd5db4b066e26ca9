"""Keras layers of the Vision Transformer family, one idea per file."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.batch_normalization import BatchNormalization
from keras_vit.layers.block import LayerScale, TransformerBlock
from keras_vit.layers.bottleneck import BottleneckUnit
from keras_vit.layers.convolution import StdConv2D
from keras_vit.layers.dropout import Dropout, DropPath
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.normalization import PixelNormalization
from keras_vit.layers.palette import PaletteEncoder
from keras_vit.layers.patch_dropout import PatchDropout
from keras_vit.layers.patches import PatchEncoder, PatchGrid
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.positions import AddPositionEmbs
from keras_vit.layers.reducing_block import ReducingBlock
from keras_vit.layers.relative import RelativeAttention, RelativeBias
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.tokens import ClassToken

__all__ = [
    "AddPositionEmbs",
    "AttentionPooling",
    "BatchNormalization",
    "BottleneckUnit",
    "ClassToken",
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
    "PixelNormalization",
    "ReducingBlock",
    "RelativeAttention",
    "RelativeBias",
    "RotaryPositions",
    "StdConv2D",
    "TokenPooling",
    "TransformerBlock",
]
