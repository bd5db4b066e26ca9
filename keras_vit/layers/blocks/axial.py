"""The axial Transformer block (arXiv 2010.11929, appendix D.6): row attention, MLP, column attention, MLP."""

from typing import Any

from keras import ops

from keras_vit.layers.blocks.transformer import TransformerBlock
from keras_vit.layers.registration import serializable

_OWN = ("name", "dtype", "trainable", "quantization", "lora")


@serializable
class AxialBlock(TransformerBlock):
    """Two TransformerBlocks: this layer attends in the rows of the grid, its sublayer `columns` in the columns.

    Args:
        grid: (h, w) patches.
        heads, mlp_dim, **kwargs: see TransformerBlock; both halves have the same. It is not causal.

    Input and output (b, n, d). `attention_weights(x)` returns (b, 2k, n, n): the heads of the rows, then the columns'.
    """

    def __init__(self, heads: int, mlp_dim: int, *, grid: tuple[int, int], **kwargs: Any):
        super().__init__(heads, mlp_dim, grid=grid, pattern="rows", **kwargs)
        if self.causal:
            raise ValueError("AxialBlock: rows and columns leave out earlier patches, so causal must be False.")
        options = {name: value for name, value in kwargs.items() if name not in _OWN}
        self.columns = TransformerBlock(
            heads, mlp_dim, grid=grid, pattern="columns", **options, dtype=self.dtype_policy, name="columns"
        )

    def build(self, input_shape):
        self.columns.build(input_shape)
        super().build(input_shape)

    def call(self, x, mask=None, attention_mask=None, training=False, x_mask=None):
        masks = {"mask": x_mask if mask is None else mask, "attention_mask": attention_mask}
        return self.columns(super().call(x, **masks, training=training), **masks, training=training)

    def attention_weights(self, x, mask=None, attention_mask=None):
        rows = super().attention_weights(x, mask, attention_mask)
        between = super().call(x, mask, attention_mask)
        return ops.concatenate([rows, self.columns.attention_weights(between, mask, attention_mask)], axis=1)

    def get_config(self):
        return {name: value for name, value in super().get_config().items() if name != "pattern"}
