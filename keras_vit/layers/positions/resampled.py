"""Position embeddings of one grid, used on another one: what lets a model see crops of several sizes in one step."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.embedding.patches import check_tokens, pair
from keras_vit.layers.positions.embeddings import AddPositionEmbs
from keras_vit.layers.positions.interpolation import resized
from keras_vit.layers.registration import serializable


@serializable
class ResampledPositions(keras.layers.Layer):
    """Adds the position embeddings of another layer, interpolated to another grid, through which that layer's learn.

    Args:
        positions: an AddPositionEmbs, built.
        grid: (h, w) patches of the tokens here.
        method: how it is interpolated, a row of interpolation.METHODS; DINO's code, for its small crops, is bicubic.

    Input and output (b, prefix + registers + h * w, d).
    """

    def __init__(self, positions: AddPositionEmbs, grid: tuple[int, int], method: str = "bicubic", **kwargs: Any):
        super().__init__(**kwargs)
        self.positions = positions
        self.grid = pair(grid, "ResampledPositions: grid")
        self.method = method

    def build(self, input_shape):
        check_tokens(input_shape[1], self.positions.prefix + self.positions.registers, self.grid, "ResampledPositions")

    def call(self, x):
        table, prefix = self.positions.table(), self.positions.prefix
        grid = ops.reshape(table[:, prefix:], (1, *self.positions.grid, table.shape[-1]))  # (1, n, d) -> (1, h, w, d)
        grid = resized(grid, self.grid, self.method)
        rows = ops.reshape(grid, (1, -1, table.shape[-1]))  # (1, h', w', d) -> (1, n', d)
        none = ops.zeros((1, self.positions.registers, table.shape[-1]), rows.dtype)
        return x + ops.cast(ops.concatenate([ops.cast(table[:, :prefix], rows.dtype), none, rows], axis=1), x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        positions = keras.saving.serialize_keras_object(self.positions)
        return {**super().get_config(), "positions": positions, "grid": self.grid, "method": self.method}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "positions": keras.saving.deserialize_keras_object(config["positions"])})
