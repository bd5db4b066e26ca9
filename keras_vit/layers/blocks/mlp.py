"""The block's MLP: two dense layers and an activation (section 3.1 of arXiv 2010.11929) or SwiGLU (2002.05202)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit.layers.arguments import choice, flag, integer, number, rate
from keras_vit.layers.backend import as_matrix, as_tokens
from keras_vit.layers.dense import ComposedLayer, Dense
from keras_vit.layers.dropout import Dropout, fold_in
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable


@keras.saving.register_keras_serializable(package="keras_vit")
def gelu_tanh(x: Any) -> Any:
    """GELU's approximation by tanh, that of the original JAX code."""
    return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_vit")
def quick_gelu(x: Any) -> Any:
    """GELU's approximation by a sigmoid, that of CLIP."""
    return x * ops.sigmoid(1.702 * x)


def _gelu(x, training, approximate):
    if not training:
        return ops.gelu(x, approximate=approximate)
    from keras_vit.layers.blocks.gelu import gelu_in_training

    return gelu_in_training(x, approximate=approximate)


# {activation: function (x, training) of tensors of any shape}.
ACTIVATIONS = {
    "gelu": functools.partial(_gelu, approximate=False),
    "gelu_tanh": functools.partial(_gelu, approximate=True),
    "quick_gelu": lambda x, training: quick_gelu(x),
    "relu": lambda x, training: ops.relu(x),
    "silu": lambda x, training: ops.silu(x),
}
# {activation of a dense layer before the head: what Keras' Dense takes and saves}.
DENSE_ACTIVATIONS = {
    **{name: name for name in ("tanh", "gelu", "relu", "silu")},
    **{"gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu},
}


def _activated(x, activation, training):
    return activation(x, training)


def _swiglu(x, activation, training):
    gate, x = ops.split(x, 2, axis=-1)  # (..., mlp_dim) each
    return ops.silu(gate) * x


class MlpForm(NamedTuple):
    """The computation between an MLP's two dense layers.

    Attributes:
        between: function (x, activation, training): (..., values * mlp_dim) -> (..., mlp_dim).
        values: outputs of the first dense layer per hidden unit.
        uses_activation: whether `between` calls the activation.
    """

    between: Callable
    values: int = 1
    uses_activation: bool = True


MLPS = {"plain": MlpForm(_activated), "swiglu": MlpForm(_swiglu, values=2, uses_activation=False)}


@serializable
class MlpBlock(ComposedLayer):
    """Dense, activation, dropout, dense, dropout. For SwiGLU the first layer gives x, y per unit, then silu(x) y.

    Args:
        mlp_dim: hidden width.
        mlp_activation: "gelu" (exact: timm, Hugging Face), "gelu_tanh" (original JAX code), "quick_gelu" (CLIP),
            "relu", "silu"; a name in ACTIVATIONS. Use the one the weights were trained with.
        dropout: rate after both dense layers.
        form: "plain" or "swiglu" (DINOv2-g), a name in MLPS.
        norm: layer-normalise the hidden values before the second layer (sub-LN, EVA-02).
        epsilon: of that normalisation.

    Input and output (b, n, d). SwiGLU's two kernels are one weight, hidden/kernel, (d, 2 * mlp_dim).
    """

    def __init__(
        self,
        mlp_dim: int,
        mlp_activation: str = "gelu",
        dropout: float = 0.0,
        form: str = "plain",
        norm: bool = False,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.mlp_dim = integer(mlp_dim, "MlpBlock: mlp_dim")
        self.mlp_activation = choice(mlp_activation, "MlpBlock: mlp_activation", ACTIVATIONS)
        self.dropout = rate(dropout, "MlpBlock: dropout")
        self.form = choice(form, "MlpBlock: form", MLPS)
        self.norm = flag(norm, "MlpBlock: norm")
        self.epsilon = number(epsilon, "MlpBlock: epsilon", least=0)
        self.supports_masking = True

    def build(self, input_shape):
        init = {"bias_initializer": keras.initializers.RandomNormal(stddev=1e-6), "dtype": self.dtype_policy}
        self.hidden = Dense(MLPS[self.form].values * self.mlp_dim, name="hidden", **init)
        self.hidden.build(input_shape)
        self.out = Dense(input_shape[-1], name="out", **init)
        self.out.build((*input_shape[:-1], self.mlp_dim))
        self.hidden_norm = None
        if self.norm:
            self.hidden_norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
            self.hidden_norm.build((*input_shape[:-1], self.mlp_dim))
        # Not built, so without a path by which a DTypePolicyMap would know them.
        self.hidden_dropout = Dropout(self.dropout, dtype=self.compute_dtype, name="hidden_dropout")
        self.out_dropout = Dropout(self.dropout, dtype=self.compute_dtype, name="dropout")
        self.restore_dense()

    def call(self, x, training=False, seed=None):
        """With `seed`, (2,) integers, both dropouts take their masks from it; otherwise from their own generators."""
        y = MLPS[self.form].between(self.hidden(as_matrix(x)), ACTIVATIONS[self.mlp_activation], training)
        y = self.hidden_dropout(y, training=training, seed=None if seed is None else fold_in(seed, 1))
        y = y if self.hidden_norm is None else self.hidden_norm(y)
        return as_tokens(self.out_dropout(self.out(y), training=training, seed=seed), x)

    def compute_output_shape(self, input_shape, **_):
        return input_shape
